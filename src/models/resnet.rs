//! ResNets of bottleneck blocks: ResNet-50, -101 and -152.

use tch::nn;

use super::parts::{Chain, Conv, FAN_OUT_INIT, linear, mean_of_map, norm};
use gpipe_torch::{Context, Layer, Sequential, Values};

/// Ratio of a block's output features to its inner width.
const EXPANSION: i64 = 4;

/// Sizes of a [`resnet`] model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResNet {
    /// Number of blocks in each of the four groups; 3, 4, 23, 3 in ResNet-101.
    pub blocks: [usize; 4],
    /// Features of the first convolution; 64 in the original.
    pub width: i64,
    /// Classes.
    pub classes: i64,
}

/// Makes a model of `conv1`, `bn1` (norm, activation, pooling), `layer1.0` … `layer4.2` (a bottleneck
/// block each) and `fc` (pooling and linear).
///
/// *Shapes*: `[batch, 3, height, width]` to logits `[batch, classes]`.
///
/// *Source*: He et al. 2015, with the stride in the block's 3 × 3 convolution as in torchvision;
/// parameters have torchvision's names and initialisation.
pub fn resnet(sizes: ResNet) -> Sequential {
    let ResNet {
        blocks,
        width,
        classes,
    } = sizes;
    let mut model = Sequential::new()
        .layer("conv1", move |p| {
            Conv::new(p, 3, width, [7, 7], FAN_OUT_INIT).stride([2, 2])
        })
        .layer("bn1", move |p| {
            Chain::new()
                .then(norm(p, width))
                .op(|x| x.f_relu())
                .op(|x| x.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false))
        });
    let mut inputs = width;
    for (group, count) in blocks.into_iter().enumerate() {
        let own = width << group;
        for number in 0..count {
            let (from, stride) = (inputs, if group > 0 && number == 0 { 2 } else { 1 });
            model = model.layer(format!("layer{}.{number}", group + 1), move |p| {
                Bottleneck::new(p, from, own, stride)
            });
            inputs = own * EXPANSION;
        }
    }
    model.layer("fc", move |p| {
        Chain::new()
            .op(mean_of_map)
            .then(linear(p, inputs, classes, true))
    })
}

/// Three convolutions, narrow in the middle, added to their input.
#[derive(Debug)]
struct Bottleneck {
    body: Chain,
    /// Converts the input to the output's shape, if they differ.
    downsample: Option<Chain>,
}

impl Bottleneck {
    fn new(path: &nn::Path<'_>, inputs: i64, width: i64, stride: i64) -> Self {
        let conv = |name: &str, from: i64, to: i64, size: i64| {
            Conv::new(&(path / name), from, to, [size, size], FAN_OUT_INIT)
        };
        let outputs = width * EXPANSION;
        let body = Chain::new()
            .then(conv("conv1", inputs, width, 1))
            .then(norm(&(path / "bn1"), width))
            .op(|x| x.f_relu())
            .then(conv("conv2", width, width, 3).stride([stride; 2]))
            .then(norm(&(path / "bn2"), width))
            .op(|x| x.f_relu())
            .then(conv("conv3", width, outputs, 1))
            .then(norm(&(path / "bn3"), outputs));
        let downsample = (stride != 1 || inputs != outputs).then(|| {
            let path = path / "downsample";
            let conv = Conv::new(&(&path / 0), inputs, outputs, [1, 1], FAN_OUT_INIT);
            Chain::new()
                .then(conv.stride([stride; 2]))
                .then(norm(&(&path / 1), outputs))
        });
        Self { body, downsample }
    }
}

impl Layer for Bottleneck {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let output = self.body.forward(inputs.shallow_clone(), ctx)?.into_one()?;
        let input = match &self.downsample {
            Some(downsample) => downsample.forward(inputs, ctx)?,
            None => inputs,
        };
        Ok(output.f_add(input.one()?)?.f_relu()?.into())
    }

    fn parts(&self) -> Vec<&dyn Layer> {
        let downsample = self.downsample.iter().map(|own| own as &dyn Layer);
        [&self.body as &dyn Layer]
            .into_iter()
            .chain(downsample)
            .collect()
    }
}
