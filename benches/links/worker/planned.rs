//! The plan for a profile over processes on two nodes, and its runners-up: each stage waits as long as its
//! layers take, and sends as many bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use gpipe::Values;
use gpipe::engine::{EdgeId, Engine, Entry, Program, StageBuilder, Topology};
use gpipe::partitioner::{
    Bytes, DeviceId, Link, Machine, MicroId, Nodes, Plan, PlanOptions, Profile, StageId, When,
    plan, simulate,
};
use gpipe::world::{World, WorldCarrier};
use serde::Deserialize;
use serde_json::json;

use super::waits::{Waits, bytes};
use super::{WARMING, answer, median, micros};

const LIMIT: u64 = 1 << 32;
/// Votes of an engine's step.
const VOTES: usize = 1;

/// The planning task.
#[derive(Deserialize)]
pub struct Planned {
    profile: PathBuf,
    batch: usize,
    micro_batches: usize,
    /// The links within a node and between nodes.
    inside: Line,
    between: Line,
    /// Number of runners-up to measure.
    others: usize,
    /// Turns of each plan, and the counted steps per turn.
    rounds: usize,
    steps: usize,
}

#[derive(Clone, Copy, Deserialize)]
struct Line {
    bytes_per_second: f64,
    one_way: f64,
}

impl Line {
    fn link(self) -> anyhow::Result<Link> {
        let bandwidth = Bytes(self.bytes_per_second as u64);
        Ok(Link::new(bandwidth, micros(self.one_way))?)
    }
}

impl Planned {
    fn options(&self, processes: usize) -> anyhow::Result<PlanOptions> {
        let nodes = Nodes::even(2, processes, self.between.link()?)?.with_nic_per_device(true);
        let machine = Machine::new(processes)?
            .with_link(self.inside.link()?)
            .with_nodes(nodes)?
            .with_processes(processes)?;
        let mut options = PlanOptions::new(machine);
        options.batch = Some(self.batch);
        options.micro_batches = Some(self.micro_batches);
        options.recompute = When::Never;
        Ok(options)
    }

    /// The chosen plan and its runners-up, with other schedules or cuts.
    fn plans(&self, profile: &Profile, options: &PlanOptions) -> anyhow::Result<Vec<Plan>> {
        let chosen = plan(profile, options)?;
        let mut plans = vec![chosen.clone()];
        let named = chosen.alternatives.iter().filter(|own| own.step.is_some());
        for other in named.take(self.others) {
            let mut alone = options.clone();
            alone.schedule = Some(other.schedule);
            alone.chunks = Some(other.chunks);
            plans.push(plan(profile, &alone)?);
        }
        Ok(plans)
    }

    /// Milliseconds of a call as planned, and of each call as measured.
    fn measure(
        &self,
        world: &Arc<World>,
        plan: &Plan,
        (profile, options): (&Profile, &PlanOptions),
    ) -> anyhow::Result<(f64, Vec<f64>)> {
        let schedule = plan.generate()?;
        let costs = plan.costs(profile, options, &schedule);
        let joins = options.machine.joins(VOTES).unwrap_or_default();
        let step = simulate(&schedule, &costs.clone().with_joins(joins)).timeline;
        let planned = step.makespan() + options.machine.agreement(&step, VOTES);

        let own = DeviceId(world.rank());
        let size_of =
            |of: Bytes| Bytes(of.get() * plan.micro_batch_size as u64 / profile.batch() as u64);
        let after = |stage: usize| match stage {
            0 => Bytes(1),
            stage => {
                let last = plan.partition.range(StageId(stage - 1)).end - 1;
                size_of(profile.layers()[last].footprint.output)
            }
        };
        let stages = schedule.schedule().stages();
        let here = (0..stages).filter(|stage| schedule.device_of(StageId(*stage)) == own);
        let here: Vec<_> = here
            .map(|stage| {
                let waits = Waits {
                    times: costs.stage(StageId(stage)),
                    output: bytes(if stage + 1 == stages {
                        Bytes(1)
                    } else {
                        after(stage + 1)
                    }),
                    gradient: bytes(after(stage)),
                };
                (StageId(stage), waits)
            })
            .collect();
        let devices = world.size();
        let carrier = Arc::new(WorldCarrier::connect(world, (0..devices).collect(), LIMIT)?);
        let builder: StageBuilder<Waits> = Box::new(move || Ok(here));
        let mut engine = Engine::part(devices, vec![(own, builder)], None, carrier)?;
        let first = schedule.device_of(StageId(0)) == own;
        let program = Program::part(schedule, &Topology::chain(stages), |one| one == own)?;
        let program = Arc::new(program);
        let mut calls = Vec::new();
        for step in 0..WARMING + self.steps {
            let entry = |micro| Entry {
                edge: EdgeId(0),
                micro: MicroId(micro),
                value: Values::from(bytes(Bytes(1))),
            };
            let entries = (0..plan.micro_batches).filter(|_| first).map(entry);
            let begin = Instant::now();
            engine.step(&program, Arc::new(()), entries.collect())?;
            if step >= WARMING {
                calls.push(begin.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok((planned.get() / 1e3, calls))
    }
}

pub fn run(world: &Arc<World>, task: &Planned) -> anyhow::Result<()> {
    let text = std::fs::read(&task.profile)?;
    let profile = Profile::from_json(&text, &task.profile.display().to_string())?;
    let options = task.options(world.size())?;
    let plans = task.plans(&profile, &options)?;
    let mut measured = vec![(0.0, Vec::new()); plans.len()];
    // In turn, so that other load on the machine affects all plans alike.
    for _ in 0..task.rounds {
        for (plan, (planned, calls)) in plans.iter().zip(&mut measured) {
            let (of_plan, turn) = task.measure(world, plan, (&profile, &options))?;
            *planned = of_plan;
            calls.extend(turn);
        }
    }
    for (plan, (planned, calls)) in plans.iter().zip(measured) {
        if world.rank() == 0 {
            answer(&json!({
                "schedule": plan.schedule.name(),
                "chunks": plan.chunks,
                "balance": plan.partition.balance(),
                "planned_ms": planned,
                "measured_ms": median(calls),
            }))?;
        }
    }
    Ok(())
}
