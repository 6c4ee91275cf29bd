//! Windows of documents, and batches of them.

use tch::Tensor;

use crate::{OnDevice, Stack};
use gpipe_torch::TorchError;

/// The target that losses ignore, the default of `--ignore-index`.
pub(super) const IGNORED: i64 = -100;
/// The document index of padding.
pub(super) const NONE: i64 = -1;

/// A window of documents; all fields have the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Tokens; 0 for padding.
    pub tokens: Vec<i64>,
    /// The next token in the same document; -100, which losses ignore, at the end of a document and for
    /// padding.
    pub targets: Vec<i64>,
    /// Document of each token, counted from 0 in the window; -1 for padding.
    pub documents: Vec<i64>,
    /// Position of each token in the window's part of its document, from 0.
    pub positions: Vec<i64>,
}

/// A batch of windows: four integer tensors `[windows, tokens]`.
#[derive(Debug)]
pub struct PackedBatch {
    /// As [`Packed::tokens`].
    pub tokens: Tensor,
    /// As [`Packed::targets`].
    pub targets: Tensor,
    /// As [`Packed::documents`].
    pub documents: Tensor,
    /// As [`Packed::positions`].
    pub positions: Tensor,
}

impl PackedBatch {
    /// Returns a causal attention mask: a token may attend to itself and earlier tokens of the same
    /// document. Padding attends to itself only, so that no row is empty.
    ///
    /// *Shapes*: `[windows, 1, tokens, tokens]`, bool, true where attention is allowed: as
    /// `scaled_dot_product_attention` takes it, the same for each head.
    ///
    /// # Errors
    /// libtorch fails: there is not enough memory.
    pub fn attention_mask(&self) -> Result<Tensor, TorchError> {
        let documents = &self.documents;
        let same = documents
            .f_unsqueeze(-1)?
            .f_eq_tensor(&documents.f_unsqueeze(-2)?)?;
        let own = documents.f_ge(0)?.f_unsqueeze(-1)?;
        let length = documents.size()[documents.dim() - 1];
        let kind = (tch::Kind::Bool, documents.device());
        let diagonal = Tensor::f_eye(length, kind)?;
        let mask = same
            .f_tril(0)?
            .f_logical_and(&own)?
            .f_logical_or(&diagonal)?;
        Ok(mask.f_unsqueeze(1)?)
    }

    /// Returns the mask of the loss: `[windows, tokens]`, bool.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn loss_mask(&self) -> Result<Tensor, TorchError> {
        Ok(self.targets.f_ne(IGNORED)?)
    }
}

impl Stack for Packed {
    type Batch = PackedBatch;

    fn stack(items: Vec<Self>) -> anyhow::Result<PackedBatch> {
        let [mut tokens, mut targets, mut documents, mut positions] =
            [(); 4].map(|()| Vec::with_capacity(items.len()));
        for item in items {
            tokens.push(item.tokens);
            targets.push(item.targets);
            documents.push(item.documents);
            positions.push(item.positions);
        }
        Ok(PackedBatch {
            tokens: Stack::stack(tokens)?,
            targets: Stack::stack(targets)?,
            documents: Stack::stack(documents)?,
            positions: Stack::stack(positions)?,
        })
    }
}

impl OnDevice for PackedBatch {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        Ok(Self {
            tokens: each(self.tokens)?,
            targets: each(self.targets)?,
            documents: each(self.documents)?,
            positions: each(self.positions)?,
        })
    }
}

impl Packed {
    pub(super) fn empty(seq: usize) -> Self {
        Self {
            tokens: vec![0; seq],
            targets: vec![IGNORED; seq],
            documents: vec![NONE; seq],
            positions: vec![0; seq],
        }
    }

    /// Writes tokens of a document at a position.
    pub(super) fn put(
        &mut self,
        at: usize,
        document: &[i64],
        range: std::ops::Range<usize>,
        number: i64,
    ) {
        for (position, token) in range.enumerate() {
            let place = at + position;
            self.tokens[place] = document[token];
            if let Some(next) = document.get(token + 1) {
                self.targets[place] = *next;
            }
            self.documents[place] = number;
            self.positions[place] = position as i64;
        }
    }
}
