//! Models of images.

use super::super::{
    Entry, Instance, Settings, Synthetic, binary_cross_entropy, class_cross_entropy,
};
use crate::{AmoebaNetD, LossKind, ResNet, UNet, Vgg16, amoebanet_d, resnet, unet, vgg16};
use gpipe_torch::Sequential;

/// Makes a model from images of three channels to a class.
fn classifier(model: Sequential, sizes: &Settings) -> Instance {
    let image = sizes.count("image");
    let input = Synthetic::normal([3, image, image]);
    let target = Synthetic::classes([], sizes.count("classes"));
    let own = Instance::new(model, input, target.clone(), class_cross_entropy);
    own.or_judged_by(LossKind::CrossEntropy, target)
}

fn of_images(entry: Entry, image: i64) -> Entry {
    entry
        .count("image", image, "height and width of an image")
        .count("classes", 1000, "classes")
}

pub(super) fn vgg_entry() -> Entry {
    let make = |sizes: &Settings| {
        let image = sizes.count("image");
        anyhow::ensure!(image >= 32, "image {image} is below 32");
        let model = vgg16(Vgg16 {
            width: sizes.count("width"),
            hidden: sizes.count("hidden"),
            classes: sizes.count("classes"),
            dropout: sizes.value("dropout"),
        });
        Ok(classifier(model, sizes))
    };
    let entry = Entry::new("vgg16", make)
        .about("convolutions and three large linear layers")
        .source("Simonyan & Zisserman 2014, configuration D; torchvision")
        .count("width", 64, "features of the first convolutions")
        .count("hidden", 4096, "features of the hidden linear layers")
        .probability("dropout", 0.5, "dropout after the hidden linear layers");
    of_images(entry, 224)
}

pub(super) fn resnet_entry() -> Entry {
    let make = |sizes: &Settings| {
        let model = resnet(ResNet {
            blocks: ["blocks1", "blocks2", "blocks3", "blocks4"].map(|name| sizes.number(name)),
            width: sizes.count("width"),
            classes: sizes.count("classes"),
        });
        Ok(classifier(model, sizes))
    };
    let entry = Entry::new("resnet101", make)
        .about("residual bottleneck blocks with batch norm")
        .source("He et al. 2015; torchvision")
        .layers("blocks1", 3, "blocks of the first group")
        .layers("blocks2", 4, "blocks of the second group")
        .layers("blocks3", 23, "blocks of the third group")
        .layers("blocks4", 3, "blocks of the last group")
        .count("width", 64, "features of the first convolution")
        .preset("resnet50", &[("blocks3", 6.0)])
        .preset("resnet152", &[("blocks2", 8.0), ("blocks3", 36.0)]);
    of_images(entry, 224)
}

pub(super) fn unet_entry() -> Entry {
    let make = |sizes: &Settings| {
        let (image, width) = (sizes.count("image"), sizes.count("width"));
        let depth = sizes.number("depth");
        anyhow::ensure!(depth <= 16, "depth {depth} is above 16");
        let least = 1_i64 << depth;
        anyhow::ensure!(
            image >= least,
            "image {image} is below {least}, so that {depth} halvings leave nothing"
        );
        anyhow::ensure!(width >= 2, "width {width} is below 2");
        let model = unet(UNet {
            depth,
            convolutions: sizes.number("convolutions"),
            width,
            inputs: 3,
            outputs: 1,
            dropout: sizes.value("dropout"),
        });
        let input = Synthetic::uniform([3, image, image]);
        let target = Synthetic::uniform([1, image, image]);
        Ok(Instance::new(model, input, target, binary_cross_entropy))
    };
    let preset = |b: f64, c: f64| [("convolutions", b), ("width", c)];
    Entry::new("unet", make)
        .about("encoder and decoder joined by long skip connections, B = convolutions, C = width")
        .source("torchgpipe's benchmark, Kim et al. 2020; Ronneberger et al. 2015")
        .layers("depth", 5, "levels")
        .layers("convolutions", 5, "convolutions of a level (B)")
        .count("width", 64, "features of the first level (C)")
        .probability("dropout", 0.1, "dropout of whole features")
        .count("image", 192, "height and width of an image")
        .preset("unet-6-72", &preset(6.0, 72.0))
        .preset("unet-11-128", &preset(11.0, 128.0))
        .preset("unet-24-128", &preset(24.0, 128.0))
        .preset("unet-24-160", &preset(24.0, 160.0))
        .preset("unet-48-160", &preset(48.0, 160.0))
}

pub(super) fn amoebanet_entry() -> Entry {
    let make = |sizes: &Settings| {
        let image = sizes.count("image");
        anyhow::ensure!(image % 32 == 0, "image {image} is not a multiple of 32");
        let model = amoebanet_d(AmoebaNetD {
            layers: sizes.number("layers"),
            filters: sizes.count("filters"),
            classes: sizes.count("classes"),
        })?;
        Ok(classifier(model, sizes))
    };
    let preset = |l: f64, d: f64| [("layers", l), ("filters", d)];
    let entry = Entry::new("amoebanet-d", make)
        .about("evolved cells of two inputs, L = layers, D = filters")
        .source("Real et al. 2018; Huang et al. 2019 (GPipe); torchgpipe's benchmark")
        .layers("layers", 18, "normal cells, a multiple of 3 (L)")
        .count(
            "filters",
            208,
            "four times the features of the first convolution (D)",
        )
        .preset("amoebanet-d-18-416", &preset(18.0, 416.0))
        .preset("amoebanet-d-18-544", &preset(18.0, 544.0))
        .preset("amoebanet-d-36-544", &preset(36.0, 544.0))
        .preset("amoebanet-d-72-512", &preset(72.0, 512.0));
    of_images(entry, 224)
}
