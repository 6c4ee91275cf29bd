//! Causal multi-head self-attention.

use tch::{Kind, Tensor, nn};

use super::{KvCache, normal_linear};
use crate::Context;

/// Multi-head self-attention in which a position sees itself and what came before.
///
/// *Shapes*: `[batch, time, d_model]` to the same.
///
/// *Source*: Vaswani et al. 2017, section 3.2; one fused projection for query,
/// key and value as in GPT-2.
#[derive(Debug)]
pub struct CausalSelfAttention {
    qkv: nn::Linear,
    out: nn::Linear,
    heads: i64,
    dropout: f64,
    cache: KvCache,
}

impl CausalSelfAttention {
    /// Attention of `heads` heads over `d_model` features; `out_std` is the
    /// standard deviation of the output projection's initial weights.
    ///
    /// # Errors
    /// `d_model` is not a multiple of `heads`.
    pub fn new(
        path: &nn::Path<'_>,
        d_model: i64,
        heads: i64,
        dropout: f64,
        out_std: f64,
    ) -> anyhow::Result<Self> {
        anyhow::ensure!(
            heads > 0 && d_model % heads == 0,
            "d_model {d_model} is not a multiple of heads {heads}"
        );
        Ok(Self {
            qkv: normal_linear(path / "c_attn", d_model, 3 * d_model, 0.02),
            out: normal_linear(path / "c_proj", d_model, d_model, out_std),
            heads,
            dropout,
            cache: KvCache::default(),
        })
    }

    /// The attention of one micro-batch.
    ///
    /// # Errors
    /// The input is not `[batch, time, d_model]`.
    pub fn forward(&self, input: &Tensor, ctx: &Context) -> anyhow::Result<Tensor> {
        let (batch, time, d_model) = input.size3()?;
        let head = d_model / self.heads;
        // [3, batch, heads, time, head]
        let qkv = input
            .f_linear(&self.qkv.ws, self.qkv.bs.as_ref())?
            .f_view([batch, time, 3, self.heads, head])?
            .f_permute([2, 0, 3, 1, 4])?;
        let (query, key, value) = (qkv.f_get(0)?, qkv.f_get(1)?, qkv.f_get(2)?);
        let mixed = if ctx.train() && self.dropout > 0.0 {
            self.mix_with_dropout(&query, &key, &value, ctx)?
        } else {
            self.cache.attend(ctx, &query, (&key, &value), None)?
        };
        let mixed = mixed.f_transpose(1, 2)?.f_reshape([batch, time, d_model])?;
        Ok(mixed.f_linear(&self.out.ws, self.out.bs.as_ref())?)
    }

    /// Does the same with dropout on the attention weights, for which the fused kernel would draw
    /// from the process-wide generator.
    fn mix_with_dropout(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        ctx: &Context,
    ) -> anyhow::Result<Tensor> {
        let (time, head) = (query.size()[2], query.size()[3]);
        #[allow(
            clippy::cast_precision_loss,
            reason = "a head has a few hundred features"
        )]
        let scale = 1.0 / (head as f64).sqrt();
        let future = Tensor::f_ones([time, time], (Kind::Bool, query.device()))?.f_triu(1)?;
        let weights = query
            .f_matmul(&key.f_transpose(-2, -1)?)?
            .f_mul_scalar(scale)?
            .f_masked_fill(&future, f64::NEG_INFINITY)?
            .f_softmax(-1, None::<Kind>)?;
        Ok(ctx.dropout(&weights, self.dropout)?.f_matmul(value)?)
    }
}
