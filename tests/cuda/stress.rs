//! Many steps with much concurrency: parallel pipelines, more streams than libtorch's pool has, captures
//! during other stages' work.
//!
//! `STRESS_STEPS` sets the number of steps of each test, such as 1,000.

use std::thread;

use gpipe::data::{Dataset, Made};
use gpipe::partitioner::{Bytes, ScheduleKind};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Optimizer, Pipeline, PipelineBuilder, Sequential, optim::AdamW};

use crate::harness::Test;
use crate::support::{cross_entropy, snapshot};

const GPU: Device = Device::Cuda(0);
const LAYERS: usize = 24;
const WIDTH: i64 = 24;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("stress::two_pipelines_share_their_cards", two_pipelines),
        ("stress::eight_entries_on_one_card", eight_entries),
        ("stress::more_streams_than_the_pool_has", many_streams),
        ("stress::captures_beside_other_stages_work", captures),
    ]
}

fn steps() -> usize {
    const USUAL: usize = 50;
    let asked = std::env::var("STRESS_STEPS").ok();
    asked.map_or(USUAL, |steps| steps.parse().unwrap())
}

/// Layers that differ, so that a mix-up changes the numbers.
fn model() -> Sequential {
    (0..LAYERS).fold(Sequential::new(), |model, number| {
        model.layer(format!("wide.{number}"), move |p| {
            let linear = nn::linear(p, WIDTH, WIDTH, nn::LinearConfig::default());
            let sharpness = 1.0 + number as f64 / 8.0;
            nn::func(move |x: &Tensor| (x.apply(&linear) * sharpness).tanh() + x)
        })
    })
}

fn builder(devices: &[Device]) -> PipelineBuilder {
    Pipeline::builder(model())
        .devices(devices)
        .micro_batches(4)
        .deterministic(true)
        .seed(11)
}

/// Batches of two sizes, the second not evenly divisible.
fn batch(step: usize) -> (Tensor, Tensor) {
    let samples = if step.is_multiple_of(5) { 7 } else { 8 };
    let x = Tensor::arange(samples * WIDTH, (Kind::Float, Device::Cpu)) + step as f64;
    let x = (x * 0.37).sin().view([samples, WIDTH]);
    let y = (Tensor::arange(samples, (Kind::Int64, Device::Cpu)) + step as i64).remainder(WIDTH);
    (x, y)
}

/// Losses of the steps by their bits, and the final weights.
type Trained = (Vec<u64>, Vec<(String, Tensor)>);

fn train(mut pipe: Pipeline, mut optimizer: Optimizer, steps: usize) -> Trained {
    // Numbers are read two steps later, so the host is ahead.
    let mut reports = Vec::new();
    for step in 0..steps {
        let (x, y) = batch(step);
        reports.push(pipe.train_step(&x, &y, cross_entropy).unwrap());
        pipe.clip_gradients(1.0).unwrap();
        optimizer.step(&mut pipe).unwrap();
        if step >= 2 {
            reports[step - 2].read().unwrap();
        }
    }
    let losses = reports.iter().map(|report| report.read().unwrap().loss);
    let losses = losses.map(f64::to_bits).collect();
    let values = snapshot(&mut pipe).into_iter();
    let values = values.map(|(name, value)| (name, value.to_device(Device::Cpu)));
    (losses, values.collect())
}

/// Trains with one stage on one device.
fn alone(steps: usize) -> Trained {
    train(builder(&[GPU]).build().unwrap(), adamw(), steps)
}

fn adamw() -> Optimizer {
    Optimizer::new(AdamW::default())
}

fn assert_same(expected: &Trained, trained: &Trained, case: &str) {
    let differs = expected.0.iter().zip(&trained.0).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{case}: the loss of this step");
    crate::support::assert_same_bits(&expected.1, &trained.1, case);
}

/// The second card, if there is one.
fn other_card() -> Device {
    Device::Cuda(gpipe::device::cuda_available().unwrap().min(2) - 1)
}

fn two_pipelines() {
    let steps = steps();
    let expected = alone(steps);
    let (one, other) = (GPU, other_card());
    let run = move |devices: Vec<Device>, schedule| {
        thread::spawn(move || {
            let pipe = builder(&devices).schedule(schedule).build().unwrap();
            train(pipe, adamw(), steps)
        })
    };
    let both = [
        run(vec![one, other], ScheduleKind::OneFOneB),
        run(vec![other, one, other], ScheduleKind::GPipe),
    ];
    for (number, trained) in both.into_iter().enumerate() {
        assert_same(
            &expected,
            &trained.join().unwrap(),
            &format!("pipeline {number}"),
        );
    }
}

fn eight_entries() {
    let steps = steps();
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let pipe = builder(&[GPU; 8]).schedule(schedule).build().unwrap();
        let trained = train(pipe, adamw(), steps / 2);
        assert_same(&alone(steps / 2), &trained, &schedule.to_string());
    }
}

/// Twelve entries, each with its own main stream and four more: the pool wraps around, so that streams meant
/// to be independent coincide.
fn many_streams() {
    let steps = steps();
    let devices: Vec<_> = [GPU, other_card()].into_iter().cycle().take(12).collect();
    let stages: Vec<_> = (0..12).collect();
    let pipe = builder(&devices)
        .offload(&stages)
        .offload_at_least(Bytes(1))
        .build()
        .unwrap();
    let trained = train(pipe, adamw().offload(true), steps);
    assert_same(&alone(steps), &trained, "offload everywhere");
}

/// The allocator forgets uses of other streams recorded during a graph capture: one stage captures while
/// others send, receive and free, a loader copies to the card, and another pipeline trains.
fn captures() {
    let steps = steps();
    let expected = alone(steps);
    let (one, other) = (GPU, other_card());
    let beside = thread::spawn(move || {
        let pipe = builder(&[one, other, one]).build().unwrap();
        train(pipe, adamw(), steps)
    });
    let loading = thread::spawn(move || {
        let items = Made::new(64, |item| {
            let (x, y) = batch(item);
            Ok((x.get(0), y.get(0)))
        });
        let batches = Dataset::new(items)
            .batch(8)
            .epochs((steps / 8) as u64)
            .to(one);
        for loaded in batches.load().unwrap() {
            let (x, _): (Tensor, Tensor) = loaded.unwrap();
            assert!(f64::try_from(x.abs().max()).unwrap() <= 1.0);
        }
    });
    // Short-lived pipelines, since each captures only in its first steps.
    for round in 0..steps.div_ceil(25) {
        let pipe = builder(&[one, one, other, one])
            .cuda_graphs(true)
            .build()
            .unwrap();
        let (losses, _) = train(pipe, adamw(), 25.min(steps));
        assert_eq!(losses, expected.0[..losses.len()], "round {round}");
    }
    assert_same(&expected, &beside.join().unwrap(), "beside captures");
    loading.join().unwrap();
}
