//! Steps in a row without a barrier between them: the steady state's bubble, measured and simulated, over
//! stages that wait for a fixed time; and, unless built with `--no-default-features`, the gain of real stages
//! over steps with a barrier.
//! `cargo bench [--no-default-features] --bench steps [-- FILTER]`
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../engine_support/mod.rs"]
mod engine_support;
#[cfg(feature = "train")]
#[path = "../peers/worker/layers.rs"]
mod layers;
#[cfg(feature = "train")]
#[path = "../peers/worker/numbers.rs"]
mod numbers;
#[cfg(feature = "train")]
mod real;
#[path = "../report_support/mod.rs"]
mod report_support;
#[cfg(feature = "train")]
#[allow(dead_code, reason = "the workers use the rest")]
#[path = "../peers/worker/workloads.rs"]
mod workloads;

use engine_support::{Rig, sleep_precisely};
use gpipe_partitioner::{
    CheckedSchedule, Costs, Micros, ScheduleKind, Shape, auto_in_a_row, simulate,
};
use report_support::{Report, median};
use serde::Serialize;

/// Steps in a row.
const STEPS: usize = 20;
const SAMPLES: usize = 3;
/// Duration of an action.
const ACTION_US: f64 = 2000.0;

/// A case and its results.
#[derive(Serialize)]
struct Row {
    schedule: String,
    devices: usize,
    micro_batches: usize,
    /// Idle shares of device time: of a step with a barrier, and in the steady state.
    alone_simulated: f64,
    steady_simulated: f64,
    steady_measured: f64,
    simulated_ms: f64,
    measured_ms: f64,
    all: Vec<f64>,
}

impl Row {
    /// Excess of the measured time of all steps over the simulated one.
    fn over(&self) -> f64 {
        self.measured_ms / self.simulated_ms - 1.0
    }

    /// Whether there are enough micro-batches to fill the pipeline: only then can a schedule be free of
    /// bubbles.
    fn fills(&self) -> bool {
        self.micro_batches + 1 >= 2 * self.devices
    }
}

/// Whether the process runs as a benchmark rather than as a test.
fn measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether a case of this name is selected.
fn wanted(name: &str) -> bool {
    let mut filters = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    let first = filters.next();
    first.is_none_or(|filter| name.contains(&filter))
}

fn costs(shape: Shape) -> Costs {
    let time = Micros::new(ACTION_US).unwrap();
    Costs::uniform(shape.stages(), time, time, time)
}

fn schedule(kind: ScheduleKind, shape: Shape) -> anyhow::Result<CheckedSchedule> {
    Ok(match kind {
        ScheduleKind::Auto => auto_in_a_row(shape, &costs(shape), &[], None, STEPS)?.schedule,
        kind => kind.generate(shape)?,
    })
}

fn synthetic(kind: ScheduleKind, shape: Shape, steps: usize) -> anyhow::Result<Row> {
    let step = schedule(kind, shape)?;
    let name = match kind {
        ScheduleKind::Auto => format!("auto, v = {} ({})", shape.chunks, step.schedule().name()),
        kind => kind.name().to_owned(),
    };
    let costs = costs(shape);
    let alone = simulate(&step, &costs).timeline.bubble_fraction();
    let paper = simulate(&step.schedule().in_a_row(steps).check()?, &costs).timeline;
    let mut rig = Rig::over(step, costs)?;
    let (mut measured, mut bubbles) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let timeline = rig.in_a_row(steps)?;
        measured.push(timeline.makespan().get() / 1e3);
        bubbles.push(timeline.steady_bubble(steps).unwrap_or(f64::NAN));
    }
    Ok(Row {
        schedule: name,
        devices: shape.devices,
        micro_batches: shape.micro_batches,
        alone_simulated: alone,
        steady_simulated: paper.steady_bubble(steps).unwrap_or(f64::NAN),
        steady_measured: median(bubbles),
        simulated_ms: paper.makespan().get() / 1e3,
        measured_ms: median(measured.clone()),
        all: measured,
    })
}

fn main() -> anyhow::Result<()> {
    sleep_precisely();
    let mut report = Report::new("steps");
    let mut rows = Vec::new();
    let (devices, micros, steps): (&[usize], &[usize], usize) = if measuring() {
        (&[4, 8], &[8, 32], STEPS)
    } else {
        (&[2], &[4], 4)
    };
    let kinds = [
        (ScheduleKind::ZbH1, 1),
        (ScheduleKind::ZbH2, 1),
        (ScheduleKind::Zbv, 2),
        (ScheduleKind::Auto, 1),
        (ScheduleKind::Auto, 2),
    ];
    println!("{STEPS} steps in a row, actions of 2 ms; idle shares of device time:");
    println!(
        "schedule                     p   m  a step alone, steady simulated, measured, over simulation"
    );
    for &p in devices {
        for &m in micros {
            for (kind, chunks) in kinds {
                if !wanted(&format!("synthetic/{}/p{p}/m{m}", kind.name())) {
                    continue;
                }
                let row = synthetic(kind, Shape::new(p, m).with_chunks(chunks), steps)?;
                println!(
                    "{:26} {:>3} {:>3} {:>11.2} % {:>15.2} % {:>7.2} % {:>13.2} %",
                    row.schedule,
                    p,
                    m,
                    100.0 * row.alone_simulated,
                    100.0 * row.steady_simulated,
                    100.0 * row.steady_measured,
                    100.0 * row.over(),
                );
                rows.push(row);
            }
        }
    }
    claims(&rows, &mut report);
    rows.iter().for_each(|row| report.row(row));
    #[cfg(feature = "train")]
    if measuring() {
        real::measure(&mut report)?;
    }
    report.write()
}

fn claims(rows: &[Row], report: &mut Report) {
    let free = rows
        .iter()
        .filter(|row| row.fills() && row.schedule != "zb-h1");
    if let Some(worst) = free.max_by(|a, b| a.steady_measured.total_cmp(&b.steady_measured)) {
        report.at_most(
            format!(
                "idle in the steady state, actions of 2 ms, m at least 2p - 1, worst of zb-h2, zbv and \
                 computed schedules ({}, p = {}, m = {})",
                worst.schedule, worst.devices, worst.micro_batches
            ),
            100.0 * worst.steady_measured,
            1.5,
            "%",
        );
    }
    if let Some(worst) = rows.iter().max_by(|a, b| a.over().total_cmp(&b.over())) {
        report.at_most(
            format!(
                "steps in a row over the simulation, actions of 2 ms, worst ({}, p = {}, m = {})",
                worst.schedule, worst.devices, worst.micro_batches
            ),
            100.0 * worst.over(),
            2.0,
            "%",
        );
    }
}
