//! A decoder-only language model in the style of Llama.

use tch::{Device, Kind, Tensor, nn};

use crate::torch::{Context, Layer, Sequential, Values};

/// Sizes of a [`llama`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama {
    /// Distinct tokens.
    pub vocab: i64,
    /// Features of a token.
    pub d_model: i64,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; divides `d_model` into even parts.
    pub heads: i64,
    /// Heads of key and value, each shared by several of the query; divides `heads`.
    pub kv_heads: i64,
    /// Features within the feed-forward net.
    pub d_ff: i64,
    /// Base of the rotary embedding's wavelengths.
    pub theta: f64,
    /// Whether the head multiplies by the token embedding and has no weights of its own.
    pub tied: bool,
}

const EPS: f64 = 1e-5;

/// The model as `layers` + 3 layers: `embed_tokens`, `layers.0` …, `norm`, `lm_head`.
///
/// *Shapes*: tokens `[batch, time]` to logits `[batch, time, vocab]`; any time.
///
/// *Source*: Touvron et al. 2023; grouped queries as in Ainslie et al. 2023. Parameters
/// have the names and layouts of the released weights in Hugging Face's form without
/// their `model.`; all begin as N(0, 0.02²). A tied head has no parameter of its own.
///
/// # Errors
/// Heads that do not divide.
pub fn llama(sizes: Llama) -> anyhow::Result<Sequential> {
    let Llama {
        vocab,
        d_model,
        heads,
        kv_heads,
        ..
    } = sizes;
    anyhow::ensure!(
        heads > 0 && d_model % (2 * heads) == 0,
        "d_model {d_model} is not a multiple of twice the heads, 2 x {heads}"
    );
    anyhow::ensure!(
        kv_heads > 0 && heads % kv_heads == 0,
        "heads {heads} is not a multiple of kv_heads {kv_heads}"
    );
    let mut model = Sequential::new().layer("embed_tokens", move |p| {
        let config = nn::EmbeddingConfig {
            ws_init: INIT,
            ..nn::EmbeddingConfig::default()
        };
        nn::embedding(p, vocab, d_model, config)
    });
    for number in 0..sizes.layers {
        model = model.layer(format!("layers.{number}"), move |p| Block::new(p, sizes));
    }
    let model = model
        .layer("norm", move |p| RmsNorm::new(p, d_model))
        .layer("lm_head", move |p| projection(p, d_model, vocab));
    if sizes.tied {
        return Ok(model.tie("embed_tokens.weight", "lm_head.weight"));
    }
    Ok(model)
}

const INIT: nn::Init = nn::Init::Randn {
    mean: 0.0,
    stdev: 0.02,
};

fn projection(path: &nn::Path<'_>, inputs: i64, outputs: i64) -> nn::Linear {
    let config = nn::LinearConfig {
        ws_init: INIT,
        bs_init: None,
        bias: false,
    };
    nn::linear(path, inputs, outputs, config)
}

/// x / √(mean of squares + eps) · weight, over the last dimension.
///
/// *Source*: Zhang & Sennrich 2019.
#[derive(Debug)]
struct RmsNorm(Tensor);

impl RmsNorm {
    fn new(path: &nn::Path<'_>, features: i64) -> Self {
        Self(path.ones("weight", &[features]))
    }

    fn apply(&self, input: &Tensor) -> Result<Tensor, tch::TchError> {
        let squares = input.f_square()?;
        let mean = squares.f_mean_dim(-1, true, None::<Kind>)?;
        let scale = mean.f_add_scalar(EPS)?.f_rsqrt()?;
        input.f_mul(&scale)?.f_mul(&self.0)
    }
}

impl Layer for RmsNorm {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        Ok(self.apply(inputs.one()?)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Attention and a gated feed-forward net, each behind a norm and added to its input.
#[derive(Debug)]
struct Block {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    gate: nn::Linear,
    up: nn::Linear,
    down: nn::Linear,
}

impl Block {
    fn new(path: &nn::Path<'_>, sizes: Llama) -> Self {
        let Llama { d_model, d_ff, .. } = sizes;
        let mlp = path / "mlp";
        Self {
            input_norm: RmsNorm::new(&(path / "input_layernorm"), d_model),
            attention: Attention::new(&(path / "self_attn"), sizes),
            post_norm: RmsNorm::new(&(path / "post_attention_layernorm"), d_model),
            gate: projection(&(&mlp / "gate_proj"), d_model, d_ff),
            up: projection(&(&mlp / "up_proj"), d_model, d_ff),
            down: projection(&(&mlp / "down_proj"), d_ff, d_model),
        }
    }

    /// *Source*: SwiGLU, Shazeer 2020.
    fn feed_forward(&self, input: &Tensor) -> Result<Tensor, tch::TchError> {
        let gate = multiply(input, &self.gate)?.f_silu()?;
        let up = multiply(input, &self.up)?;
        multiply(&gate.f_mul(&up)?, &self.down)
    }
}

impl Layer for Block {
    fn forward(&self, inputs: Values, _ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let attended = self.attention.apply(&self.input_norm.apply(&input)?)?;
        let input = input.f_add(&attended)?;
        let fed = self.feed_forward(&self.post_norm.apply(&input)?)?;
        Ok(input.f_add(&fed)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

fn multiply(input: &Tensor, by: &nn::Linear) -> Result<Tensor, tch::TchError> {
    input.f_linear(&by.ws, by.bs.as_ref())
}

/// Causal attention with rotary positions and shared keys and values.
#[derive(Debug)]
struct Attention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    out: nn::Linear,
    heads: i64,
    kv_heads: i64,
    theta: f64,
}

impl Attention {
    fn new(path: &nn::Path<'_>, sizes: Llama) -> Self {
        let Llama {
            d_model,
            heads,
            kv_heads,
            theta,
            ..
        } = sizes;
        let shared = d_model / heads * kv_heads;
        let part = |name: &str, outputs| projection(&(path / name), d_model, outputs);
        Self {
            query: part("q_proj", d_model),
            key: part("k_proj", shared),
            value: part("v_proj", shared),
            out: part("o_proj", d_model),
            heads,
            kv_heads,
            theta,
        }
    }

    fn apply(&self, input: &Tensor) -> anyhow::Result<Tensor> {
        let (batch, time, d_model) = input.size3()?;
        let head = d_model / self.heads;
        // To [batch, heads, time, head].
        let split = |by: &nn::Linear, heads: i64| {
            multiply(input, by)?
                .f_view([batch, time, heads, head])?
                .f_transpose(1, 2)
        };
        let positions = Rotary::new(time, head, self.theta, input.device())?;
        let query = positions.turn(&split(&self.query, self.heads)?)?;
        let key = positions.turn(&split(&self.key, self.kv_heads)?)?;
        let value = split(&self.value, self.kv_heads)?;
        let (key, value) = (self.share(&key)?, self.share(&value)?);
        let none = None::<Tensor>;
        let mixed = Tensor::f_scaled_dot_product_attention(
            &query, &key, &value, none, 0.0, true, None, false,
        )?;
        let mixed = mixed.f_transpose(1, 2)?.f_reshape([batch, time, d_model])?;
        Ok(multiply(&mixed, &self.out)?)
    }

    /// Each head of key or value for all heads of the query that share it.
    fn share(&self, heads: &Tensor) -> Result<Tensor, tch::TchError> {
        let times = self.heads / self.kv_heads;
        if times == 1 {
            return Ok(heads.shallow_clone());
        }
        let (batch, _, time, head) = heads.size4()?;
        heads
            .f_unsqueeze(2)?
            .f_expand([batch, self.kv_heads, times, time, head], false)?
            .f_reshape([batch, self.heads, time, head])
    }
}

/// Cosine and sine of each position's angles, `[time, head]`.
///
/// *Source*: Su et al. 2021; the two members of a pair lie half a head apart.
#[derive(Debug)]
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(time: i64, head: i64, theta: f64, device: Device) -> Result<Self, tch::TchError> {
        let options = (Kind::Float, device);
        let exponents = Tensor::f_arange_start_step(0, head, 2, options)?;
        let frequencies = exponents.f_mul_scalar(-theta.ln() / head as f64)?.f_exp()?;
        let angles = Tensor::f_arange(time, options)?.f_outer(&frequencies)?;
        let angles = Tensor::f_cat(&[&angles, &angles], -1)?;
        Ok(Self {
            cos: angles.f_cos()?,
            sin: angles.f_sin()?,
        })
    }

    fn turn(&self, heads: &Tensor) -> Result<Tensor, tch::TchError> {
        let halves = heads.f_chunk(2, -1)?;
        let turned = Tensor::f_cat(&[&halves[1].f_neg()?, &halves[0]], -1)?;
        let (cos, sin) = (heads.f_mul(&self.cos)?, turned.f_mul(&self.sin)?);
        cos.f_add(&sin)
    }
}
