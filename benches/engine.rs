//! What the engine itself costs. `cargo bench --no-default-features --bench engine`
#![allow(missing_docs, clippy::unwrap_used)]

mod engine_support;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine_support::{Rig, log, makespan, replay, sleep_precisely};
use gpipe::engine::Event;
use gpipe_partitioner::{DeviceId, ScheduleKind};
use std::time::{Duration, Instant};

const MICROS: usize = 32;
const SCHEDULES: [ScheduleKind; 2] = [ScheduleKind::GPipe, ScheduleKind::OneFOneB];

/// Wall time of a step over stages that do nothing, per action.
fn cost_per_action(c: &mut Criterion) {
    let mut group = c.benchmark_group("cost per action");
    for kind in SCHEDULES {
        for p in [1, 2, 4, 8] {
            let mut rig = Rig::new(kind, p, MICROS, Duration::ZERO).unwrap();
            group.throughput(Throughput::Elements(rig.actions() as u64));
            let actions = rig.actions() as u32;
            group.bench_function(BenchmarkId::new(kind.name(), p), |b| {
                b.iter_custom(|steps| {
                    let start = Instant::now();
                    for _ in 0..steps {
                        rig.run().unwrap();
                    }
                    start.elapsed() / actions
                });
            });
        }
    }
    group.finish();
}

/// What a schedule of waiting stages takes beyond a replay on paper of the same
/// durations, per action on the longest chain. The shares over the replay and over
/// the simulation with the durations asked for go to standard output.
fn overhead(c: &mut Criterion) {
    sleep_precisely();
    let mut group = c.benchmark_group("overhead per critical action");
    for time in [100, 200, 2000].map(Duration::from_micros) {
        for kind in SCHEDULES {
            for p in [2, 4, 8] {
                let mut rig = Rig::new(kind, p, MICROS, time).unwrap();
                let mut shares = Shares::new(rig.simulated());
                let critical = rig.critical();
                let id = BenchmarkId::new(format!("{} {time:?}", kind.name()), p);
                group.bench_function(id, |b| {
                    b.iter_custom(|steps| {
                        let mut cost = |rig: &mut Rig| shares.add(&rig.run().unwrap());
                        (0..steps)
                            .map(|_| cost(&mut rig))
                            .sum::<Duration>()
                            .div_f64(critical)
                    });
                });
                if let Some(medians) = shares.medians() {
                    println!("{} p={p} {time:?}: {medians}", kind.name());
                }
            }
        }
    }
    group.finish();
}

/// Makespans beyond what was expected, as shares of it.
struct Shares {
    simulated: Duration,
    over_replay: Vec<f64>,
    over_simulation: Vec<f64>,
}

impl Shares {
    fn new(simulated: Duration) -> Self {
        Self {
            simulated,
            over_replay: Vec::new(),
            over_simulation: Vec::new(),
        }
    }

    /// Takes a step in and gives how much longer it was than its replay.
    fn add(&mut self, events: &[Vec<Event>]) -> Duration {
        let (measured, replay) = (makespan(events), replay(events));
        let share = |of: Duration| measured.as_secs_f64() / of.as_secs_f64() - 1.0;
        self.over_replay.push(share(replay));
        self.over_simulation.push(share(self.simulated));
        measured.saturating_sub(replay)
    }

    /// Nothing where the benchmark was filtered out.
    fn medians(&mut self) -> Option<String> {
        let [replay, simulation] = [&mut self.over_replay, &mut self.over_simulation].map(|all| {
            all.sort_by(f64::total_cmp);
            Some(100.0 * all.get(all.len() / 2)?)
        });
        let (replay, simulation) = (replay?, simulation?);
        Some(format!(
            "{replay:.2} % over its replay, {simulation:.2} % over the simulation"
        ))
    }
}

/// From the end of an action to the start of the one on the next device that
/// waited for it: asleep after a long wait, or busy until just before.
fn hand_over(c: &mut Criterion) {
    sleep_precisely();
    let mut group = c.benchmark_group("hand-over");
    for (name, wait) in [("awake", 20), ("asleep", 1000)] {
        let time = Duration::from_micros(wait);
        let mut rig = Rig::new(ScheduleKind::ForwardOnly, 2, 2, time).unwrap();
        group.bench_function(name, |b| {
            b.iter_custom(|steps| {
                let gap = |rig: &mut Rig| {
                    let events = rig.run().unwrap();
                    let (from, to) = (log(&events, DeviceId(0))[0], log(&events, DeviceId(1))[0]);
                    to.start.saturating_sub(from.end)
                };
                (0..steps).map(|_| gap(&mut rig)).sum()
            });
        });
    }
    group.finish();
}

/// A step with a single action per device: start and stop of everything.
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
    targets = cost_per_action, overhead, hand_over, start_and_stop
}
criterion_main!(engine);
