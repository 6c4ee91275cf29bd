//! The layers of `workloads.py`, operation by operation.

use gpipe::tch::{Tensor, nn};
use gpipe::{Layer, Values, layers::Context};

use super::numbers::Parameters;

/// Standard deviation of a transformer's initial weights, as the bound of a uniform distribution.
const SPREAD: f64 = 0.02 * 1.732_050_807_568_877_2;
const EPSILON: f64 = 1e-5;

/// The bound of He initialization.
fn he(fan: i64) -> f64 {
    (6.0 / fan as f64).sqrt()
}

#[derive(Debug)]
struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn new(own: &Parameters<'_, '_>, name: &str, from: i64, to: i64, bound: f64) -> Self {
        let weight = own.random(&format!("{name}_weight"), &[to, from], bound);
        let bias = Some(own.zeros(&format!("{name}_bias"), to));
        Self { weight, bias }
    }

    fn apply(&self, x: &Tensor) -> anyhow::Result<Tensor> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }
}

/// A layer norm over the last dimension.
#[derive(Debug)]
struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new(own: &Parameters<'_, '_>, name: &str, size: i64) -> Self {
        let weight = own.ones(&format!("{name}_weight"), size);
        let bias = own.zeros(&format!("{name}_bias"), size);
        Self { weight, bias }
    }

    fn apply(&self, x: &Tensor) -> anyhow::Result<Tensor> {
        let (weight, bias) = (Some(&self.weight), Some(&self.bias));
        Ok(x.f_layer_norm(self.weight.size(), weight, bias, EPSILON, false)?)
    }
}

/// Tokens and their positions.
#[derive(Debug)]
pub struct Embed {
    tokens: Tensor,
    positions: Tensor,
}

impl Embed {
    pub const PARAMETERS: u64 = 2;

    pub fn new(own: &Parameters<'_, '_>, vocab: i64, sequence: i64, d: i64) -> Self {
        Self {
            tokens: own.random("tokens", &[vocab, d], SPREAD),
            positions: own.random("positions", &[sequence, d], SPREAD),
        }
    }
}

impl Layer for Embed {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?;
        let tokens = Tensor::f_embedding(&self.tokens, &x, -1, false, false)?;
        Ok(tokens.f_add(&self.positions)?.into())
    }
}

/// A block of a decoder, norms first.
#[derive(Debug)]
pub struct Block {
    heads: i64,
    norm_1: Norm,
    qkv: Linear,
    project: Linear,
    norm_2: Norm,
    up: Linear,
    down: Linear,
}

impl Block {
    pub const PARAMETERS: u64 = 12;

    pub fn new(own: &Parameters<'_, '_>, d: i64, heads: i64) -> Self {
        Self {
            heads,
            norm_1: Norm::new(own, "norm_1", d),
            qkv: Linear::new(own, "qkv", d, 3 * d, SPREAD),
            project: Linear::new(own, "project", d, d, SPREAD),
            norm_2: Norm::new(own, "norm_2", d),
            up: Linear::new(own, "up", d, 4 * d, SPREAD),
            down: Linear::new(own, "down", 4 * d, d, SPREAD),
        }
    }

    fn attention(&self, x: &Tensor) -> anyhow::Result<Tensor> {
        let (batch, time, d) = x.size3()?;
        let qkv = self.qkv.apply(x)?;
        let qkv = qkv.f_view([batch, time, 3, self.heads, d / self.heads])?;
        let parts = qkv.f_permute([2, 0, 3, 1, 4])?.f_unbind(0)?;
        let [q, k, v] = &parts[..] else {
            anyhow::bail!("attention has {} parts", parts.len());
        };
        let none = None::<Tensor>;
        let mixed = Tensor::f_scaled_dot_product_attention(q, k, v, none, 0.0, true, None, false)?;
        let mixed = mixed.f_transpose(1, 2)?.f_reshape([batch, time, d])?;
        self.project.apply(&mixed)
    }
}

impl Layer for Block {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?;
        let x = x.f_add(&self.attention(&self.norm_1.apply(&x)?)?)?;
        let up = self.up.apply(&self.norm_2.apply(&x)?)?.f_gelu("tanh")?;
        Ok(x.f_add(&self.down.apply(&up)?)?.into())
    }
}

/// The last norm and the projection onto the vocabulary.
#[derive(Debug)]
pub struct Head {
    norm: Norm,
    out: Tensor,
}

impl Head {
    pub fn new(own: &Parameters<'_, '_>, d: i64, vocab: i64) -> Self {
        Self {
            norm: Norm::new(own, "norm", d),
            out: own.random("out", &[vocab, d], SPREAD),
        }
    }
}

impl Layer for Head {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = self.norm.apply(&inputs.into_one()?)?;
        Ok(x.f_linear(&self.out, None::<Tensor>)?.into())
    }
}

/// A linear layer, with or without a ReLU behind it.
#[derive(Debug)]
pub struct Dense {
    linear: Linear,
    relu: bool,
}

impl Dense {
    pub const PARAMETERS: u64 = 2;

    pub fn new(own: &Parameters<'_, '_>, from: i64, to: i64, relu: bool) -> Self {
        let linear = Linear::new(own, "linear", from, to, he(from));
        Self { linear, relu }
    }
}

impl Layer for Dense {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = self.linear.apply(&inputs.into_one()?)?;
        Ok(if self.relu { x.f_relu()? } else { x }.into())
    }
}

/// A convolution without bias, and a batch norm.
#[derive(Debug)]
struct Conv {
    weight: Tensor,
    stride: i64,
    padding: i64,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
}

impl Conv {
    const PARAMETERS: u64 = 3;

    fn new(own: &Parameters<'_, '_>, name: &str, from: i64, to: i64, size: i64) -> Self {
        let weight = own.random(
            &format!("{name}_weight"),
            &[to, from, size, size],
            he(to * size * size),
        );
        Self {
            weight,
            stride: 1,
            padding: size / 2,
            scale: own.ones(&format!("{name}_scale"), to),
            shift: own.zeros(&format!("{name}_shift"), to),
            mean: own.path().zeros_no_train(&format!("{name}_mean"), &[to]),
            variance: own.path().ones_no_train(&format!("{name}_variance"), &[to]),
        }
    }

    fn stride(self, stride: i64) -> Self {
        Self { stride, ..self }
    }

    fn apply(&self, x: &Tensor, train: bool) -> anyhow::Result<Tensor> {
        let (stride, padding) = (self.stride, self.padding);
        let none = None::<Tensor>;
        let x = x.f_conv2d(&self.weight, none, stride, padding, 1, 1)?;
        Ok(x.f_batch_norm(
            Some(&self.scale),
            Some(&self.shift),
            Some(&self.mean),
            Some(&self.variance),
            train,
            0.1,
            EPSILON,
            true,
        )?)
    }
}

/// The beginning of a ResNet.
#[derive(Debug)]
pub struct Stem(Conv);

impl Stem {
    pub const PARAMETERS: u64 = Conv::PARAMETERS;

    pub fn new(own: &Parameters<'_, '_>) -> Self {
        Self(Conv::new(own, "conv", 3, 64, 7).stride(2))
    }
}

impl Layer for Stem {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let x = self.0.apply(&inputs.into_one()?, ctx.train())?.f_relu()?;
        Ok(x.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?
            .into())
    }
}

/// A bottleneck block of a ResNet.
#[derive(Debug)]
pub struct Bottleneck {
    convs: [Conv; 3],
    down: Option<Conv>,
}

impl Bottleneck {
    pub const fn parameters(down: bool) -> u64 {
        Conv::PARAMETERS * if down { 4 } else { 3 }
    }

    pub fn new(own: &Parameters<'_, '_>, from: i64, planes: i64, stride: i64, down: bool) -> Self {
        let convs = [
            Conv::new(own, "conv_1", from, planes, 1),
            Conv::new(own, "conv_2", planes, planes, 3).stride(stride),
            Conv::new(own, "conv_3", planes, 4 * planes, 1),
        ];
        let shorter = || Conv::new(own, "down", from, 4 * planes, 1).stride(stride);
        let down = down.then(shorter);
        Self { convs, down }
    }
}

impl Layer for Bottleneck {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let (x, train) = (inputs.into_one()?, ctx.train());
        let [first, second, third] = &self.convs;
        let y = first.apply(&x, train)?.f_relu()?;
        let y = second.apply(&y, train)?.f_relu()?;
        let y = third.apply(&y, train)?;
        let x = match &self.down {
            Some(down) => down.apply(&x, train)?,
            None => x,
        };
        Ok(y.f_add(&x)?.f_relu()?.into())
    }
}

/// The end of a ResNet: the mean of each map, then a linear layer.
#[derive(Debug)]
pub struct Classes(Linear);

impl Classes {
    pub fn new(own: &Parameters<'_, '_>, from: i64, classes: i64) -> Self {
        Self(Linear::new(own, "linear", from, classes, he(from)))
    }
}

impl Layer for Classes {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?.f_adaptive_avg_pool2d([1, 1])?;
        Ok(self.0.apply(&x.f_flatten(1, -1)?)?.into())
    }
}

/// Builds a layer whose first parameter has the number `first`.
pub fn numbered<L: Layer>(
    first: u64,
    build: impl Fn(&Parameters<'_, '_>) -> L,
) -> impl Fn(&nn::Path<'_>) -> L {
    move |path| build(&Parameters::new(path, first))
}
