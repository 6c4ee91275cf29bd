//! Causal attention with rotary positions and shared keys and values.

use tch::{Tensor, nn};

use super::rotary::Rotary;
use super::{Llama, RmsNorm, RopeScaling, multiply, projection};
use gpipe_torch::Context;
use gpipe_torch::layers::KvCache;

#[derive(Debug)]
pub(super) struct Attention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    out: nn::Linear,
    /// Norms of the query's and the key's heads.
    norms: Option<[RmsNorm; 2]>,
    heads: i64,
    kv_heads: i64,
    /// Features per head.
    head: i64,
    rope: (f64, RopeScaling),
    window: Option<i64>,
    cache: KvCache,
}

impl Attention {
    pub(super) fn new(path: &nn::Path<'_>, sizes: Llama) -> Self {
        let Llama {
            d_model,
            heads,
            kv_heads,
            head_dim: head,
            biases,
            ..
        } = sizes;
        let part =
            |name: &str, outputs| projection(&(path / name), d_model, outputs, biases.of_qkv);
        let norm = |name: &str| RmsNorm::new(&(path / name), head, sizes.norm_eps);
        Self {
            query: part("q_proj", heads * head),
            key: part("k_proj", kv_heads * head),
            value: part("v_proj", kv_heads * head),
            out: projection(&(path / "o_proj"), heads * head, d_model, biases.of_out),
            norms: sizes.qk_norm.then(|| [norm("q_norm"), norm("k_norm")]),
            heads,
            kv_heads,
            head,
            rope: (sizes.theta, sizes.rope_scaling),
            window: sizes.window,
            cache: KvCache::default(),
        }
    }

    pub(super) fn apply(&self, input: &Tensor, ctx: &Context) -> anyhow::Result<Tensor> {
        let (batch, time, _) = input.size3()?;
        let split = |by: &nn::Linear, heads: i64| {
            multiply(input, by)?.f_view([batch, time, heads, self.head])
        };
        let (mut query, mut key) = (
            split(&self.query, self.heads)?,
            split(&self.key, self.kv_heads)?,
        );
        if let Some([of_query, of_key]) = &self.norms {
            (query, key) = (of_query.apply(&query)?, of_key.apply(&key)?);
        }
        // To [batch, heads, time, head].
        let places = (ctx.past().unwrap_or_default() as i64, time);
        let positions = Rotary::new(places, self.head, self.rope, input.device())?;
        let query = positions.turn(&query.f_transpose(1, 2)?)?;
        let key = positions.turn(&key.f_transpose(1, 2)?)?;
        let value = split(&self.value, self.kv_heads)?.f_transpose(1, 2)?;
        let mixed = (self.cache).attend(ctx, &query, (&key, &value), self.window)?;
        let all = [batch, time, self.heads * self.head];
        let mixed = mixed.f_transpose(1, 2)?.f_reshape(all)?;
        Ok(multiply(&mixed, &self.out)?)
    }
}
