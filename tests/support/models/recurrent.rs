//! Weights that are used more than once in depth: a pass over the weights alone must count each use exactly
//! once.

use gpipe::tch::nn::{self, RNN};
use gpipe::tch::{Tensor, nn::Module};

use super::{Model, linear, weight};

/// Sequences `[sample, time, feature]` through layers that use their weights
/// several times in one pass.
pub(crate) fn recurrent() -> Model {
    Model::new("recurrent", batch, super::super::cross_entropy)
        .layer("input", |path| {
            let input = linear(path, 6, 8);
            Box::new(move |x, _| x.apply(&input))
        })
        .layer("twice", |path| {
            let same = linear(path, 8, 8);
            Box::new(move |x, _| x.apply(&same).tanh().apply(&same) + x)
        })
        .layer("cell", |path| {
            let (from_input, from_state) =
                (linear(&(path / "x"), 8, 8), linear(&(path / "h"), 8, 8));
            Box::new(move |x, _| {
                unrolled(x, |input, state| {
                    (input.apply(&from_input) + state.apply(&from_state)).tanh()
                })
            })
        })
        .layer("lstm", |path| {
            let config = nn::RNNConfig {
                num_layers: 2,
                ..nn::RNNConfig::default()
            };
            let lstm = nn::lstm(path, 8, 8, config);
            Box::new(move |x, _| lstm.seq(x).0)
        })
        .layer("gru", |path| {
            let config = nn::RNNConfig {
                bidirectional: true,
                ..nn::RNNConfig::default()
            };
            let gru = nn::gru(path, 8, 4, config);
            Box::new(move |x, _| gru.seq(x).0)
        })
        // One tensor computed from parameters, used three times; and the weight itself.
        .layer("normed", |path| {
            let direction = weight(path, "direction", &[8, 8]);
            let length = path.ones("length", &[8, 1]);
            Box::new(move |x, _| {
                let matrix = &length * &direction / (direction.square().sum(None) + 1.0).sqrt();
                (0..3).fold(x.shallow_clone(), |x, _| {
                    x.matmul(&matrix.tr()).tanh() + &x * 0.5
                })
            })
        })
        // Back and forth through one matrix, and a gated cell.
        .layer("gated", |path| {
            let matrix = weight(path, "matrix", &[8, 8]);
            let gate = linear(&(path / "gate"), 8, 8);
            Box::new(move |x, _| {
                unrolled(x, |input, state| {
                    let open = gate.forward(&(input + state)).sigmoid();
                    let proposed = input.matmul(&matrix).tanh().matmul(&matrix.tr());
                    &open * proposed + (1.0 - &open) * state
                })
            })
        })
        .layer("head", |path| {
            let head = linear(path, 8, 5);
            Box::new(move |x, _| x.select(1, -1).apply(&head))
        })
}

/// Runs a cell over the time steps by hand; returns all its states.
fn unrolled(x: &Tensor, cell: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let mut state = x.select(1, 0).zeros_like();
    let mut states = Vec::new();
    for time in 0..x.size()[1] {
        state = cell(&x.select(1, time), &state);
        states.push(state.shallow_clone());
    }
    Tensor::stack(&states, 1)
}

fn batch(samples: i64) -> (Tensor, Tensor) {
    super::super::batch(&[samples, 3, 6], samples)
}
