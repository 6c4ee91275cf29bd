//! A decoder-only language model in the style of GPT-2.

use tch::{Tensor, nn};

use crate::torch::layers::{TokenEmbedding, TransformerBlock, normal_linear};
use crate::torch::{Context, Layer, Sequential, Values};

/// Sizes of a [`gpt`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpt {
    /// Distinct tokens.
    pub vocab: i64,
    /// Longest sequence, in tokens.
    pub context: i64,
    /// Features of a token.
    pub d_model: i64,
    /// Attention heads; divides `d_model`.
    pub heads: i64,
    /// Transformer blocks.
    pub blocks: usize,
    /// Dropout probability after the embedding, in attention and on residuals.
    pub dropout: f64,
}

/// The model as `blocks` + 2 layers: `embed`, `block.0` …, `head`.
///
/// *Shapes*: tokens `[batch, time]` to logits `[batch, time, vocab]`.
///
/// *Source*: Radford et al. 2019 (GPT-2), head not tied to the embedding.
pub fn gpt(sizes: Gpt) -> Sequential {
    let Gpt {
        vocab,
        context,
        d_model,
        heads,
        blocks,
        dropout,
    } = sizes;
    let mut model = Sequential::new().layer("embed", move |p| {
        TokenEmbedding::new(p, vocab, context, d_model, dropout)
    });
    for number in 0..blocks {
        model = model.try_layer(format!("block.{number}"), move |p| {
            TransformerBlock::new(p, d_model, heads, blocks, dropout)
        });
    }
    model.layer("head", move |p| Head::new(p, d_model, vocab))
}

/// Final norm and projection onto the vocabulary.
#[derive(Debug)]
struct Head {
    norm: nn::LayerNorm,
    project: nn::Linear,
}

impl Head {
    fn new(path: &nn::Path<'_>, d_model: i64, vocab: i64) -> Self {
        Self {
            norm: nn::layer_norm(path / "ln_f", vec![d_model], nn::LayerNormConfig::default()),
            project: normal_linear(path / "lm_head", d_model, vocab, 0.02),
        }
    }
}

impl Layer for Head {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        let normed: Tensor = inputs.into_one()?.apply(&self.norm);
        Ok(normed
            .f_linear(&self.project.ws, self.project.bs.as_ref())?
            .into())
    }
}
