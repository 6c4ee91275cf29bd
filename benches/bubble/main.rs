//! Compares the measured bubble with the simulated one and the closed form, for every schedule.
//! `cargo bench --no-default-features --bench bubble [-- FILTER]`; without `--no-default-features`, real
//! stages as well.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod cases;
#[path = "../engine_support/mod.rs"]
mod engine_support;
#[cfg(feature = "train")]
mod real;
#[path = "../report_support/mod.rs"]
mod report_support;

use std::cell::RefCell;
use std::time::Duration;

use cases::{Times, closed_form};
use criterion::{BenchmarkId, Criterion, SamplingMode};
use engine_support::{Rig, duration, makespan, replay, sleep_precisely};
use gpipe_partitioner::{CheckedSchedule, Costs, ScheduleKind, Shape, auto, simulate};
use report_support::{Report, median};
use serde::Serialize;

/// Criterion's minimum.
const SAMPLES: usize = 10;

/// Summary of a case's steps.
#[derive(Serialize)]
struct Row {
    stages: &'static str,
    times: String,
    schedule: &'static str,
    devices: usize,
    micro_batches: usize,
    /// Idle shares of device time.
    bubble_formula: Option<f64>,
    bubble_simulated: f64,
    bubble_measured: f64,
    simulated_ms: f64,
    /// Makespan over the simulated one, less 1: of the shortest step, and the median.
    best: f64,
    median: f64,
    /// Median makespan over a simulation with the measured durations, less 1: the cost of hand-overs.
    over_replay: f64,
    all_ms: Vec<f64>,
}

/// A step's measured, simulated and replayed makespan, and its idle share.
#[derive(Clone, Copy)]
struct Step {
    measured: Duration,
    simulated: Duration,
    replay: Duration,
    idle: f64,
}

impl Row {
    /// Returns `None` if the case was filtered out.
    fn new(steps: &[Step], about: Self) -> Option<Self> {
        let shares = |of: fn(&Step) -> Duration| -> Vec<f64> {
            let share = |step: &Step| step.measured.div_duration_f64(of(step)) - 1.0;
            steps.iter().map(share).collect()
        };
        let simulated = shares(|step| step.simulated);
        let milliseconds = |step: &Step| step.measured.as_secs_f64() * 1e3;
        Some(Self {
            bubble_measured: median(steps.iter().map(|step| step.idle).collect()),
            best: simulated.iter().copied().reduce(f64::min)?,
            median: median(simulated),
            over_replay: median(shares(|step| step.replay)),
            all_ms: steps.iter().map(milliseconds).collect(),
            ..about
        })
    }

    fn heading() {
        println!(
            "{:9}  {:10}  {:16}  {:>2}  {:>2}  {:>8}  {:>9}  {:>8}  {:>6}  {:>6}  {:>11}",
            "stages",
            "times",
            "schedule",
            "p",
            "m",
            "formula",
            "simulated",
            "measured",
            "best",
            "median",
            "over replay"
        );
    }

    fn print(&self) {
        let formula = self
            .bubble_formula
            .map_or("-".to_owned(), |share| format!("{:.2} %", 100.0 * share));
        println!(
            "{:9}  {:10}  {:16}  {:>2}  {:>2}  {:>8}  {:>7.2} %  {:>6.2} %  {:>6.2}  {:>6.2}  {:>11.2}",
            self.stages,
            self.times,
            self.schedule,
            self.devices,
            self.micro_batches,
            formula,
            100.0 * self.bubble_simulated,
            100.0 * self.bubble_measured,
            100.0 * self.best,
            100.0 * self.median,
            100.0 * self.over_replay,
        );
    }
}

/// The schedule as the engine runs it: overlapped pairs one after the other, each
/// result leaving at once.
fn schedule(
    kind: ScheduleKind,
    shape: Shape,
    times: Times,
    costs: &Costs,
) -> anyhow::Result<CheckedSchedule> {
    let schedule = match kind {
        ScheduleKind::Auto => auto(shape, costs, &[], None)?.schedule,
        kind => kind.generate(shape)?,
    };
    let plain = schedule.schedule().clone();
    let plain = plain.with_recomputes(|_, _| times == Times::Recomputing);
    Ok(plain.with_pairs(Vec::new()).check()?)
}

fn idle(events: &[Vec<gpipe::engine::ActionEvent>], span: Duration) -> f64 {
    let all = events.iter().flatten();
    let busy: Duration = all.map(|e| e.end.saturating_sub(e.start)).sum();
    1.0 - busy.as_secs_f64() / (span.as_secs_f64() * events.len() as f64)
}

/// One case over stages that wait for fixed times.
fn synthetic(c: &mut Criterion, kind: ScheduleKind, shape: Shape, times: Times) -> Option<Row> {
    let costs = times.costs(shape.stages());
    let schedule = schedule(kind, shape, times, &costs).unwrap();
    let paper = simulate(&schedule, &costs);
    let simulated = duration(paper.makespan());
    let mut rig = Rig::over(schedule, costs).unwrap();
    let steps = RefCell::new(Vec::new());
    let mut step = || {
        let events = rig.run().unwrap();
        let measured = makespan(&events);
        steps.borrow_mut().push(Step {
            measured,
            simulated,
            replay: replay(&events),
            idle: idle(&events, measured),
        });
        measured
    };
    let mut group = c.benchmark_group(format!("bubble/{}", times.name()));
    // One step per sample.
    group.sampling_mode(SamplingMode::Flat);
    group.measurement_time(simulated * (SAMPLES as u32 + 1));
    let id = BenchmarkId::new(
        kind.name(),
        format!("p{}/m{}", shape.devices, shape.micro_batches),
    );
    group.bench_function(id, |b| {
        b.iter_custom(|count| (0..count).map(|_| step()).sum());
    });
    group.finish();
    let about = Row {
        stages: "synthetic",
        times: times.name(),
        schedule: kind.name(),
        devices: shape.devices,
        micro_batches: shape.micro_batches,
        bubble_formula: matches!(times, Times::Equal(_))
            .then(|| closed_form(kind, shape))
            .flatten(),
        bubble_simulated: paper.timeline.bubble_fraction(),
        bubble_measured: 0.0,
        simulated_ms: simulated.as_secs_f64() * 1e3,
        best: 0.0,
        median: 0.0,
        over_replay: 0.0,
        all_ms: Vec::new(),
    };
    Row::new(&steps.into_inner(), about)
}

/// Every schedule over these devices and micro-batches.
fn grid(devices: &[usize], micro_batches: &[usize]) -> impl Iterator<Item = (ScheduleKind, Shape)> {
    let kinds = ScheduleKind::ALL.into_iter();
    kinds.flat_map(move |kind| {
        let shapes = devices.iter().flat_map(move |&p| {
            let shape = move |&m: &usize| Shape::new(p, m).with_chunks(kind.default_chunks());
            micro_batches.iter().map(shape)
        });
        shapes.map(move |shape| (kind, shape))
    })
}

/// Whether the process runs as a benchmark rather than as a test.
fn measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

fn main() -> anyhow::Result<()> {
    sleep_precisely();
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(1))
        .without_plots()
        .configure_from_args();
    let mut rows = Vec::new();
    let (devices, micro_batches): (&[usize], &[usize]) = if measuring() {
        (&[2, 4, 8], &[4, 8, 16, 32])
    } else {
        (&[2], &[4])
    };
    for times in [2000, 100].map(Times::Equal) {
        for (kind, shape) in grid(devices, micro_batches) {
            rows.extend(synthetic(&mut criterion, kind, shape, times));
        }
    }
    if measuring() {
        for times in [Times::Unequal, Times::Recomputing] {
            for (kind, shape) in grid(&[8], &[32]) {
                rows.extend(synthetic(&mut criterion, kind, shape, times));
            }
        }
    }
    let mut report = Report::new("bubble");
    #[cfg(feature = "train")]
    rows.extend(real::stages(&mut criterion, micro_batches, &mut report));
    criterion.final_summary();
    tell(&rows, &mut report);
    report.write()
}

/// Prints the table and records the claims: actions of 2 ms and 100 µs, eight devices, 32 micro-batches.
fn tell(rows: &[Row], report: &mut Report) {
    println!("Idle shares of device time; what steps take over the simulated time, in percent:");
    Row::heading();
    rows.iter().for_each(Row::print);
    for times in [2000, 100].map(Times::Equal) {
        let largest = |row: &&Row| row.times == times.name() && row.devices == 8;
        let claimed = rows.iter().filter(largest);
        let claimed = claimed.filter(|row| row.micro_batches == 32 && row.stages == "synthetic");
        if let Some(worst) = claimed.max_by(|a, b| a.median.total_cmp(&b.median)) {
            report.at_most(
                format!(
                    "a step over the simulation, actions of {}, p = 8, m = 32, worst schedule ({})",
                    worst.times, worst.schedule
                ),
                100.0 * worst.median,
                100.0 * times.limit(),
                "%",
            );
        }
    }
    rows.iter().for_each(|row| report.row(row));
}
