//! The encoder of the original transformer.

use tch::{Device, Kind, Tensor, nn};

use super::parts::linear;
use gpipe_torch::{Context, Layer, Sequential, Values};

/// Sizes of a [`transformer`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transformer {
    /// Vocabulary size.
    pub vocab: i64,
    /// Features per token, an even number.
    pub d_model: i64,
    /// Number of encoder layers.
    pub layers: usize,
    /// Number of attention heads; divides `d_model`.
    pub heads: i64,
    /// Features within the feed-forward nets.
    pub d_ff: i64,
    /// Dropout probability after the embedding, in attention, in the feed-forward net
    /// and on residuals.
    pub dropout: f64,
}

/// Makes a model of `layers` + 2 layers: `embed`, `layers.0` …, `head` (a linear layer to the
/// vocabulary).
///
/// *Shapes*: tokens `[batch, time]` to logits `[batch, time, vocab]`; any time. Every
/// position sees every other.
///
/// *Source*: Vaswani et al. 2017, sections 3.1 to 3.5: sine positions, the norm after
/// the residual, ReLU. Parameters of a layer have the names and layouts of PyTorch's
/// `TransformerEncoderLayer`.
///
/// # Errors
/// `d_model` is odd or not a multiple of `heads`.
pub fn transformer(sizes: Transformer) -> anyhow::Result<Sequential> {
    let Transformer {
        vocab,
        d_model,
        heads,
        dropout,
        ..
    } = sizes;
    anyhow::ensure!(
        heads > 0 && d_model % heads == 0,
        "d_model {d_model} is not a multiple of heads {heads}"
    );
    anyhow::ensure!(d_model % 2 == 0, "d_model {d_model} is not even");
    let mut model = Sequential::new().layer("embed", move |p| Embed {
        // The scaled embedding then has variance 1.
        tokens: p.randn(
            "weight",
            &[vocab, d_model],
            0.0,
            1.0 / (d_model as f64).sqrt(),
        ),
        dropout,
    });
    for number in 0..sizes.layers {
        model = model.layer(format!("layers.{number}"), move |p| {
            EncoderLayer::new(p, sizes)
        });
    }
    Ok(model.layer("head", move |p| linear(p, d_model, vocab, true)))
}

/// The token's embedding times √d_model, plus the position's sines.
#[derive(Debug)]
struct Embed {
    tokens: Tensor,
    dropout: f64,
}

impl Layer for Embed {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let tokens = inputs.into_one()?;
        let (_, time) = tokens.size2()?;
        let d_model = self.tokens.size()[1];
        let embedded = Tensor::f_embedding(&self.tokens, &tokens, -1, false, false)?
            .f_mul_scalar((d_model as f64).sqrt())?;
        let sum = embedded.f_add(&positions(time, d_model, tokens.device())?)?;
        Ok(ctx.dropout(&sum, self.dropout)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Alternating sines and cosines of wavelengths from 2π to 10000 · 2π, `[time, d_model]`.
fn positions(time: i64, d_model: i64, device: Device) -> Result<Tensor, tch::TchError> {
    let options = (Kind::Float, device);
    let exponents = Tensor::f_arange_start_step(0, d_model, 2, options)?;
    let frequencies = exponents
        .f_mul_scalar(-10_000_f64.ln() / d_model as f64)?
        .f_exp()?;
    let angles = Tensor::f_arange(time, options)?.f_outer(&frequencies)?;
    Tensor::f_stack(&[angles.f_sin()?, angles.f_cos()?], -1)?.f_flatten(1, 2)
}

#[derive(Debug)]
struct EncoderLayer {
    attention: Attention,
    norm_1: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
    norm_2: nn::LayerNorm,
    dropout: f64,
}

impl EncoderLayer {
    fn new(path: &nn::Path<'_>, sizes: Transformer) -> Self {
        let Transformer { d_model, d_ff, .. } = sizes;
        let norm =
            |name: &str| nn::layer_norm(path / name, vec![d_model], nn::LayerNormConfig::default());
        Self {
            attention: Attention::new(&(path / "self_attn"), sizes),
            norm_1: norm("norm1"),
            up: linear(&(path / "linear1"), d_model, d_ff, true),
            down: linear(&(path / "linear2"), d_ff, d_model, true),
            norm_2: norm("norm2"),
            dropout: sizes.dropout,
        }
    }

    fn feed_forward(&self, input: &Tensor, ctx: &Context) -> anyhow::Result<Tensor> {
        let up = input.f_linear(&self.up.ws, self.up.bs.as_ref())?.f_relu()?;
        let up = ctx.dropout(&up, self.dropout)?;
        Ok(up.f_linear(&self.down.ws, self.down.bs.as_ref())?)
    }
}

impl Layer for EncoderLayer {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let attended = self.attention.apply(&input, ctx)?;
        let sum = input.f_add(&ctx.dropout(&attended, self.dropout)?)?;
        let input = sum.apply(&self.norm_1);
        let fed = self.feed_forward(&input, ctx)?;
        let sum = input.f_add(&ctx.dropout(&fed, self.dropout)?)?;
        Ok(sum.apply(&self.norm_2).into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Multi-head self-attention between all positions.
#[derive(Debug)]
struct Attention {
    in_weight: Tensor,
    in_bias: Tensor,
    out: nn::Linear,
    heads: i64,
    dropout: f64,
}

impl Attention {
    fn new(path: &nn::Path<'_>, sizes: Transformer) -> Self {
        let d_model = sizes.d_model;
        // Glorot & Bengio 2010: uniform in ±√(6 / (inputs + outputs)).
        let bound = (6.0 / (4 * d_model) as f64).sqrt();
        let init = nn::Init::Uniform {
            lo: -bound,
            up: bound,
        };
        let config = nn::LinearConfig {
            ws_init: super::parts::PYTORCH_INIT,
            bs_init: Some(nn::Init::Const(0.0)),
            bias: true,
        };
        Self {
            in_weight: path.var("in_proj_weight", &[3 * d_model, d_model], init),
            in_bias: path.zeros("in_proj_bias", &[3 * d_model]),
            out: nn::linear(path / "out_proj", d_model, d_model, config),
            heads: sizes.heads,
            dropout: sizes.dropout,
        }
    }

    fn apply(&self, input: &Tensor, ctx: &Context) -> anyhow::Result<Tensor> {
        let (batch, time, d_model) = input.size3()?;
        let head = d_model / self.heads;
        // [3, batch, heads, time, head]
        let all = input
            .f_linear(&self.in_weight, Some(&self.in_bias))?
            .f_view([batch, time, 3, self.heads, head])?
            .f_permute([2, 0, 3, 1, 4])?;
        let (query, key, value) = (all.f_get(0)?, all.f_get(1)?, all.f_get(2)?);
        let mixed = if ctx.train() && self.dropout > 0.0 {
            // The fused kernel would draw from the global generator.
            let weights = query
                .f_matmul(&key.f_transpose(-2, -1)?)?
                .f_mul_scalar(1.0 / (head as f64).sqrt())?
                .f_softmax(-1, None::<Kind>)?;
            ctx.dropout(&weights, self.dropout)?.f_matmul(&value)?
        } else {
            let none = None::<Tensor>;
            Tensor::f_scaled_dot_product_attention(
                &query, &key, &value, none, 0.0, false, None, false,
            )?
        };
        let mixed = mixed.f_transpose(1, 2)?.f_reshape([batch, time, d_model])?;
        Ok(mixed.f_linear(&self.out.ws, self.out.bs.as_ref())?)
    }
}
