//! Stages that wait for fixed times, with values of a fixed size: the engine and the carrier without a
//! pipeline.

use std::sync::Arc;
use std::time::Instant;

use gpipe::Values;
use gpipe::engine::{EdgeId, Engine, Entry, Program, StageBuilder, Topology};
use gpipe::partitioner::{
    ActionKind, Bytes, CheckedSchedule, Costs, DeviceId, MicroId, Shape, StageId, StageTimes,
};
use gpipe::world::{World, WorldCarrier};

use super::waits::{Waits, bytes};
use super::{Measured, Steps, WARMING, measured_link, median, micros, simulated};

const LIMIT: u64 = 1 << 32;
/// Votes of an engine's step.
const VOTES: usize = 1;

struct Part {
    engine: Engine<Waits>,
    program: Arc<Program>,
    carrier: Arc<WorldCarrier<Values>>,
    first: bool,
    micro_batches: usize,
}

impl Part {
    fn new(world: &Arc<World>, schedule: &CheckedSchedule, steps: &Steps) -> anyhow::Result<Self> {
        let own = DeviceId(world.rank());
        let here = |device: DeviceId| device == own;
        let carrier = Arc::new(WorldCarrier::connect(world, vec![0, 1], LIMIT)?);
        let times = StageTimes {
            forward: micros(steps.forward_ms / 1e3),
            backward: micros(2.0 * steps.forward_ms / 1e3),
            ..StageTimes::default()
        };
        let value = || bytes(Bytes(steps.bytes as u64));
        let stage = Waits {
            times,
            output: value(),
            gradient: value(),
        };
        let stages = vec![(StageId(world.rank()), stage)];
        let builder: StageBuilder<Waits> = Box::new(move || Ok(stages));
        let to_others = Arc::<WorldCarrier<Values>>::clone(&carrier);
        let engine = Engine::part(2, vec![(own, builder)], None, to_others)?;
        let program = Program::part(schedule.clone(), &Topology::chain(2), here)?;
        Ok(Self {
            engine,
            program: Arc::new(program),
            carrier,
            first: world.rank() == 0,
            micro_batches: steps.micro_batches,
        })
    }

    /// Seconds of the call and of the step (from its first start to its last end here), and the local forward
    /// and backward times.
    fn step(&mut self) -> anyhow::Result<(f64, f64, StageTimes)> {
        let entry = |micro| Entry {
            edge: EdgeId(0),
            micro: MicroId(micro),
            value: Values::from(bytes(Bytes(1))),
        };
        let entries = (0..self.micro_batches).filter(|_| self.first).map(entry);
        let begin = Instant::now();
        let outcome = self
            .engine
            .step(&self.program, Arc::new(()), entries.collect())?;
        let call = begin.elapsed().as_secs_f64();
        let events = || outcome.events.iter().flatten();
        let start = events().map(|event| event.start).min().unwrap_or_default();
        let end = events().map(|event| event.end).max().unwrap_or_default();
        let took = |kind| {
            let own = events().filter(|event| event.action.kind == kind);
            median(
                own.map(|own| own.end.as_secs_f64() - own.start.as_secs_f64())
                    .collect(),
            )
        };
        let times = StageTimes {
            forward: micros(took(ActionKind::Forward)),
            backward: micros(took(ActionKind::Backward)),
            ..StageTimes::default()
        };
        Ok((call, end.as_secs_f64() - start.as_secs_f64(), times))
    }

    /// The times of both stages.
    fn both(&self, own: StageTimes) -> anyhow::Result<Vec<StageTimes>> {
        let said = [own.forward.get(), own.backward.get()].map(f64::to_le_bytes);
        let all = self.carrier.gather(&said.concat())?;
        let number = |bytes: &[u8]| Ok::<_, anyhow::Error>(f64::from_le_bytes(bytes.try_into()?));
        let times = all.iter().map(|said| {
            Ok(StageTimes {
                forward: micros(number(&said[..8])? / 1e6),
                backward: micros(number(&said[8..])? / 1e6),
                ..StageTimes::default()
            })
        });
        times.collect()
    }
}

pub fn run(world: &Arc<World>, steps: &Steps) -> anyhow::Result<()> {
    let (link, line) = measured_link(world)?;
    let schedule = steps.kind()?.generate(Shape::new(2, steps.micro_batches))?;
    let mut part = Part::new(world, &schedule, steps)?;
    let mut measured = Measured::default();
    for step in 0..WARMING + steps.measured {
        let (call, span, times) = part.step()?;
        let times = part.both(times)?;
        steps.pause();
        if step >= WARMING {
            let of_link = (link, steps.bytes);
            let expected = simulated(&schedule, Costs::new(times), of_link, VOTES)?;
            measured.add((span * 1e3, call * 1e3), expected);
        }
    }
    measured.tell(world, &line)
}
