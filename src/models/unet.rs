//! A U-Net with long skip connections between distant stages.

use tch::{Tensor, nn};

use super::parts::Conv;
use gpipe_torch::{Context, Layer, Sequential, Values};

/// Sizes of a [`unet`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UNet {
    /// Number of levels of the encoder and of the decoder; 5 in the benchmark.
    pub depth: usize,
    /// Number of convolutions per level; B in the benchmark.
    pub convolutions: usize,
    /// Features of the first level; C in the benchmark. Doubled at each level.
    pub width: i64,
    /// Features of the input.
    pub inputs: i64,
    /// Features of the output.
    pub outputs: i64,
    /// Probability that a convolution's output feature is zeroed; 0.1 in the benchmark.
    pub dropout: f64,
}

/// Makes a model with a layer per convolution: `encoder.0.0` … and `encoder.0.down` for each level,
/// `bottleneck.0` …, `decoder.4.up` and `decoder.4.0` … for each level from the deepest, `segment`. The
/// input of a level's `down` skips to the `up` of the same level.
///
/// *Shapes*: `[batch, inputs, height, width]` to `[batch, outputs, height, width]`.
///
/// *Source*: the simplified U-Net (B, C) of torchgpipe's benchmarks (Kim et al. 2020)
/// after Ronneberger et al. 2015: 3 × 3 convolution without bias, feature dropout,
/// instance norm without parameters, leaky ReLU.
pub fn unet(sizes: UNet) -> Sequential {
    let UNet { depth, width, .. } = sizes;
    // Half of `width` below the first level of the decoder.
    let at = move |level: usize| (width << level) / 2;
    let mut model = Sequential::new();
    for level in 0..depth {
        let inputs = if level == 0 { sizes.inputs } else { at(level) };
        let (name, own) = (format!("encoder.{level}"), at(level + 1));
        model = convolutions(model, &name, sizes, [inputs, own, own]);
        let skip = format!("skip.{level}");
        model = model
            .layer(format!("{name}.down"), {
                let skip = skip.clone();
                move |_| Down(skip.clone())
            })
            .stashes(skip);
    }
    let widths = [at(depth), at(depth + 1), at(depth)];
    model = convolutions(model, "bottleneck", sizes, widths);
    for level in (0..depth).rev() {
        let (name, skip) = (format!("decoder.{level}"), format!("skip.{level}"));
        model = model
            .layer(format!("{name}.up"), {
                let skip = skip.clone();
                move |_| Up(skip.clone())
            })
            .pops(skip);
        let widths = [at(level + 2), at(level), at(level)];
        model = convolutions(model, &name, sizes, widths);
    }
    model.layer("segment", move |p| Conv::square(p, at(0), sizes.outputs, 1))
}

/// Appends the convolutions of a level, with its features before, within and after it.
fn convolutions(mut model: Sequential, name: &str, sizes: UNet, widths: [i64; 3]) -> Sequential {
    let [before, within, after] = widths;
    let count = sizes.convolutions;
    for number in 0..count {
        let from = if number == 0 { before } else { within };
        let to = if number + 1 == count { after } else { within };
        let dropout = sizes.dropout;
        model = model.layer(format!("{name}.{number}"), move |p| {
            Convolution::new(p, from, to, dropout)
        });
    }
    model
}

/// Convolution, feature dropout, instance norm, leaky ReLU.
#[derive(Debug)]
struct Convolution {
    conv: Conv,
    dropout: f64,
}

impl Convolution {
    fn new(path: &nn::Path<'_>, inputs: i64, outputs: i64, dropout: f64) -> Self {
        Self {
            conv: Conv::square(path, inputs, outputs, 3),
            dropout,
        }
    }
}

impl Layer for Convolution {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let mut output = self.conv.forward(inputs, ctx)?.into_one()?;
        if ctx.train() && self.dropout > 0.0 {
            output = output.f_feature_dropout(self.dropout, true)?;
        }
        let none = || None::<Tensor>;
        let normed =
            output.f_instance_norm(none(), none(), none(), none(), true, 0.1, 1e-5, true)?;
        Ok(normed.f_leaky_relu()?.into())
    }

    fn parts(&self) -> Vec<&dyn Layer> {
        vec![&self.conv]
    }
}

/// Saves its input for the decoder, and halves height and width.
#[derive(Debug)]
struct Down(String);

impl Layer for Down {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        ctx.stash(&self.0, &input)?;
        let halved = input.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?;
        Ok(halved.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Doubles height and width, and appends the encoder's features.
#[derive(Debug)]
struct Up(String);

impl Layer for Up {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let input = inputs.into_one()?;
        let skipped = ctx
            .pop(&self.0)?
            .ok_or_else(|| anyhow::anyhow!("`{}` is absent", self.0))?;
        let (_, _, height, width) = input.size4()?;
        let (_, _, full_height, full_width) = skipped.size4()?;
        let mut doubled = input.f_upsample_nearest2d([2 * height, 2 * width], 2.0, 2.0)?;
        // An odd height or width was rounded down by the encoder.
        let missing = [0, full_width - 2 * width, 0, full_height - 2 * height];
        if missing != [0; 4] {
            doubled = doubled.f_constant_pad_nd(missing)?;
        }
        Ok(Tensor::f_cat(&[doubled, skipped], 1)?.into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}
