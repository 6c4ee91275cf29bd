//! The same model in plain tch.

use anyhow::Result;
use gpipe::models::Gpt;
use gpipe::tch::nn::{self, Module as _};
use gpipe::tch::{TchError, Tensor};

struct Block {
    norms: [nn::LayerNorm; 2],
    qkv: nn::Linear,
    out: nn::Linear,
    up: nn::Linear,
    down: nn::Linear,
    heads: i64,
}

/// GPT-2 as `gpipe::models::gpt` has it, operator by operator.
pub(crate) struct PlainGpt {
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: nn::LayerNorm,
}

impl PlainGpt {
    pub(crate) fn new(path: &nn::Path<'_>, sizes: Gpt) -> Self {
        let d_model = sizes.d_model;
        let block = |number: usize| Block::new(&(path / number), d_model, sizes.heads);
        Self {
            tokens: path.randn("wte", &[sizes.vocab, d_model], 0.0, 0.02),
            positions: path.randn("wpe", &[sizes.context, d_model], 0.0, 0.02),
            blocks: (0..sizes.blocks).map(block).collect(),
            norm: nn::layer_norm(path / "ln_f", vec![d_model], nn::LayerNormConfig::default()),
        }
    }

    pub(crate) fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let (_, time) = tokens.size2()?;
        let embedded = Tensor::f_embedding(&self.tokens, tokens, -1, false, false)?;
        let mut x = embedded.f_add(&self.positions.f_narrow(0, 0, time)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        Ok(self
            .norm
            .forward(&x)
            .f_linear(&self.tokens, None::<Tensor>)?)
    }
}

impl Block {
    fn new(path: &nn::Path<'_>, d_model: i64, heads: i64) -> Self {
        let norm =
            |name: &str| nn::layer_norm(path / name, vec![d_model], nn::LayerNormConfig::default());
        let linear = |name: &str, inputs: i64, outputs: i64| {
            nn::linear(path / name, inputs, outputs, nn::LinearConfig::default())
        };
        Self {
            norms: [norm("ln_1"), norm("ln_2")],
            qkv: linear("c_attn", d_model, 3 * d_model),
            out: linear("c_proj", d_model, d_model),
            up: linear("c_fc", d_model, 4 * d_model),
            down: linear("c_down", 4 * d_model, d_model),
            heads,
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.f_add(&self.attention(&self.norms[0].forward(x))?)?;
        let up = linear(&self.up, &self.norms[1].forward(&x))?.f_gelu("tanh")?;
        Ok(x.f_add(&linear(&self.down, &up)?)?)
    }

    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, time, d_model) = x.size3()?;
        let qkv = linear(&self.qkv, x)?
            .f_view([batch, time, 3, self.heads, d_model / self.heads])?
            .f_permute([2, 0, 3, 1, 4])?;
        let (query, key, value) = (qkv.f_get(0)?, qkv.f_get(1)?, qkv.f_get(2)?);
        let none = None::<Tensor>;
        let mixed = Tensor::f_scaled_dot_product_attention(
            &query, &key, &value, none, 0.0, true, None, false,
        )?;
        let mixed = mixed.f_transpose(1, 2)?.f_reshape([batch, time, d_model])?;
        Ok(linear(&self.out, &mixed)?)
    }
}

fn linear(layer: &nn::Linear, x: &Tensor) -> Result<Tensor, TchError> {
    x.f_linear(&layer.ws, layer.bs.as_ref())
}
