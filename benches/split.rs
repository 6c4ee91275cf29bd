//! Cost of a backward in two halves against a joint one, and of recomputation. See `benches/README.md`.

use std::process::ExitCode;

use gpipe::models::{Mlp, mlp};
use gpipe::partitioner::{Action, ActionKind, CheckedSchedule, Schedule, StageId};
use gpipe::tch::{Device, Kind, Reduction, Tensor};
use gpipe::{Pipeline, Sequential, layers::TransformerBlock};

const MICRO_BATCHES: usize = 8;
/// Pairs of steps, in turn; the ratio is taken pair by pair.
const PAIRS: usize = 60;
/// Highest ratio of the two halves to the joint backward.
const LIMIT: f64 = 1.15;

/// One stage: all forwards, then each micro-batch's backward in one or two actions.
fn schedule(backward: &[ActionKind]) -> CheckedSchedule {
    let forwards = (0..MICRO_BATCHES).map(|m| Action::new(0, ActionKind::Forward, m));
    let backwards =
        (0..MICRO_BATCHES).flat_map(|m| backward.iter().map(move |&kind| Action::new(0, kind, m)));
    Schedule::new(
        "split",
        1,
        MICRO_BATCHES,
        vec![forwards.chain(backwards).collect()],
    )
    .check()
    .expect("a forward and a backward for every micro-batch")
}

fn pipeline(model: Sequential, backward: &[ActionKind]) -> Pipeline {
    Pipeline::builder(model)
        .devices(&[Device::Cpu])
        .custom_schedule(schedule(backward))
        .threads_per_stage(1)
        .build()
        .expect("one stage holds any model")
}

/// Sums one step's actions of each kind; returns median microseconds.
fn step(pipe: &mut Pipeline, x: &Tensor, kinds: &[ActionKind]) -> f64 {
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let report = pipe
        .train_step(x, x.detach(), loss)
        .expect("a plain model trains");
    pipe.zero_grad().expect("the stage is alive");
    let numbers = report.read().expect("stages on the CPU have their numbers");
    let of = |kind: &ActionKind| numbers.timeline.median(StageId(0), *kind);
    kinds.iter().filter_map(of).map(|time| time.get()).sum()
}

fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| numbers[numbers.len() * quarter / 4])
}

/// The input requires a gradient, like that of every stage but the first.
fn compare(name: &str, model: &Sequential, x: &Tensor) -> bool {
    let joint = [ActionKind::Backward];
    let halves = [ActionKind::BackwardInput, ActionKind::BackwardWeight];
    let x = x.detach().set_requires_grad(true);
    let mut whole = pipeline(model.clone(), &joint);
    let mut split = pipeline(model.clone(), &halves);
    let (mut ratios, mut wholes, mut inputs, mut weights) = (vec![], vec![], vec![], vec![]);
    for pair in 0..PAIRS + 5 {
        let one = step(&mut whole, &x, &joint);
        let two = step(&mut split, &x, &halves);
        if pair >= 5 {
            ratios.push(two / one);
            wholes.push(one);
        }
        let input = step(&mut split, &x, &halves[..1]);
        inputs.push(input);
        weights.push(two - input);
    }
    let [low, median, high] = quartiles(ratios);
    let mid = |numbers| quartiles(numbers)[1];
    println!(
        "{name:<34} B {:>7.0} us, I {:>7.0} us, W {:>7.0} us; (I + W)/B {median:.3} [{low:.3}, {high:.3}]",
        mid(wholes),
        mid(inputs),
        mid(weights)
    );
    median <= LIMIT
}

fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

fn main() -> ExitCode {
    let mut within = true;
    for rows in [64, 256] {
        let sizes = Mlp {
            inputs: 512,
            hidden: 512,
            depth: 3,
            outputs: 512,
        };
        let x = random(&[rows * MICRO_BATCHES as i64, 512]);
        within &= compare(&format!("mlp 4 x 512, {rows} rows"), &mlp(sizes), &x);
    }
    let block =
        Sequential::new().try_layer("block", |path| TransformerBlock::new(path, 256, 4, 8, 0.0));
    for sequences in [1, 4] {
        let x = random(&[sequences * MICRO_BATCHES as i64, 128, 256]);
        within &= compare(
            &format!("block d 256, {sequences} x 128 tokens"),
            &block,
            &x,
        );
    }
    if within {
        return ExitCode::SUCCESS;
    }
    println!("a ratio is above {LIMIT}");
    ExitCode::FAILURE
}
