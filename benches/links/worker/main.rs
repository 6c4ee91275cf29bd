//! A process of `benches/links`: measures a step over a link, and the cost of joining.
//!
//! Takes a JSON object as its argument and a launcher's variables in its environment; rank 0 prints JSON
//! objects, one a line.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

mod fixed;
mod layers;
mod line;
mod planned;
mod scale;
mod waits;

use std::io::{Write as _, stdout};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gpipe::partitioner::{
    Bytes, CheckedSchedule, Costs, Link, Machine, Micros, ScheduleKind, StageId, simulate,
};
use gpipe::world::World;
use serde::Deserialize;
use serde_json::{Value, json};

/// The measurement to run.
#[derive(Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Task {
    /// Steps of a pipeline of two stages, one in each process.
    Steps(Steps),
    /// Joins, then stays until standard input ends.
    Join,
    /// Reports the link between two processes.
    Line,
    /// Plans for all processes, measured.
    Planned(planned::Planned),
    /// The program of one device of many.
    Program(scale::Shape),
}

/// A pipeline of two stages.
#[derive(Deserialize)]
struct Steps {
    /// Stages that wait for fixed times, or that compute.
    stages: Sort,
    schedule: String,
    micro_batches: usize,
    /// Bytes that one stage hands to the other for a micro-batch.
    bytes: usize,
    /// How long a forward waits; a backward waits twice as long.
    forward_ms: f64,
    /// Measured steps, after six warm-up steps.
    #[serde(rename = "steps")]
    measured: usize,
    /// Pause between two steps.
    pause_ms: u64,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Sort {
    Fixed,
    Layers,
}

impl Steps {
    fn kind(&self) -> anyhow::Result<ScheduleKind> {
        Ok(self.schedule.parse()?)
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_millis(self.pause_ms));
    }
}

/// Warm-up steps.
const WARMING: usize = 6;

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn micros(seconds: f64) -> Micros {
    Micros::new(seconds.max(0.0) * 1e6).unwrap_or_default()
}

fn answer(value: &Value) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// Milliseconds of each step from its first action to its last, and of the whole call, measured and
/// simulated.
#[derive(Default)]
struct Measured {
    spans: Vec<f64>,
    calls: Vec<f64>,
    simulated_spans: Vec<f64>,
    simulated_calls: Vec<f64>,
}

impl Measured {
    fn add(&mut self, (span, call): (f64, f64), simulated: (f64, f64)) {
        self.spans.push(span);
        self.calls.push(call);
        self.simulated_spans.push(simulated.0);
        self.simulated_calls.push(simulated.1);
    }

    /// Rank 0 prints the medians.
    fn tell(self, world: &World, line: &line::Line) -> anyhow::Result<()> {
        if world.rank() > 0 {
            return Ok(());
        }
        answer(&json!({
            "one_way_ms": line.one_way * 1e3,
            "gbit": line.bytes_per_second * 8e-9,
            "measured_ms": median(self.spans.clone()),
            "all_ms": self.spans,
            "simulated_ms": median(self.simulated_spans),
            "call_ms": median(self.calls),
            "simulated_call_ms": median(self.simulated_calls),
        }))
    }
}

/// Simulated milliseconds of a step, and of the call after which the next step begins.
fn simulated(
    schedule: &CheckedSchedule,
    costs: Costs,
    (link, bytes): (Link, usize),
    votes: usize,
) -> anyhow::Result<(f64, f64)> {
    let machine = Machine::new(2)?.with_link(link).with_processes(2)?;
    let costs = costs.with_edge(StageId(0), link.transfer(Bytes(bytes as u64)));
    let costs = costs.with_joins(machine.joins(votes).context("two processes")?);
    let step = simulate(schedule, &costs).timeline;
    let call = step.makespan() + machine.agreement(&step, votes);
    Ok((step.makespan().get() / 1e3, call.get() / 1e3))
}

/// The link measured over plain TCP, in both processes; rank 0's result counts.
fn measured_link(world: &World) -> anyhow::Result<(Link, line::Line)> {
    let master = world.words().master.clone();
    let (host, port) = master.context("no address of rank 0")?;
    let line = line::measure(world.rank(), (&host, port + 1))?;
    let bandwidth = Bytes(line.bytes_per_second as u64);
    Ok((Link::new(bandwidth, micros(line.one_way))?, line))
}

fn main() -> anyhow::Result<()> {
    let task = std::env::args().nth(1).context("no task given")?;
    let task: Task = serde_json::from_str(&task).context("the task")?;
    match task {
        Task::Program(shape) => scale::program(&shape),
        Task::Join => scale::join(),
        Task::Steps(steps) => together(|world| match steps.stages {
            Sort::Fixed => fixed::run(world, &steps),
            Sort::Layers => layers::run(world, &steps),
        }),
        Task::Line => together(|world| {
            let (_, line) = measured_link(world)?;
            if world.rank() > 0 {
                return Ok(());
            }
            answer(&json!({
                "one_way": line.one_way,
                "bytes_per_second": line.bytes_per_second,
            }))
        }),
        Task::Planned(task) => together(|world| planned::run(world, &task)),
    }
}

fn together(work: impl FnOnce(&Arc<World>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let world = Arc::new(World::from_env()?);
    work(&world)?;
    let world = Arc::into_inner(world).context("an engine is left")?;
    Ok(world.leave()?)
}
