//! Every verb of `gpipe-rs` for a model of your own. Run with
//! `cargo run --release --example own_model_cli -- profile --model tower --width 256`.

use gpipe::models::zoo::{Entry, Instance, Settings, Synthetic};
use gpipe::tch::{Reduction, Tensor, nn};
use gpipe::{Sequential, cli};

/// Predicts one number from 64: the layers, the inputs, and the loss.
fn tower(sizes: &Settings) -> anyhow::Result<Instance> {
    let (width, depth) = (sizes.count("width"), sizes.number("depth"));
    anyhow::ensure!(width >= 4, "width {width} is below 4");
    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    let model = Sequential::new()
        .layer("in", move |p| linear(p, 64, width))
        .layers("floor", depth, move |p, _| {
            let inner = linear(p, width, width);
            nn::func(move |x| x + x.relu().apply(&inner))
        })
        .layer("out", move |p| linear(p, width, 1));
    let loss = |out: &Tensor, wanted: &Tensor| out.mse_loss(wanted, Reduction::Mean);
    let (input, target) = (Synthetic::normal([64]), Synthetic::uniform([1]));
    Ok(Instance::new(model, input, target, loss))
}

fn main() -> std::process::ExitCode {
    cli::run(|zoo| {
        let entry = Entry::new("tower", tower).about("linear layers with residuals");
        let entry = entry.count("width", 128, "features of a floor");
        zoo.add(entry.layers("depth", 8, "floors"))
    })
}
