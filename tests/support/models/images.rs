//! Models of images.

use gpipe::tch::{Tensor, nn};

use super::{Model, Pass, from_chain};

/// Convolutions with batch norm, which sees one micro-batch at a time.
pub(crate) fn convnet() -> Model {
    Model {
        whole: false,
        ..from_chain(
            "convnet",
            &super::super::convnet(),
            super::super::image_batch,
        )
    }
}

/// A U-Net: three levels, each with a skip to its counterpart on the way up.
pub(crate) fn unet() -> Model {
    let pooled = |x: &Tensor| x.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false);
    let doubled = |x: &Tensor| {
        let (height, width) = (x.size()[2] * 2, x.size()[3] * 2);
        x.upsample_nearest2d([height, width], None, None)
    };
    let down = move |stash: &'static str, inputs, outputs, pool: bool| {
        move |path: &nn::Path<'_>| -> super::Forward {
            let conv = conv(path, inputs, outputs);
            Box::new(move |x, pass| {
                let x = if pool { pooled(x) } else { x.shallow_clone() };
                let x = x.apply(&conv).relu();
                pass.stash(stash, &x);
                x
            })
        }
    };
    let up = move |pop: &'static str, inputs, outputs, double: bool| {
        move |path: &nn::Path<'_>| -> super::Forward {
            let conv = conv(path, inputs, outputs);
            Box::new(move |x, pass: &dyn Pass| {
                let x = if double {
                    doubled(x)
                } else {
                    x.shallow_clone()
                };
                Tensor::cat(&[pass.pop(pop), x], 1).apply(&conv).tanh()
            })
        }
    };
    Model::new("unet", batch, |out, y| {
        out.mse_loss(y, gpipe::tch::Reduction::Mean)
    })
    .layer("down1", down("fine", 2, 4, false))
    .stashes("fine")
    .layer("down2", down("middle", 4, 6, true))
    .stashes("middle")
    .layer("down3", down("coarse", 6, 8, true))
    .stashes("coarse")
    .layer("bottom", |path| {
        let conv = conv(path, 8, 8);
        Box::new(move |x, _| x.apply(&conv).tanh())
    })
    .layer("up3", up("coarse", 16, 6, false))
    .pops("coarse")
    .layer("up2", up("middle", 12, 4, true))
    .pops("middle")
    .layer("up1", up("fine", 8, 4, true))
    .pops("fine")
    .layer("head", |path| {
        let conv = nn::conv2d(path, 4, 1, 1, nn::ConvConfig::default());
        Box::new(move |x, _| x.apply(&conv))
    })
}

fn conv(path: &nn::Path<'_>, inputs: i64, outputs: i64) -> nn::Conv2D {
    let config = nn::ConvConfig {
        padding: 1,
        ..nn::ConvConfig::default()
    };
    nn::conv2d(path, inputs, outputs, 3, config)
}

fn batch(samples: i64) -> (Tensor, Tensor) {
    let (x, _) = super::super::batch(&[samples, 2, 8, 8], samples);
    let y = (x.narrow(1, 0, 1) * 3.0).sin();
    (x, y)
}
