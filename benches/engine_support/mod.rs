//! Stages that do nothing, or nothing for a fixed time.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations
)]

use gpipe::engine::{Engine, Entry, Event, Program, Stage, StageBuilder, Topology};
use gpipe_partitioner::{
    Action, CheckedSchedule, Costs, DeviceId, Kind, MicroId, Micros, ScheduleKind, Shape, StageId,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits for a fixed time in every action and hands on what it got.
pub struct Fixed(pub Duration);

/// Microseconds that are surely a time.
pub fn micros(duration: Duration) -> Micros {
    duration.into()
}

impl Stage for Fixed {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, _: Vec<()>) -> anyhow::Result<Vec<()>> {
        wait(self.0);
        let gives = matches!(
            action.kind,
            Kind::Forward | Kind::Backward | Kind::BackwardInput
        );
        Ok(vec![(); usize::from(gives)])
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// How much of a wait is spent awake: what a sleep may overshoot by.
const AWAKE: Duration = Duration::from_micros(40);

/// Waits for `duration` without occupying a core for most of it, so that more
/// stages than cores can wait at the same time.
pub fn wait(duration: Duration) {
    if duration.is_zero() {
        return;
    }
    let end = Instant::now() + duration;
    if duration > AWAKE {
        std::thread::sleep(duration.saturating_sub(AWAKE));
    }
    while Instant::now() < end {
        // Not `spin_loop`: another stage's wait may be over on this core.
        std::thread::yield_now();
    }
}

/// Lets sleeping threads be woken at the time they asked for instead of up to
/// 50 µs later, where the system allows it. Threads started later inherit it.
pub fn sleep_precisely() {
    // Elsewhere than on Linux sleeps stay coarse, and the results show it.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
}

/// An engine, a program for it and what its steps need.
pub struct Rig {
    pub engine: Engine<Fixed>,
    pub program: Arc<Program>,
    schedule: CheckedSchedule,
    step: Arc<()>,
}

impl Rig {
    /// One stage per device, `p` devices, `m` micro-batches; every action takes `time`.
    pub fn new(kind: ScheduleKind, p: usize, m: usize, time: Duration) -> anyhow::Result<Self> {
        let shape = Shape {
            devices: p,
            chunks: 1,
            micro_batches: m,
        };
        let schedule = kind.generate(shape)?;
        let builder = |device| {
            let build = move || Ok(vec![(StageId(device), Fixed(time))]);
            Box::new(build) as StageBuilder<Fixed>
        };
        let engine = Engine::new((0..p).map(builder).collect())?;
        let program = Arc::new(Program::new(schedule.clone(), &Topology::chain(p))?);
        Ok(Self {
            engine,
            program,
            schedule,
            step: Arc::new(()),
        })
    }

    /// Runs a step and gives each device's log.
    pub fn run(&mut self) -> anyhow::Result<Vec<Vec<Event>>> {
        let micros = self.schedule.schedule().micro_batches();
        let (edge, value) = (gpipe::engine::EdgeId(0), ());
        let entry = |micro| Entry {
            edge,
            micro: MicroId(micro),
            value,
        };
        let entries = (0..micros).map(entry).collect();
        Ok(self
            .engine
            .step(&self.program, Arc::clone(&self.step), entries)?
            .events)
    }

    pub fn schedule(&self) -> &CheckedSchedule {
        &self.schedule
    }

    pub fn actions(&self) -> usize {
        self.schedule
            .schedule()
            .iter()
            .map(|(_, row)| row.len())
            .sum()
    }

    /// The makespan on paper, where forward and backward take `time` each.
    pub fn simulated(&self, time: Duration) -> Micros {
        let stages = self.schedule.schedule().stages();
        let times = vec![micros(time); stages];
        let costs = Costs::from_stage_times(&times, &times);
        gpipe_partitioner::simulate(&self.schedule, &costs)
            .timeline
            .makespan()
    }

    /// Actions on the longest chain: the simulated makespan in actions.
    pub fn critical(&self) -> f64 {
        self.simulated(Duration::from_micros(1)).get()
    }
}

/// First start to last end.
pub fn makespan(events: &[Vec<Event>]) -> Duration {
    let all = || events.iter().flatten();
    let start = all().map(|event| event.start).min().unwrap_or_default();
    let end = all().map(|event| event.end).max().unwrap_or_default();
    end.saturating_sub(start)
}

/// The makespan on paper, where every action takes what it took in `events`: an
/// engine that costs nothing would have needed this.
pub fn replay(events: &[Vec<Event>]) -> Duration {
    let all = || events.iter().flatten();
    let last = StageId(
        all()
            .map(|event| event.action.stage.index())
            .max()
            .unwrap_or(0),
    );
    let mut ends: HashMap<Action, Duration> = HashMap::new();
    let mut next = vec![0; events.len()];
    let mut free = vec![Duration::ZERO; events.len()];
    while next.iter().zip(events).any(|(next, log)| *next < log.len()) {
        for (device, log) in events.iter().enumerate() {
            while let Some(event) = log.get(next[device]) {
                let ready = waits_for(event.action, last)
                    .map_or(Some(Duration::ZERO), |needed| ends.get(&needed).copied());
                let Some(ready) = ready else { break };
                free[device] = free[device].max(ready) + event.end.saturating_sub(event.start);
                ends.insert(event.action, free[device]);
                next[device] += 1;
            }
        }
    }
    free.into_iter().max().unwrap_or_default()
}

/// The action of another stage that makes what `action` takes.
fn waits_for(action: Action, last: StageId) -> Option<Action> {
    let stage = match action.kind {
        Kind::Forward => action.stage.index().checked_sub(1)?,
        _ if action.stage == last => return None,
        _ => action.stage.index() + 1,
    };
    Some(Action {
        stage: StageId(stage),
        ..action
    })
}

/// The log of a device.
pub fn log(events: &[Vec<Event>], device: DeviceId) -> &[Event] {
    &events[device.index()]
}
