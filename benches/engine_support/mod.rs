//! Stages that do nothing, or wait for a fixed time.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations
)]

use gpipe::engine::{ActionEvent, Engine, Entry, Program, Stage, StageBuilder, Topology};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, Costs, DeviceId, MicroId, Micros, ScheduleKind, Shape,
    StageId, StageTimes, simulate,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits in every action for the time of its kind and returns its input.
pub struct Fixed(pub StageTimes);

/// Converts microseconds to a [`Duration`].
pub fn duration(micros: Micros) -> Duration {
    Duration::from_secs_f64(micros.get() / 1e6)
}

impl Stage for Fixed {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, _: Vec<()>) -> anyhow::Result<Vec<()>> {
        wait(duration(self.0.of(action.kind)));
        let gives = action.kind == ActionKind::Forward || action.kind.gives_input_gradient();
        Ok(vec![(); usize::from(gives)])
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// Part of a wait that is spent spinning on the clock and yielding the core.
///
/// Sleeps end late: on virtual machines the timer interrupt alone comes some 40 µs after its time, and the
/// threads that it wakes together then take turns. A thread that only yields its core gets it back within a
/// few microseconds, even if four threads share it.
const AWAKE: Duration = Duration::from_micros(250);

/// Waits for `duration` without occupying a core for most of it, so that more stages than cores can wait
/// concurrently.
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

/// Lets sleeping threads be woken on time instead of up to 50 µs later, if the system allows it. Threads
/// started later inherit the setting.
pub fn sleep_precisely() {
    // On other systems than Linux sleeps stay coarse, and the results show it.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
}

/// An engine, a program for it and its step inputs.
pub struct Rig {
    pub engine: Engine<Fixed>,
    pub program: Arc<Program>,
    costs: Costs,
    step: Arc<()>,
}

impl Rig {
    /// One stage per device, `p` devices, `m` micro-batches; every action takes `time`.
    pub fn new(kind: ScheduleKind, p: usize, m: usize, time: Duration) -> anyhow::Result<Self> {
        let times = vec![Micros::from(time); p];
        let costs = Costs::from_stage_times(&times, &times);
        Self::over(kind.generate(Shape::new(p, m))?, costs)
    }

    /// Creates a rig for the stages of `schedule` with these costs.
    pub fn over(schedule: CheckedSchedule, costs: Costs) -> anyhow::Result<Self> {
        let plain = schedule.schedule();
        let builder = |device| {
            let fixed = |stage| (stage, Fixed(costs.stage(stage)));
            let stages: Vec<_> = schedule.stages_on(device).into_iter().map(fixed).collect();
            Box::new(move || Ok(stages)) as StageBuilder<Fixed>
        };
        let builders = (0..plain.devices()).map(DeviceId).map(builder).collect();
        let engine = Engine::new(builders)?;
        let topology = Topology::chain(plain.stages());
        let program = Arc::new(Program::new(schedule, &topology)?);
        Ok(Self {
            engine,
            program,
            costs,
            step: Arc::new(()),
        })
    }

    /// Runs a step and returns each device's log.
    pub fn run(&mut self) -> anyhow::Result<Vec<Vec<ActionEvent>>> {
        let micros = self.schedule().schedule().micro_batches();
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
        self.program.schedule()
    }

    pub fn actions(&self) -> usize {
        let lists = self.schedule().schedule().iter();
        lists.map(|(_, list)| list.len()).sum()
    }

    /// The simulated makespan.
    pub fn simulated(&self) -> Duration {
        duration(simulate(self.schedule(), &self.costs).makespan())
    }

    /// Number of actions on the critical path if all take equally long: the simulated makespan in actions.
    pub fn critical(&self) -> f64 {
        let action = duration(self.costs.stage(StageId(0)).forward);
        if action.is_zero() {
            return 0.0;
        }
        self.simulated().div_duration_f64(action)
    }
}

/// Time from the first start to the last end.
pub fn makespan(events: &[Vec<ActionEvent>]) -> Duration {
    let all = || events.iter().flatten();
    let start = all().map(|event| event.start).min().unwrap_or_default();
    let end = all().map(|event| event.end).max().unwrap_or_default();
    end.saturating_sub(start)
}

/// The simulated makespan with the durations in `events`: the makespan of an engine without overhead.
pub fn replay(events: &[Vec<ActionEvent>]) -> Duration {
    let all = || events.iter().flatten().map(|event| event.action);
    let last = all().map(|action| action.stage).max().unwrap_or(StageId(0));
    let mut ends: HashMap<Value, Duration> = HashMap::new();
    let mut next = vec![0; events.len()];
    let mut free = vec![Duration::ZERO; events.len()];
    while next.iter().zip(events).any(|(next, log)| *next < log.len()) {
        for (device, log) in events.iter().enumerate() {
            while let Some(event) = log.get(next[device]) {
                let ready = takes(event.action, last)
                    .map_or(Some(Duration::ZERO), |value| ends.get(&value).copied());
                let Some(ready) = ready else { break };
                free[device] = free[device].max(ready) + event.end.saturating_sub(event.start);
                if let Some(value) = gives(event.action) {
                    ends.insert(value, free[device]);
                }
                next[device] += 1;
            }
        }
    }
    free.into_iter().max().unwrap_or_default()
}

/// A stage's result for a micro-batch, in the forward or the backward direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Value {
    stage: StageId,
    micro: MicroId,
    back: bool,
}

fn gives(action: Action) -> Option<Value> {
    let Action { stage, micro, kind } = action;
    let back = kind.gives_input_gradient();
    (back || kind == ActionKind::Forward).then_some(Value { stage, micro, back })
}

/// The result of another stage that `action` consumes.
fn takes(action: Action, last: StageId) -> Option<Value> {
    let own = gives(action)?;
    let stage = if own.back {
        Some(action.stage.index() + 1).filter(|_| action.stage != last)
    } else {
        action.stage.index().checked_sub(1)
    };
    stage.map(|stage| Value {
        stage: StageId(stage),
        ..own
    })
}

/// The log of a device.
pub fn log(events: &[Vec<ActionEvent>], device: DeviceId) -> &[ActionEvent] {
    &events[device.index()]
}
