//! GPT-2: a decoder-only language model.

use tch::{Tensor, nn};

use gpipe_torch::layers::{TokenEmbedding, TransformerBlock, normal_linear_config};
use gpipe_torch::{Context, Layer, Sequential, Values};

/// Sizes of a [`gpt`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpt {
    /// Vocabulary size.
    pub vocab: i64,
    /// Longest sequence, in tokens.
    pub context: i64,
    /// Features per token.
    pub d_model: i64,
    /// Number of attention heads; divides `d_model`.
    pub heads: i64,
    /// Number of transformer blocks.
    pub blocks: usize,
    /// Dropout probability after the embedding, in attention and on residuals.
    pub dropout: f64,
}

/// Makes a model of `blocks` + 2 layers: `embed`, `block.0` …, `head`, where the head is tied to the
/// token embedding and has no bias, exactly as in GPT-2.
///
/// *Shapes*: tokens `[batch, time]` to logits `[batch, time, vocab]`.
///
/// *Source*: Radford et al. 2019. Within a layer, parameters have the names of the released weights
/// (`attn.c_attn` …); matrices are `[outputs, inputs]`, the transpose of the released ones.
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
    model
        .layer("head", move |p| Head::new(p, d_model, vocab))
        .tie("embed.wte", "head.lm_head.weight")
}

/// Final norm and projection to the vocabulary.
#[derive(Debug)]
struct Head {
    norm: nn::LayerNorm,
    project: nn::Linear,
}

impl Head {
    fn new(path: &nn::Path<'_>, d_model: i64, vocab: i64) -> Self {
        let mut config = normal_linear_config(0.02);
        config.bias = false;
        Self {
            norm: nn::layer_norm(path / "ln_f", vec![d_model], nn::LayerNormConfig::default()),
            project: nn::linear(path / "lm_head", d_model, vocab, config),
        }
    }
}

impl Layer for Head {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        let normed: Tensor = inputs.into_one()?.apply(&self.norm);
        Ok(normed.f_linear(&self.project.ws, None::<Tensor>)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}
