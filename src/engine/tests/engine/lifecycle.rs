//! Construction, jobs and the end of an engine.

use crate::support::{Affine, affine_engine, schedule, watched};
use anyhow::bail;
use gpipe_engine::{
    EdgeId, Engine, EngineError, Entry, Observer, Program, Stage, StageBuilder, Topology,
};
use gpipe_partitioner::{Action, ActionKind, DeviceId, MicroId, Schedule, ScheduleKind, StageId};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the live values of its kind.
#[derive(Debug)]
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// Dropped when the thread has ended.
    static THREAD: RefCell<Vec<Alive>> = const { RefCell::new(Vec::new()) };
}

/// Passes its value on, if there is one; fails and lingers on demand.
struct Plain {
    fail_at: Option<Action>,
    panics_when_dropped: bool,
    alive: Alive,
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.panics_when_dropped {
            std::panic::resume_unwind(Box::new("made to panic when dropped"));
        }
    }
}

impl Stage for Plain {
    type Value = Alive;
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<Alive>) -> anyhow::Result<Vec<Alive>> {
        if self.fail_at == Some(action) {
            bail!("made to fail");
        }
        match action.kind {
            // The last stage starts from its own gradient only.
            ActionKind::Backward if inputs.is_empty() => Ok(vec![Alive::new(&self.alive.0)]),
            _ => Ok(inputs),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// Counts of everything alive in the engines of one test.
#[derive(Default)]
struct Census {
    threads: Arc<AtomicUsize>,
    stages: Arc<AtomicUsize>,
}

impl Census {
    fn now(&self) -> (usize, usize) {
        (
            self.threads.load(Ordering::SeqCst),
            self.stages.load(Ordering::SeqCst),
        )
    }

    fn builder(
        &self,
        device: usize,
        change: impl Fn(&mut Plain) -> anyhow::Result<()> + Send + 'static,
    ) -> StageBuilder<Plain> {
        let (threads, stages) = (Arc::clone(&self.threads), Arc::clone(&self.stages));
        Box::new(move || {
            THREAD.with_borrow_mut(|alive| alive.push(Alive::new(&threads)));
            let mut stage = Plain {
                fail_at: None,
                panics_when_dropped: false,
                alive: Alive::new(&stages),
            };
            change(&mut stage)?;
            Ok(vec![(StageId(device), stage)])
        })
    }

    fn engine(&self, devices: usize) -> Engine<Plain> {
        Engine::new((0..devices).map(|d| self.builder(d, |_| Ok(()))).collect()).unwrap()
    }

    fn entries(&self, micros: usize) -> Vec<Entry<Alive>> {
        let entry = |micro| Entry {
            edge: EdgeId(0),
            micro: MicroId(micro),
            value: Alive::new(&self.stages),
        };
        (0..micros).map(entry).collect()
    }
}

fn chain(kind: ScheduleKind, p: usize, m: usize) -> Arc<Program> {
    Arc::new(Program::new(schedule(kind, p, m), &Topology::chain(p)).unwrap())
}

#[test]
fn dropping_an_engine_drops_its_stages_and_joins_its_threads() {
    watched(|| {
        let census = Census::default();
        let engine = census.engine(4);
        assert_eq!(census.now(), (4, 4));
        drop(engine);
        assert_eq!(census.now(), (0, 0));
    });
}

#[test]
fn after_a_failed_step_only_the_stages_are_alive_and_the_drop_joins() {
    watched(|| {
        let census = Census::default();
        let program = chain(ScheduleKind::OneFOneB, 3, 4);
        let fail_at: Action = "2F2".parse().unwrap();
        let fail = move |stage: &mut Plain| {
            stage.fail_at = Some(fail_at);
            Ok(())
        };
        let builders = (0..3).map(|device| census.builder(device, fail)).collect();
        let mut engine = Engine::new(builders).unwrap();
        for _ in 0..50 {
            let step = engine.step(&program, Arc::new(()), census.entries(4));
            assert_eq!(step.unwrap_err().stage_error().unwrap().stage, StageId(2));
            // Values in flight and values never taken are gone.
            assert_eq!(census.now(), (3, 3));
        }
        drop(engine);
        assert_eq!(census.now(), (0, 0));
    });
}

#[test]
fn a_caller_that_unwinds_with_the_engine_joins_its_threads() {
    watched(|| {
        let census = Arc::new(Census::default());
        let inside = Arc::clone(&census);
        let caller = std::thread::spawn(move || {
            let _engine = inside.engine(3);
            std::panic::resume_unwind(Box::new("the caller unwinds"));
        });
        assert!(caller.join().is_err());
        assert_eq!(census.now(), (0, 0));
    });
}

#[test]
fn stages_that_panic_when_dropped_do_not_keep_the_engine_from_ending() {
    watched(|| {
        let census = Census::default();
        let bomb = |stage: &mut Plain| {
            stage.panics_when_dropped = true;
            Ok(())
        };
        let builders = (0..2).map(|device| census.builder(device, bomb)).collect();
        drop(Engine::new(builders).unwrap());
        assert_eq!(census.now(), (0, 0));
    });
}

#[test]
fn a_builder_that_fails_or_panics_is_named_and_all_threads_are_joined() {
    watched(|| {
        for panics in [false, true] {
            let census = Census::default();
            let fail = move |_: &mut Plain| {
                if panics {
                    std::panic::resume_unwind(Box::new("no room".to_owned()));
                }
                bail!("no room")
            };
            let mut builders: Vec<_> = (0..4)
                .map(|device| census.builder(device, |_| Ok(())))
                .collect();
            builders[2] = census.builder(2, fail);
            let error = Engine::new(builders).unwrap_err();
            assert!(matches!(
                error,
                EngineError::Build {
                    device: DeviceId(2),
                    ..
                }
            ));
            assert!(error.to_string().contains("no room"), "{error}");
            assert_eq!(census.now(), (0, 0));
        }
    });
}

#[test]
fn stages_must_be_numbered_without_gap_or_repetition() {
    watched(|| {
        let census = Census::default();
        for (numbers, bad, times) in [([0, 0], 0, 2), ([0, 2], 1, 0)] {
            let builders = numbers
                .map(|number| census.builder(number, |_| Ok(())))
                .into();
            let error = Engine::<Plain>::new(builders).unwrap_err();
            let EngineError::Placement {
                stage,
                times: found,
                ..
            } = error
            else {
                panic!("{error}")
            };
            assert_eq!((stage, found), (StageId(bad), times));
        }
        assert!(matches!(
            Engine::<Plain>::new(Vec::new()),
            Err(EngineError::NoDevices)
        ));
        assert_eq!(census.now(), (0, 0));
    });
}

#[test]
fn each_device_has_one_named_thread_for_its_whole_life() {
    watched(|| {
        let census = Census::default();
        let mut engine = census.engine(3);
        let name = |_: StageId, _: &mut Plain| {
            let thread = std::thread::current();
            Ok((thread.name().map(str::to_owned), thread.id()))
        };
        let before = engine.on_each(name).unwrap();
        let names: Vec<_> = before
            .iter()
            .map(|(name, _)| name.clone().unwrap())
            .collect();
        assert_eq!(names, ["stage-0", "stage-1", "stage-2"]);
        let program = chain(ScheduleKind::OneFOneB, 3, 2);
        engine
            .step(&program, Arc::new(()), census.entries(2))
            .unwrap();
        assert_eq!(engine.on_each(name).unwrap(), before);
    });
}

#[test]
fn jobs_run_on_every_stage_or_on_one_and_report_in_stage_order() {
    watched(|| {
        let topology = Arc::new(Topology::chain(4));
        // Device 0 has stages 0 and 3.
        let rows = ["0F0 3F0", "1F0", "2F0"];
        let row = |row: &str| {
            row.split(' ')
                .map(|a| a.parse::<Action>().unwrap())
                .collect()
        };
        let schedule = Schedule::new("v", 4, 1, rows.map(row).to_vec())
            .check()
            .unwrap();
        let mut engine = affine_engine(&schedule, &topology);
        assert_eq!((engine.devices(), engine.stages()), (3, 4));
        assert_eq!(engine.device_of(StageId(3)), Some(DeviceId(0)));
        let ids = engine.on_each(|id, stage| Ok((id, stage.id))).unwrap();
        assert_eq!(
            ids,
            (0..4).map(|s| (StageId(s), StageId(s))).collect::<Vec<_>>()
        );
        let owned = String::from("moved in");
        let job = move |stage: &mut Affine| Ok(format!("{owned}: {}", stage.id));
        assert_eq!(engine.on_stage(StageId(3), job).unwrap(), "moved in: 3");
        let error = engine.on_stage(StageId(4), |_| Ok(())).unwrap_err();
        assert!(matches!(
            error,
            EngineError::NoStage {
                stage: StageId(4),
                stages: 4
            }
        ));
        let error = engine.on_stage(StageId(1), |_| -> anyhow::Result<()> { bail!("no") });
        assert_eq!(
            error.unwrap_err().to_string(),
            "stage 1, layer `affine.1`, job: no"
        );
    });
}

/// Panics when dropped, if the flag is set.
#[derive(Debug)]
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 {
            std::panic::resume_unwind(Box::new("made to panic when dropped"));
        }
    }
}

/// Passes values on, and fails at micro-batch 1.
struct Passing;

impl Stage for Passing {
    type Value = Bomb;
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<Bomb>) -> anyhow::Result<Vec<Bomb>> {
        anyhow::ensure!(action.micro != MicroId(1), "made to fail");
        Ok(inputs)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// Regression: dropping a failed step's values for the caller could panic and end the device's
/// thread; the error was then that the thread is gone, and the engine was lost.
#[test]
fn values_that_panic_when_dropped_do_not_end_a_thread() {
    watched(|| {
        let build = Box::new(|| Ok(vec![(StageId(0), Passing)])) as StageBuilder<Passing>;
        let mut engine = Engine::new(vec![build]).unwrap();
        let program = chain(ScheduleKind::ForwardOnly, 1, 2);
        let mut step = |panics| {
            let entry = |micro| Entry {
                edge: EdgeId(0),
                micro: MicroId(micro),
                value: Bomb(panics && micro == 0),
            };
            let entries = (0..2).map(entry).collect();
            engine.step(&program, Arc::new(()), entries).unwrap_err()
        };
        for panics in [true, false] {
            let error = step(panics).to_string();
            assert_eq!(error, "stage 0, micro-batch 1, forward: made to fail");
        }
    });
}

/// Panics in `observer` if the flag is set.
struct Observed(bool);

impl Stage for Observed {
    type Value = ();
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, _: Action, inputs: Vec<()>) -> anyhow::Result<Vec<()>> {
        Ok(inputs)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}

    fn observer(&self) -> Option<Observer> {
        if self.0 {
            std::panic::resume_unwind(Box::new("made to panic"));
        }
        None
    }
}

/// Regression: the panic of an `observer` passed the border of the stage and ended the thread, and
/// the error did not say why.
#[test]
fn an_observer_that_panics_is_an_error_of_its_device() {
    watched(|| {
        let build = |panics: bool, stage: usize| {
            let build = move || Ok(vec![(StageId(stage), Observed(panics))]);
            Box::new(build) as StageBuilder<Observed>
        };
        let error = Engine::new(vec![build(false, 0), build(true, 1)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "building the stages of device 1: panicked: made to panic"
        );
    });
}
