//! Overhead of the engine itself. `cargo bench --no-default-features --bench engine`
#![allow(missing_docs, clippy::unwrap_used)]

mod engine_support;
mod report_support;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine_support::{Rig, log, sleep_precisely};
use gpipe::engine::ActionEvent;
use gpipe_partitioner::{DeviceId, ScheduleKind};
use report_support::{Report, median};
use std::time::{Duration, Instant};

const SCHEDULES: [ScheduleKind; 2] = [ScheduleKind::GPipe, ScheduleKind::OneFOneB];

/// Wall time of a step over stages that do nothing, per action.
fn cost_per_action(c: &mut Criterion) {
    let mut group = c.benchmark_group("cost per action");
    let mut worst: f64 = 0.0;
    for kind in SCHEDULES {
        for (p, m) in [(1, 32), (2, 32), (4, 32), (8, 32), (2, 4), (2, 256)] {
            let mut rig = Rig::new(kind, p, m, Duration::ZERO).unwrap();
            group.throughput(Throughput::Elements(rig.actions() as u64));
            let actions = rig.actions() as u32;
            let mut all = Vec::new();
            group.bench_function(BenchmarkId::new(kind.name(), format!("p{p}/m{m}")), |b| {
                b.iter_custom(|steps| {
                    let start = Instant::now();
                    for _ in 0..steps {
                        rig.run().unwrap();
                    }
                    let taken = start.elapsed() / actions;
                    all.push(taken.as_secs_f64() * 1e6 / steps as f64);
                    taken
                });
            });
            if m == 32 && !all.is_empty() {
                worst = worst.max(median(all));
            }
        }
    }
    group.finish();
    let mut report = Report::new("engine");
    report.at_most(
        "the engine's own cost per action, m = 32, worst of p = 1, 2, 4, 8",
        worst,
        10.0,
        "us",
    );
    report.write().unwrap();
}

/// Time from the moment an action is ready (input available, device free) to its start, for devices that
/// slept until then and for devices that were busy.
fn hand_over(c: &mut Criterion) {
    sleep_precisely();
    let mut group = c.benchmark_group("hand-over");
    let cases = [
        ("awake", 20, 2, 2),
        ("awake", 20, 2, 32),
        ("asleep", 1000, 2, 1),
        ("asleep", 1000, 4, 1),
        ("asleep", 1000, 8, 1),
    ];
    for (name, wait, p, m) in cases {
        let time = Duration::from_micros(wait);
        let mut rig = Rig::new(ScheduleKind::ForwardOnly, p, m, time).unwrap();
        group.bench_function(BenchmarkId::new(name, format!("p{p}/m{m}")), |b| {
            b.iter_custom(|steps| (0..steps).map(|_| gap(&rig.run().unwrap())).sum());
        });
    }
    group.finish();
}

/// Mean over all hand-overs of a forward-only step.
fn gap(events: &[Vec<ActionEvent>]) -> Duration {
    let mut gaps = Vec::new();
    for device in 1..events.len() {
        let [before, own] = [device - 1, device].map(|d| log(events, DeviceId(d)));
        for (micro, (made, taken)) in before.iter().zip(own).enumerate() {
            let free = micro
                .checked_sub(1)
                .map_or(Duration::ZERO, |last| own[last].end);
            gaps.push(taken.start.saturating_sub(made.end.max(free)));
        }
    }
    gaps.iter().sum::<Duration>() / gaps.len().max(1) as u32
}

/// Sends values for every micro-batch into the engine and out again: the marginal time per micro-batch of a
/// step through stages that do nothing.
fn scatter_and_gather(c: &mut Criterion) {
    let mut group = c.benchmark_group("scatter and gather");
    for p in [1, 2] {
        for m in [8, 64, 512] {
            let mut rig = Rig::new(ScheduleKind::ForwardOnly, p, m, Duration::ZERO).unwrap();
            group.bench_function(BenchmarkId::new(format!("values, p{p}"), m), |b| {
                b.iter_custom(|steps| {
                    let start = Instant::now();
                    for _ in 0..steps {
                        rig.run().unwrap();
                    }
                    start.elapsed() / m as u32
                });
            });
        }
    }
    #[cfg(feature = "torch")]
    tensors(&mut group);
    group.finish();
}

/// Like `scatter_and_gather`, for a batch that is split, passes a no-op layer and is concatenated again.
#[cfg(feature = "torch")]
fn tensors(group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>) {
    use gpipe::tch::{Device, Kind, Tensor, nn};
    let x = Tensor::zeros([1024, 16], (Kind::Float, Device::Cpu));
    for p in [1, 2] {
        for m in [8, 64, 512] {
            let model =
                gpipe::Sequential::new().layers("same", p, |_, _| nn::func(|x| x.shallow_clone()));
            let mut pipe = gpipe::Pipeline::new(model, &vec![Device::Cpu; p], m).unwrap();
            group.bench_function(BenchmarkId::new(format!("tensors, p{p}"), m), |b| {
                b.iter_custom(|steps| {
                    let start = Instant::now();
                    for _ in 0..steps {
                        drop(pipe.forward(&x).unwrap());
                    }
                    start.elapsed() / m as u32
                });
            });
        }
    }
}

/// A step with a single action per device: start-up and shutdown overhead.
fn start_and_stop(c: &mut Criterion) {
    let mut group = c.benchmark_group("step start and stop");
    for p in [1, 2, 4, 8] {
        let mut rig = Rig::new(ScheduleKind::ForwardOnly, p, 1, Duration::ZERO).unwrap();
        group.bench_function(BenchmarkId::new("step", p), |b| {
            b.iter(|| rig.run().unwrap());
        });
        group.bench_function(BenchmarkId::new("job on each", p), |b| {
            b.iter(|| rig.engine.on_each(|_, _| Ok(())).unwrap());
        });
    }
    group.finish();
}

fn configuration() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
}

criterion_group! {
    name = engine;
    config = configuration();
    targets = cost_per_action, hand_over, scatter_and_gather, start_and_stop
}
criterion_main!(engine);
