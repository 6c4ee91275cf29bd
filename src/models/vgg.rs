//! VGG-16.

use tch::nn;

use super::parts::{Chain, Conv, FAN_OUT_INIT, Op};
use gpipe_torch::Sequential;
use gpipe_torch::layers::{Dropout, normal_linear};

/// Sizes of a [`vgg16`] model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vgg16 {
    /// Features of the first convolutions; 64 in the original.
    pub width: i64,
    /// Features of the two hidden linear layers; 4096 in the original.
    pub hidden: i64,
    /// Classes.
    pub classes: i64,
    /// Dropout probability after the hidden linear layers.
    pub dropout: f64,
}

/// Number of convolutions in each block, and their features as a multiple of `width`.
const BLOCKS: [(usize, i64); 5] = [(2, 1), (2, 2), (3, 4), (3, 8), (3, 8)];

/// Makes a model of 13 convolutions, 5 poolings after blocks of them, `avgpool` and 3 linear layers;
/// activations are part of the layers that they follow.
///
/// *Shapes*: `[batch, 3, height, width]` of at least 32 × 32 to logits `[batch, classes]`.
///
/// *Source*: Simonyan & Zisserman 2014, configuration D; parameters have torchvision's names
/// (`features.0.weight` … `classifier.6.bias`) and initialisation.
pub fn vgg16(sizes: Vgg16) -> Sequential {
    let Vgg16 {
        width,
        hidden,
        classes,
        dropout,
    } = sizes;
    let mut model = Sequential::new();
    let (mut inputs, mut number) = (3, 0);
    for (convolutions, times) in BLOCKS {
        for _ in 0..convolutions {
            let (from, to) = (inputs, times * width);
            model = model.layer(format!("features.{number}"), move |p| {
                let conv = Conv::new(p, from, to, [3, 3], FAN_OUT_INIT).bias(p);
                Chain::new().then(conv).op(|x| x.f_relu())
            });
            inputs = to;
            // Two, as torchvision counts the activation.
            number += 2;
        }
        model = model.layer(format!("features.{number}"), |_| {
            Op(|x| x.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false))
        });
        number += 1;
    }
    let hidden_layer = move |p: &nn::Path<'_>, inputs: i64| {
        Chain::new()
            .then(linear(p, inputs, hidden))
            .op(|x| x.f_relu())
            .then(Dropout::new(dropout))
    };
    model
        .layer("avgpool", |_| {
            Op(|x| x.f_adaptive_avg_pool2d([7, 7])?.f_flatten(1, -1))
        })
        .layer("classifier.0", move |p| hidden_layer(p, inputs * 7 * 7))
        .layer("classifier.3", move |p| hidden_layer(p, hidden))
        .layer("classifier.6", move |p| linear(p, hidden, classes))
}

fn linear(path: &nn::Path<'_>, inputs: i64, outputs: i64) -> nn::Linear {
    normal_linear(path.clone(), inputs, outputs, 0.01)
}
