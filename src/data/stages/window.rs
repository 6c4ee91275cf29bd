//! A window of documents, alone and as a batch.

use tch::Tensor;

use crate::{OnDevice, Stack};
use gpipe_torch::TorchError;

/// What a loss leaves out, as `--ignore-index` has it by default.
pub(super) const IGNORED: i64 = -100;
/// The document of what fills a window up.
pub(super) const NONE: i64 = -1;

/// A window of documents, all rows as long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The tokens; 0 where nothing is left to put there.
    pub tokens: Vec<i64>,
    /// The token that follows each in its document; -100, which losses leave out, behind the last
    /// one of a document and where there is no token.
    pub targets: Vec<i64>,
    /// The document of each token, counted from 0 in the window; -1 where there is none.
    pub documents: Vec<i64>,
    /// Where each token is in what the window has of its document, from 0.
    pub positions: Vec<i64>,
}

/// Windows as a batch: four tensors of whole numbers, `[windows, tokens]`.
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
    /// What a token may attend to: those before it and itself, in the same document. What fills a
    /// window up attends to itself alone, so that no row is empty.
    ///
    /// *Shapes*: `[windows, 1, tokens, tokens]`, bool, true where it may: as
    /// `scaled_dot_product_attention` takes it, the same for each head.
    ///
    /// # Errors
    /// libtorch refuses: there is not so much memory.
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

    /// Where the loss counts: `[windows, tokens]`, bool.
    ///
    /// # Errors
    /// libtorch refuses.
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

    /// Puts tokens of a document at a place.
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
