//! A plain multi-layer perceptron.

use tch::nn;

use gpipe_torch::Sequential;

/// Sizes of an [`mlp`] model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mlp {
    /// Input features.
    pub inputs: i64,
    /// Features per hidden layer.
    pub hidden: i64,
    /// Number of hidden layers.
    pub depth: usize,
    /// Output features.
    pub outputs: i64,
}

/// Makes a model of `depth` + 1 layers: `hidden.0` … (linear, then `ReLU`), `head` (linear).
///
/// *Shapes*: `[batch, inputs]` to `[batch, outputs]`.
pub fn mlp(sizes: Mlp) -> Sequential {
    let Mlp {
        inputs,
        hidden,
        depth,
        outputs,
    } = sizes;
    let width = move |number: usize| if number == 0 { inputs } else { hidden };
    Sequential::new()
        .layers("hidden", depth, move |p, number| {
            nn::seq()
                .add(nn::linear(
                    p,
                    width(number),
                    hidden,
                    nn::LinearConfig::default(),
                ))
                .add_fn(|xs| xs.relu())
        })
        .layer("head", move |p| {
            nn::linear(p, width(depth), outputs, nn::LinearConfig::default())
        })
}
