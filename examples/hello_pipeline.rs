//! A model over two stages, trained on a made-up problem, with the timeline of
//! its last step. Run with `cargo run --release --example hello_pipeline`.

use gpipe::partitioner::render;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Optimizer, Pipeline, Sequential, optim::AdamW};

fn main() -> anyhow::Result<()> {
    let linear = |p: &nn::Path<'_>, _: usize| {
        nn::seq()
            .add(nn::linear(p, 256, 256, nn::LinearConfig::default()))
            .add_fn(|x| x.tanh())
    };
    let model = Sequential::new()
        .layers("hidden", 8, linear)
        .layer("head", |p| {
            nn::linear(p, 256, 10, nn::LinearConfig::default())
        });

    let mut pipe = Pipeline::new(model, &[Device::Cpu, Device::Cpu], 4)?;
    let mut optimizer = Optimizer::new(AdamW::default());

    // Which of the first ten features is largest?
    let x = Tensor::randn([512, 256], (Kind::Float, Device::Cpu));
    let y = x.narrow(1, 0, 10).argmax(1, false);
    for step in 1..=60 {
        let report = pipe.train_step(&x, &y, Tensor::cross_entropy_for_logits)?;
        optimizer.step(&mut pipe)?;
        if step % 20 == 0 {
            println!("step {step:>2}: loss {:.4}", report.read()?.loss);
        }
        if step == 60 {
            println!("\n{}", render::text(&report.read()?.timeline, 100));
        }
    }
    Ok(())
}
