//! A balanced multi-layer perceptron over two stages against one: how much of
//! the speed-up that the schedule allows is reached. See `benches/README.md`.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gpipe::models::{Mlp, mlp};
use gpipe::tch::{Device, Kind, Reduction, Tensor};
use gpipe::{Pipeline, StepReport};

const WIDTH: i64 = 512;
const LAYERS: usize = 16;
const BATCH: i64 = 1024;
const MICRO_BATCHES: usize = 8;
const STAGES: usize = 2;
/// Pairs of steps of which the medians are taken.
const PAIRS: usize = 40;

fn pipeline(stages: usize) -> Pipeline {
    let sizes = Mlp {
        inputs: WIDTH,
        hidden: WIDTH,
        depth: LAYERS - 1,
        outputs: WIDTH,
    };
    let balance = vec![LAYERS / stages; stages];
    Pipeline::builder(mlp(sizes))
        .devices(&vec![Device::Cpu; stages])
        .balance(&balance)
        .micro_batches(MICRO_BATCHES)
        .threads_per_stage(1)
        .build()
        .expect("the balance covers the model")
}

/// One training step without the optimizer: what the schedule speaks of.
fn step(pipe: &mut Pipeline, x: &Tensor, y: &Tensor) -> StepReport {
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let report = pipe.train_step(x, y, loss).expect("a plain model trains");
    pipe.zero_grad().expect("the stages are alive");
    report
}

/// The input wants a gradient: without, the first layer's backward would be a
/// product shorter than the others', and the stages not equal.
fn data() -> (Tensor, Tensor) {
    let random = || Tensor::randn([BATCH, WIDTH], (Kind::Float, Device::Cpu));
    (random().set_requires_grad(true), random())
}

fn timed(pipe: &mut Pipeline, x: &Tensor, y: &Tensor) -> (Duration, StepReport) {
    let start = Instant::now();
    let report = step(pipe, x, y);
    (start.elapsed(), report)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Steps of both pipelines in turn, so that a machine whose speed drifts slows both.
fn speed_up(_: &mut Criterion) {
    let (x, y) = data();
    let (mut one, mut two) = (pipeline(1), pipeline(STAGES));
    for _ in 0..5 {
        step(&mut one, &x, &y);
        step(&mut two, &x, &y);
    }
    let (mut ratios, mut singles, mut doubles) = (Vec::new(), Vec::new(), Vec::new());
    let (mut measured, mut predicted) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let (single, _) = timed(&mut one, &x, &y);
        let (double, report) = timed(&mut two, &x, &y);
        ratios.push(single.as_secs_f64() / double.as_secs_f64());
        singles.push(single.as_secs_f64() * 1e3);
        doubles.push(double.as_secs_f64() * 1e3);
        measured.push(report.bubble_measured() * 100.0);
        predicted.push(report.bubble_predicted() * 100.0);
    }
    let ideal = (MICRO_BATCHES * STAGES) as f64 / (MICRO_BATCHES + STAGES - 1) as f64;
    let ratio = median(ratios);
    println!("two stages against one, {MICRO_BATCHES} micro-batches, one thread each:");
    println!(
        "  step      {:.1} ms against {:.1} ms",
        median(doubles),
        median(singles)
    );
    println!(
        "  speed-up  {ratio:.3} of {ideal:.3} possible: {:.1} %",
        ratio / ideal * 100.0
    );
    println!(
        "  bubble    {:.1} % measured, {:.1} % predicted",
        median(measured),
        median(predicted)
    );
}

fn steps(c: &mut Criterion) {
    let (x, y) = data();
    let mut group = c.benchmark_group("mlp_step");
    group.sample_size(20);
    for stages in [1, STAGES] {
        let mut pipe = pipeline(stages);
        group.bench_function(format!("stages_{stages}"), |b| {
            b.iter(|| step(&mut pipe, &x, &y))
        });
    }
    group.finish();
}

criterion_group!(benches, speed_up, steps);
criterion_main!(benches);
