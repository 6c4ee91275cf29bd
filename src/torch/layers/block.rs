//! A pre-norm transformer block.

use tch::{Tensor, nn};

use super::{CausalSelfAttention, normal_linear};
use crate::{Context, Layer, Values};

/// Attention and a feed-forward net of four times the width, each after a layer norm and added to
/// its input: a block of GPT-2.
///
/// *Shapes*: `[batch, time, d_model]` to the same.
///
/// *Source*: Radford et al. 2019; residual projections start 1/√(2·depth) smaller.
#[derive(Debug)]
pub struct TransformerBlock {
    norm_1: nn::LayerNorm,
    attention: CausalSelfAttention,
    norm_2: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
    dropout: f64,
}

impl TransformerBlock {
    /// A block of a model with `depth` of them.
    ///
    /// # Errors
    /// `d_model` is not a multiple of `heads`.
    pub fn new(
        path: &nn::Path<'_>,
        d_model: i64,
        heads: i64,
        depth: usize,
        dropout: f64,
    ) -> anyhow::Result<Self> {
        #[allow(
            clippy::cast_precision_loss,
            reason = "models have fewer than 2^52 blocks"
        )]
        let out_std = 0.02 / ((2 * depth.max(1)) as f64).sqrt();
        let norm =
            |name: &str| nn::layer_norm(path / name, vec![d_model], nn::LayerNormConfig::default());
        let mlp = path / "mlp";
        Ok(Self {
            norm_1: norm("ln_1"),
            attention: CausalSelfAttention::new(
                &(path / "attn"),
                d_model,
                heads,
                dropout,
                out_std,
            )?,
            norm_2: norm("ln_2"),
            up: normal_linear(&mlp / "c_fc", d_model, 4 * d_model, 0.02),
            down: normal_linear(&mlp / "c_proj", 4 * d_model, d_model, out_std),
            dropout,
        })
    }

    fn feed_forward(&self, input: &Tensor) -> anyhow::Result<Tensor> {
        let up = input
            .f_linear(&self.up.ws, self.up.bs.as_ref())?
            .f_gelu("tanh")?;
        Ok(up.f_linear(&self.down.ws, self.down.bs.as_ref())?)
    }
}

impl Layer for TransformerBlock {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let attended = self.attention.forward(&input.apply(&self.norm_1), ctx)?;
        let input = input.f_add(&ctx.dropout(&attended, self.dropout)?)?;
        let fed = self.feed_forward(&input.apply(&self.norm_2))?;
        Ok(input.f_add(&ctx.dropout(&fed, self.dropout)?)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}
