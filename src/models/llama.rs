//! A decoder-only language model in the style of Llama, Mistral and Qwen.

mod attention;
mod rotary;

use tch::{Kind, Tensor, nn};

use attention::Attention;
use gpipe_torch::{Context, Layer, Sequential, Values};

pub use rotary::RopeScaling;

/// Sizes of a [`llama`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama {
    /// Vocabulary size.
    pub vocab: i64,
    /// Features per token.
    pub d_model: i64,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Number of attention heads.
    pub heads: i64,
    /// Number of key and value heads, each shared by several query heads; divides `heads`.
    pub kv_heads: i64,
    /// Features per head, an even number: often, but not always, `d_model / heads`.
    pub head_dim: i64,
    /// Features within the feed-forward net.
    pub d_ff: i64,
    /// Base of the rotary embedding's wavelengths.
    pub theta: f64,
    /// Scaling of the wavelengths.
    pub rope_scaling: RopeScaling,
    /// Attention window in tokens, including the token itself; `None` for all.
    pub window: Option<i64>,
    /// Which linear layers have biases.
    pub biases: Biases,
    /// Whether the heads of query and key have a norm, as in Qwen 3.
    pub qk_norm: bool,
    /// Epsilon that norms add to the mean of squares.
    pub norm_eps: f64,
    /// Whether the head is tied to the token embedding.
    pub tied: bool,
}

/// Biases of the linear layers in a [`llama`] block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Biases {
    /// Of the projections to query, key and value.
    pub of_qkv: bool,
    /// Of the projection after attention.
    pub of_out: bool,
    /// Of the feed-forward net.
    pub of_mlp: bool,
}

/// Makes a model of `layers` + 3 layers: `embed_tokens`, `layers.0` …, `norm`, `lm_head`.
///
/// *Shapes*: tokens `[batch, time]` to logits `[batch, time, vocab]`; any time.
///
/// *Source*: Touvron et al. 2023; grouped queries as in Ainslie et al. 2023; windows as in Jiang et al.
/// 2023 (Mistral); biases and norms of heads as in Qwen 2 and Qwen 3. Parameters have the names and
/// layouts of the released weights in Hugging Face's form without `model.`; all are initialised from
/// N(0, 0.02²). A tied head has no parameter of its own.
///
/// # Errors
/// `heads` is not divisible, or heads have an odd number of features.
pub fn llama(sizes: Llama) -> anyhow::Result<Sequential> {
    let Llama {
        vocab,
        d_model,
        heads,
        kv_heads,
        head_dim,
        ..
    } = sizes;
    anyhow::ensure!(
        heads > 0 && head_dim > 0 && head_dim % 2 == 0,
        "head_dim {head_dim} is not an even number from 2 up: d_model {d_model} must be a multiple \
         of twice the heads, 2 x {heads}, or head_dim be given"
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
        .layer("norm", move |p| RmsNorm::new(p, d_model, sizes.norm_eps))
        .layer("lm_head", move |p| projection(p, d_model, vocab, false));
    if sizes.tied {
        return Ok(model.tie("embed_tokens.weight", "lm_head.weight"));
    }
    Ok(model)
}

const INIT: nn::Init = nn::Init::Randn {
    mean: 0.0,
    stdev: 0.02,
};

fn projection(path: &nn::Path<'_>, inputs: i64, outputs: i64, bias: bool) -> nn::Linear {
    let config = nn::LinearConfig {
        ws_init: INIT,
        bs_init: Some(nn::Init::Const(0.0)),
        bias,
    };
    nn::linear(path, inputs, outputs, config)
}

/// x / √(mean of squares + eps) · weight, over the last dimension.
///
/// *Source*: Zhang & Sennrich 2019.
#[derive(Debug)]
struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    fn new(path: &nn::Path<'_>, features: i64, eps: f64) -> Self {
        let weight = path.ones("weight", &[features]);
        Self { weight, eps }
    }

    fn apply(&self, input: &Tensor) -> Result<Tensor, tch::TchError> {
        let squares = input.f_square()?;
        let mean = squares.f_mean_dim(-1, true, None::<Kind>)?;
        let scale = mean.f_add_scalar(self.eps)?.f_rsqrt()?;
        input.f_mul(&scale)?.f_mul(&self.weight)
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

/// Attention and a gated feed-forward net, each after a norm and added to its input.
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
        let norm = |name: &str| RmsNorm::new(&(path / name), d_model, sizes.norm_eps);
        let mlp = path / "mlp";
        let part = |name: &str, inputs, outputs| {
            projection(&(&mlp / name), inputs, outputs, sizes.biases.of_mlp)
        };
        Self {
            input_norm: norm("input_layernorm"),
            attention: Attention::new(&(path / "self_attn"), sizes),
            post_norm: norm("post_attention_layernorm"),
            gate: part("gate_proj", d_model, d_ff),
            up: part("up_proj", d_model, d_ff),
            down: part("down_proj", d_ff, d_model),
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
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let attended = self.attention.apply(&self.input_norm.apply(&input)?, ctx)?;
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
