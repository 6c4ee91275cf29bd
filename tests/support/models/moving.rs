//! Layers that read buffers updated in their forward.

use gpipe::tch::{self, Kind, Tensor, nn};

use super::{Model, linear, weight};

const WIDTH: i64 = 8;

/// Vectors of eight features; each micro-batch sees the buffers left by earlier ones.
pub(crate) fn moving() -> Model {
    let batch = |samples| super::super::batch(&[samples, WIDTH], samples);
    let mut model = Model::new("moving buffers", batch, super::super::cross_entropy);
    for number in 0..2 {
        model = model
            .layer(format!("spectral.{number}"), spectral)
            .layer(format!("centred.{number}"), centred);
    }
    model = model
        .layer("linear", |path| {
            let linear = linear(path, WIDTH, WIDTH);
            Box::new(move |x, _| x.apply(&linear).tanh())
        })
        .layer("scaled", scaled)
        .layer("norm", |path| {
            let norm = nn::batch_norm1d(path, WIDTH, nn::BatchNormConfig::default());
            Box::new(move |x, pass| x.apply_t(&norm, pass.train() && x.size()[0] > 1))
        })
        .layer("head", |path| {
            let head = linear(path, WIDTH, 5);
            Box::new(move |x, _| x.apply(&head))
        });
    Model {
        whole: false,
        ..model
    }
}

fn unit(vector: &Tensor) -> Tensor {
    vector / vector.norm()
}

/// Divides its matrix by the largest singular value, tracked with one power iteration per forward.
fn spectral(path: &nn::Path<'_>) -> super::Forward {
    let matrix = weight(path, "weight", &[WIDTH, WIDTH]);
    let left = path.ones_no_train("left", &[WIDTH]);
    Box::new(move |x, pass| {
        if pass.train() {
            tch::no_grad(|| {
                let right = unit(&matrix.tr().mv(&left));
                left.shallow_clone().copy_(&unit(&matrix.mv(&right)));
            });
        }
        let left = left.copy();
        let right = tch::no_grad(|| unit(&matrix.tr().mv(&left)));
        let sigma = left.dot(&matrix.mv(&right));
        x.matmul(&(&matrix / sigma)) + x
    })
}

/// Subtracts a running mean, then updates it.
fn centred(path: &nn::Path<'_>) -> super::Forward {
    let shift = weight(path, "shift", &[WIDTH]);
    let mean = path.zeros_no_train("mean", &[WIDTH]);
    Box::new(move |x, pass| {
        let centred = (x - &mean) * (&shift + 1.0);
        if pass.train() {
            let own = x.detach().mean_dim(0, false, Kind::Float);
            tch::no_grad(|| mean.shallow_clone().copy_(&(&mean * 0.5 + own * 0.5)));
        }
        centred
    })
}

/// Multiplies by a running scale that it updates outside of autograd.
fn scaled(path: &nn::Path<'_>) -> super::Forward {
    let shift = weight(path, "shift", &[WIDTH]);
    let scale = path.ones_no_train("scale", &[1]);
    Box::new(move |x, pass| {
        if pass.train() {
            let own = x.detach().abs().mean(Kind::Float);
            let moved = &scale * 0.5 + (own + 1.0) * 0.5;
            scale.data().copy_(&moved);
        }
        (x + &shift) / scale.copy()
    })
}
