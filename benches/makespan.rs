//! Whether steps take as long as the simulation says, for every schedule.
//! `cargo bench --no-default-features --bench makespan [-- NAME…]`
#![allow(missing_docs, clippy::unwrap_used)]

mod engine_support;

use anyhow::{Context as _, bail};
use engine_support::{Rig, makespan, replay, sleep_precisely};
use gpipe_partitioner::{Costs, Kind, Micros, ScheduleKind, Shape, StageId, auto};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

const DEVICES: usize = 8;
const MICRO_BATCHES: usize = 32;

/// How much longer than on paper a step may be, for actions of 2 ms and more.
const LIMIT: f64 = 0.02;

/// How often a schedule is run, of which the shortest step counts: the machine is
/// never faster than it is, but other work on it makes steps longer.
#[derive(Clone, Copy)]
struct Steps {
    least: usize,
    /// Where the shortest step is still beyond the limit.
    most: usize,
}

/// How long actions take.
struct Case {
    name: &'static str,
    costs: fn(usize) -> Costs,
    /// Whether every backward comes after an `R`.
    recomputes: bool,
    /// Whether `LIMIT` is to hold.
    claim: bool,
    steps: Steps,
}

const CASES: [Case; 4] = [
    Case {
        name: "equal",
        costs: |stages| equal(stages, 2000.0),
        recomputes: false,
        claim: true,
        steps: Steps { least: 5, most: 25 },
    },
    Case {
        name: "unequal",
        costs: |stages| unequal(stages, 2000.0),
        recomputes: false,
        claim: true,
        steps: Steps { least: 5, most: 25 },
    },
    Case {
        name: "with R",
        costs: |stages| unequal(stages, 2000.0),
        recomputes: true,
        claim: true,
        steps: Steps { least: 5, most: 25 },
    },
    Case {
        name: "short",
        costs: |stages| equal(stages, 100.0),
        recomputes: false,
        claim: false,
        steps: Steps {
            least: 25,
            most: 25,
        },
    },
];

fn micros(micros: f64) -> Micros {
    Micros::new(micros).unwrap_or_default()
}

/// F, I and W take `time`, B twice as long.
fn equal(stages: usize, time: f64) -> Costs {
    Costs::uniform(stages, micros(time), micros(time), micros(time))
}

/// Another time for every stage and kind, at least `time`.
fn unequal(stages: usize, time: f64) -> Costs {
    let kinds = Kind::ALL.into_iter().enumerate();
    let places = kinds.flat_map(|(k, kind)| (0..stages).map(move |stage| (k, kind, stage)));
    let times = places.map(|(k, kind, stage)| {
        // All residues of 23, so that hardly two actions end at the same time.
        let more = (7 * stage + 11 * k) % 23;
        (
            StageId(stage),
            kind,
            micros(time * (1.0 + more as f64 / 20.0)),
        )
    });
    times.fold(equal(stages, time), |costs, (stage, kind, time)| {
        costs.with_time(stage, kind, time)
    })
}

/// The schedule as the engine runs it: overlapped pairs one after the other, each
/// result leaving at once.
fn rig(kind: ScheduleKind, micros: usize, case: &Case) -> anyhow::Result<Rig> {
    let shape = Shape::new(DEVICES, micros).with_chunks(kind.default_chunks());
    let costs = (case.costs)(shape.stages());
    let schedule = match kind {
        ScheduleKind::Auto => auto(shape, &costs, &[], None)?.schedule,
        kind => kind.generate(shape)?,
    };
    let plain = schedule.schedule().clone();
    let plain = plain.with_recomputes(|_, _| case.recomputes);
    Rig::over(plain.with_pairs(Vec::new()).check()?, costs)
}

/// What a schedule's steps came to. Shares are of the simulated makespan.
#[derive(Serialize)]
struct Row {
    case: &'static str,
    schedule: &'static str,
    actions: usize,
    simulated_ms: f64,
    /// The shortest step.
    best_ms: f64,
    best_over_simulation: f64,
    median_over_simulation: f64,
    /// Of the shortest step, over paper with the durations that its actions really
    /// had: what is left is the engine's.
    best_over_replay: f64,
    all_ms: Vec<f64>,
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn measure(kind: ScheduleKind, case: &Case, micros: usize, steps: Steps) -> anyhow::Result<Row> {
    let mut rig = rig(kind, micros, case)?;
    let simulated = rig.simulated();
    let (mut runs, mut beyond) = (Vec::new(), true);
    while runs.len() < steps.least || (beyond && runs.len() < steps.most) {
        let events = rig.run()?;
        let measured = makespan(&events);
        beyond &= measured.div_duration_f64(simulated) > 1.0 + LIMIT;
        runs.push((measured, replay(&events)));
    }
    let over = |measured: Duration, paper: Duration| measured.div_duration_f64(paper) - 1.0;
    let all_ms: Vec<f64> = runs.iter().map(|run| milliseconds(run.0)).collect();
    runs.sort();
    let (best, replay) = *runs.first().context("no steps")?;
    Ok(Row {
        case: case.name,
        schedule: kind.name(),
        actions: rig.actions(),
        simulated_ms: milliseconds(simulated),
        best_ms: milliseconds(best),
        best_over_simulation: over(best, simulated),
        median_over_simulation: over(runs[runs.len() / 2].0, simulated),
        best_over_replay: over(best, replay),
        all_ms,
    })
}

fn heading() {
    println!(
        "{:8}  {:16}  {:>7}  {:>12}  {:>12}  {:>7}  {:>8}  {:>11}  {:>5}",
        "times",
        "schedule",
        "actions",
        "simulated",
        "best",
        "gap",
        "median",
        "over replay",
        "steps"
    );
}

impl Row {
    fn print(&self) {
        println!(
            "{:8}  {:16}  {:>7}  {:>9.2} ms  {:>9.2} ms  {:>5.2} %  {:>6.2} %  {:>9.2} %  {:>5}",
            self.case,
            self.schedule,
            self.actions,
            self.simulated_ms,
            self.best_ms,
            100.0 * self.best_over_simulation,
            100.0 * self.median_over_simulation,
            100.0 * self.best_over_replay,
            self.all_ms.len()
        );
    }
}

/// Measures the schedules that `names` ask for, all of them where there are none,
/// as often as `steps` or the case says; gives what is beyond the limit.
fn run(names: &[String], micros: usize, steps: Option<Steps>) -> anyhow::Result<Vec<Row>> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let mut rows = Vec::new();
    heading();
    for case in &CASES {
        for kind in ScheduleKind::ALL
            .into_iter()
            .filter(|kind| wanted(kind.name()))
        {
            let row = measure(kind, case, micros, steps.unwrap_or(case.steps))?;
            row.print();
            rows.push(row);
        }
    }
    if rows.is_empty() {
        bail!("no schedule is called {}", names.join(" or "));
    }
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/makespan.json");
    std::fs::write(file, serde_json::to_string_pretty(&rows)?)
        .with_context(|| format!("writing {file}"))?;
    println!("every step in {file}");
    let claim = |name| CASES.iter().any(|case| case.name == name && case.claim);
    rows.retain(|row| claim(row.case) && row.best_over_simulation.abs() > LIMIT);
    Ok(rows)
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let names: Vec<String> = arguments
        .into_iter()
        .filter(|a| !a.starts_with("--"))
        .collect();
    sleep_precisely();
    if !measured {
        // `cargo test` only wants to know that it runs.
        run(&names, 1, Some(Steps { least: 1, most: 1 }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let beyond = run(&names, MICRO_BATCHES, None)?;
    for row in &beyond {
        println!(
            "more than {} % off: {}, {}",
            100.0 * LIMIT,
            row.schedule,
            row.case
        );
    }
    Ok(if beyond.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
