//! A transformer that uses tch's own dropout.

use gpipe::tch::{Kind, Tensor, nn};

use super::{Forward, Model, Pass, Plainly, linear, token_loss};

const WIDTH: i64 = 8;
const HEADS: i64 = 2;

/// A projection, three blocks of two layers, a head; with dropout `p` in the usual places.
pub(crate) fn transformer(p: f64) -> Model {
    let name = if p > 0.0 {
        "transformer with dropout"
    } else {
        "transformer"
    };
    let mut model = Model::new(name, batch, token_loss).layer("input", move |path| {
        let input = linear(path, 5, WIDTH);
        Box::new(move |x, pass| x.apply(&input).dropout(p, pass.train()))
    });
    for number in 0..3 {
        model = model
            .layer(format!("block.{number}.attention"), move |path| {
                attention(path, p)
            })
            .layer(format!("block.{number}.feed"), move |path| feed(path, p));
    }
    let model = model.layer("head", |path| {
        let (norm, head) = (norm(&(path / "norm")), linear(&(path / "out"), WIDTH, 7));
        Box::new(move |x, _| x.apply(&norm).apply(&head))
    });
    if p > 0.0 {
        Model {
            plainly: Plainly::Not,
            whole: false,
            ..model
        }
    } else {
        model
    }
}

fn feed(path: &nn::Path<'_>, p: f64) -> Forward {
    let norm = norm(&(path / "norm"));
    let up = linear(&(path / "up"), WIDTH, 2 * WIDTH);
    let down = linear(&(path / "down"), 2 * WIDTH, WIDTH);
    Box::new(move |x, pass: &dyn Pass| {
        let fed = x.apply(&norm).apply(&up).gelu("tanh").apply(&down);
        x + fed.dropout(p, pass.train())
    })
}

/// Causal attention, with dropout on the weights and on the residual.
fn attention(path: &nn::Path<'_>, p: f64) -> Forward {
    let norm = norm(&(path / "norm"));
    let qkv = linear(&(path / "qkv"), WIDTH, 3 * WIDTH);
    let out = linear(&(path / "out"), WIDTH, WIDTH);
    Box::new(move |x, pass: &dyn Pass| {
        let (samples, time, _) = x.size3().unwrap();
        let parts = x
            .apply(&norm)
            .apply(&qkv)
            .view([samples, time, 3, HEADS, WIDTH / HEADS])
            .permute([2, 0, 3, 1, 4])
            .unbind(0);
        let future = Tensor::ones([time, time], (Kind::Bool, x.device())).triu(1);
        let weights = (parts[0].matmul(&parts[1].transpose(-2, -1)) * 0.5)
            .masked_fill(&future, f64::NEG_INFINITY)
            .softmax(-1, None::<Kind>)
            .dropout(p, pass.train());
        let mixed = weights.matmul(&parts[2]).transpose(1, 2);
        let mixed = mixed.reshape([samples, time, WIDTH]).apply(&out);
        x + mixed.dropout(p, pass.train())
    })
}

fn norm(path: &nn::Path<'_>) -> nn::LayerNorm {
    nn::layer_norm(path, vec![WIDTH], nn::LayerNormConfig::default())
}

fn batch(samples: i64) -> (Tensor, Tensor) {
    let (x, _) = super::super::batch(&[samples, 4, 5], samples);
    let y = Tensor::arange(samples * 4, (Kind::Int64, gpipe::tch::Device::Cpu)) * 5;
    (x, y.remainder(7).view([samples, 4]))
}
