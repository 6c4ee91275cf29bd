//! A custom training run: only model, data and loss are defined here. Ctrl-C saves it and stops.
//! `cargo run --release --example own_training -- runs/waves 1000` trains; `--resume` behind it goes on.

use gpipe::data::{Dataset, Made};
use gpipe::partitioner::{Machine, PlanOptions, plan};
use gpipe::profile::{ProfileOptions, Sample, profile};
use gpipe::tch::{Device, Reduction, Tensor, nn};
use gpipe::train::{LogLines, Trainer};
use gpipe::{Optimizer, Pipeline, Sequential, optim::AdamW, optim::LrSchedule};

/// A time as seen by eight waves, and the chord that they play then.
fn waves(item: usize) -> anyhow::Result<(Tensor, Tensor)> {
    let wave = |i: usize| (item as f32 * [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28][i]).sin();
    let all: Vec<f32> = (0..8).map(wave).collect();
    let chord = wave(0) * wave(3) + wave(1) * wave(5);
    Ok((Tensor::f_from_slice(&all)?, Tensor::f_from_slice(&[chord])?))
}

fn main() -> anyhow::Result<()> {
    let args = std::env::args().skip(1);
    let (resume, args): (Vec<_>, Vec<_>) = args.partition(|arg| arg == "--resume");
    let folder = args.first().map_or("runs/waves", String::as_str);
    let steps: usize = args.get(1).map_or(Ok(1000), |steps| steps.parse())?;

    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    let hidden = move |p: &nn::Path<'_>, _| nn::seq().add_fn(Tensor::tanh).add(linear(p, 64, 64));
    let model = Sequential::new()
        .layer("in", move |p| linear(p, 8, 64))
        .layers("hidden", 6, hidden)
        .layer("out", move |p| linear(p, 64, 1));
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let train = Dataset::new(Made::new(8000, waves)).shuffle(usize::MAX, 1);
    let held_out = Dataset::new(Made::new(1000, |item| waves(8000 + item)));

    let (devices, (x, y)) = ([Device::Cpu; 2], waves(0)?);
    let sample = Sample::new(x.repeat([16, 1])).with_loss(y.repeat([16, 1]), loss);
    let measured = profile(&model, &sample, &ProfileOptions::new(&devices).quick())?;
    let mut options = PlanOptions::new(Machine::new(devices.len())?);
    (options.batch, options.micro_batches) = (Some(64), Some(4));
    let plan = plan(&measured.profile, &options)?;

    let pipe = Pipeline::builder(model).devices(&devices).plan(&plan)?;
    let mut pipe = pipe.threads_per_stage(1).build()?;
    let mut optimizer = Optimizer::new(AdamW::default());
    let outcome = Trainer::builder(&mut pipe, &mut optimizer, train.batch(64).endless(), loss)
        .steps(steps)
        .lr(LrSchedule::inverse_sqrt(3e-3)?.warm_up(100)?)
        .held_out(held_out.batch(100))
        .plan(plan)
        .report(format!("{folder}-report.html"))
        .hook(LogLines::stderr(100))
        .stop_on_signals()
        .folder(folder)
        .resume(!resume.is_empty())
        .build()?
        .run()?;
    println!("{outcome}");
    Ok(outcome.files?)
}
