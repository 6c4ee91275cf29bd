//! Devices that share too few cores take turns.

use gpipe_engine::{EdgeId, EngineError};
use gpipe_engine::{Engine, Entry, Program, Sharing, Stage, StageBuilder, Topology, Unpinned};
use gpipe_partitioner::{
    Action, Cores, Costs, DeviceId, MicroId, Micros, ScheduleKind, Shape, StageId, simulate,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Observations of all stages together.
#[derive(Default)]
struct Seen {
    working: AtomicUsize,
    most: AtomicUsize,
    order: Mutex<Vec<Action>>,
}

struct Watched {
    seen: Arc<Seen>,
    /// Action at which the stage fails.
    fails: Option<Action>,
}

impl Stage for Watched {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, _: Vec<()>) -> anyhow::Result<Vec<()>> {
        let working = self.seen.working.fetch_add(1, SeqCst) + 1;
        self.seen.most.fetch_max(working, SeqCst);
        self.seen.order.lock().unwrap().push(action);
        // Gives other threads every chance to work at the same time.
        (0..50).for_each(|_| std::thread::yield_now());
        self.seen.working.fetch_sub(1, SeqCst);
        anyhow::ensure!(self.fails != Some(action), "made to fail");
        let gives = action.kind != gpipe_partitioner::ActionKind::BackwardWeight;
        Ok(vec![(); usize::from(gives)])
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

struct Rig {
    engine: Engine<Watched>,
    program: Arc<Program>,
    seen: Arc<Seen>,
    micros: usize,
}

impl Rig {
    fn new(
        kind: ScheduleKind,
        (p, m): (usize, usize),
        max_concurrent: usize,
        fails: Option<Action>,
    ) -> Self {
        let schedule = kind.generate(Shape::new(p, m)).unwrap();
        let seen = Arc::new(Seen::default());
        let build = |device: usize| {
            let seen = Arc::clone(&seen);
            let build = move || Ok(vec![(StageId(device), Watched { seen, fails })]);
            Box::new(build) as StageBuilder<Watched>
        };
        let sharing = Sharing {
            devices: (0..p).map(DeviceId).collect(),
            max_concurrent,
            affinity: Arc::new(Unpinned),
        };
        let engine = Engine::taking_turns((0..p).map(build).collect(), &sharing).unwrap();
        let program = Arc::new(Program::new(schedule, &Topology::chain(p)).unwrap());
        Self {
            engine,
            program,
            seen,
            micros: m,
        }
    }

    fn step(&mut self) -> Result<(), EngineError> {
        let entry = |micro| Entry {
            edge: EdgeId(0),
            micro: MicroId(micro),
            value: (),
        };
        let entries = (0..self.micros).map(entry).collect();
        self.engine.step(&self.program, Arc::new(()), entries)?;
        Ok(())
    }
}

const KINDS: [ScheduleKind; 3] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_more_work_at_once_than_may(
        kind in prop::sample::select(KINDS.to_vec()),
        p in 1_usize..6,
        m in 1_usize..6,
        max_concurrent in 0_usize..7,
    ) {
        let mut rig = Rig::new(kind, (p, m), max_concurrent, None);
        rig.step().unwrap();
        rig.step().unwrap();
        prop_assert!(rig.seen.most.load(SeqCst) <= max_concurrent.max(1));
        let actions = rig.program.schedule().schedule().iter();
        let actions: usize = actions.map(|(_, list)| list.len()).sum();
        prop_assert_eq!(rig.seen.order.lock().unwrap().len(), 2 * actions);
    }

    /// A thread that wakes up late does not lose its turn: on one core every run has the simulated
    /// order.
    #[test]
    fn turns_go_as_simulated(
        kind in prop::sample::select(KINDS.to_vec()), p in 1_usize..6, m in 1_usize..6,
    ) {
        let mut rig = Rig::new(kind, (p, m), 1, None);
        let cores = Cores::new(1, 1).unwrap();
        let unit = Micros::new(1.0).unwrap();
        let costs = Costs::uniform(p, unit, unit, unit).with_cores(cores);
        let timeline = simulate(rig.program.schedule(), &costs).timeline;
        let mut spans = timeline.spans().to_vec();
        spans.sort_by_key(|span| span.start);
        let simulated: Vec<Action> = spans.iter().map(|span| span.action).collect();
        for _ in 0..3 {
            rig.step().unwrap();
            let ran = std::mem::take(&mut *rig.seen.order.lock().unwrap());
            prop_assert_eq!(&ran, &simulated);
        }
    }

    /// Even if a stage fails, the others get their turns, and the next step its numbers.
    #[test]
    fn a_failure_gives_the_turn_back(p in 2_usize..5, m in 1_usize..4, place in 0_usize..64) {
        let schedule = ScheduleKind::OneFOneB.generate(Shape::new(p, m)).unwrap();
        let all: Vec<Action> = schedule.schedule().iter().flat_map(|(_, list)| list).copied().collect();
        let mut rig = Rig::new(ScheduleKind::OneFOneB, (p, m), 1, Some(all[place % all.len()]));
        for _ in 0..3 {
            let error = rig.step().unwrap_err();
            prop_assert!(error.to_string().contains("made to fail"), "{error}");
        }
    }
}
