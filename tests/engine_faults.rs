//! A step that fails names the culprit, hangs nothing and leaves no trace.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_possible_wrap)]

mod engine_support;

use engine_support::{
    Affine, Fault, Grads, How, Settings, When, affine_engine, entries, oracle, schedule, watched,
};
use gpipe::engine::{Engine, EngineError, Panicked, Phase, Program, StageError, Topology};
use gpipe_partitioner::{Action, CheckedSchedule, Kind, MicroId, Schedule, ScheduleKind, StageId};
use std::sync::Arc;

const SEED: i64 = 77;

struct Rig {
    engine: Engine<Affine>,
    program: Arc<Program>,
    /// Gradients after one good step.
    once: Vec<Grads>,
    good_steps: usize,
}

impl Rig {
    fn new(schedule: CheckedSchedule) -> Self {
        let stages = schedule.schedule().stages();
        let topology = Arc::new(Topology::chain(stages));
        let mut engine = affine_engine(&schedule, &topology);
        let program = Arc::new(Program::new(schedule, &topology).unwrap());
        engine
            .step(&program, Arc::default(), entries(&program, SEED))
            .unwrap();
        let once = engine.on_each(|_, stage| Ok(stage.grads)).unwrap();
        Self {
            engine,
            program,
            once,
            good_steps: 1,
        }
    }

    fn fail(&mut self, settings: Settings) -> EngineError {
        let entries = entries(&self.program, SEED + 1);
        self.engine
            .step(&self.program, Arc::new(settings), entries)
            .unwrap_err()
    }

    /// The next step gives what it would have given without the failed ones.
    fn check_unharmed(&mut self) {
        let entries = entries(&self.program, SEED);
        let outcome = self
            .engine
            .step(&self.program, Arc::default(), entries)
            .unwrap();
        self.good_steps += 1;
        let schedule = self.program.schedule();
        let micros = schedule.schedule().micro_batches();
        let expected = oracle(
            self.program.topology(),
            micros,
            schedule.is_training(),
            SEED,
        );
        assert_eq!(outcome.exits, expected.exits);
        assert_eq!(outcome.gradients, expected.gradients);
        let now = self.engine.on_each(|_, stage| Ok(stage.grads)).unwrap();
        for (now, once) in now.iter().zip(&self.once) {
            let times = self.good_steps as i64;
            assert_eq!(now.weight, once.weight.wrapping_mul(times));
            assert_eq!(now.bias, once.bias.wrapping_mul(times));
        }
    }
}

fn stage_error(error: EngineError) -> StageError {
    match error {
        EngineError::Stage(error) => error,
        other => panic!("not the failure of a stage: {other}"),
    }
}

fn split_backward() -> CheckedSchedule {
    let rows = ["0F0 0F1 0R0 0I0 0W0 0R1 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"];
    let row = |row: &str| {
        row.split_whitespace()
            .map(|a| a.parse::<Action>().unwrap())
            .collect()
    };
    Schedule::new("split", 2, 2, rows.map(row).to_vec())
        .check()
        .unwrap()
}

fn message(how: How) -> &'static str {
    match how {
        How::Error => "made to fail",
        How::Panic => "panicked: made to panic",
        How::TooManyValues => "where",
    }
}

#[test]
fn a_fault_in_any_action_is_named_and_undone() {
    watched(|| {
        for schedule in [
            schedule(ScheduleKind::GPipe, 3, 4),
            schedule(ScheduleKind::OneFOneB, 3, 4),
            schedule(ScheduleKind::ForwardOnly, 3, 4),
            schedule(ScheduleKind::OneFOneB, 1, 2),
            split_backward(),
        ] {
            let actions: Vec<Action> = schedule
                .schedule()
                .iter()
                .flat_map(|(_, row)| row.to_vec())
                .collect();
            let mut rig = Rig::new(schedule);
            for action in actions {
                for how in [How::Error, How::Panic, How::TooManyValues] {
                    let when = When::Action(action.kind, action.micro);
                    let faults = vec![Fault {
                        stage: action.stage,
                        when,
                        how,
                    }];
                    let error = stage_error(rig.fail(Settings {
                        faults,
                        ..Settings::default()
                    }));
                    assert_eq!(error.stage, action.stage);
                    assert_eq!(error.micro, Some(action.micro));
                    assert_eq!(error.action, Phase::Action(action.kind));
                    assert_eq!(error.layer, Some(format!("affine.{}", action.stage)));
                    assert!(error.source.to_string().contains(message(how)), "{error}");
                }
                rig.check_unharmed();
            }
        }
    });
}

#[test]
fn a_fault_in_begin_or_end_is_named_and_undone() {
    watched(|| {
        for stage in (0..3).map(StageId) {
            let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 3, 4));
            for (when, phase) in [(When::Begin, Phase::Begin), (When::End, Phase::End)] {
                for how in [How::Error, How::Panic] {
                    let faults = vec![Fault { stage, when, how }];
                    let error = stage_error(rig.fail(Settings {
                        faults,
                        ..Settings::default()
                    }));
                    assert_eq!(
                        (error.stage, error.micro, error.action),
                        (stage, None, phase)
                    );
                    assert!(error.source.to_string().contains(message(how)));
                    rig.check_unharmed();
                }
            }
        }
    });
}

#[test]
fn an_error_reads_like_a_place_and_a_panic_keeps_its_type() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 2, 4));
        let when = When::Action(Kind::Backward, MicroId(2));
        let faults = vec![Fault {
            stage: StageId(1),
            when,
            how: How::Panic,
        }];
        let error = stage_error(rig.fail(Settings {
            faults,
            ..Settings::default()
        }));
        assert_eq!(
            error.to_string(),
            "stage 1, layer `affine.1`, micro-batch 2, backward: panicked: made to panic"
        );
        let panicked: &Panicked = error.source.downcast_ref().unwrap();
        assert_eq!(panicked.message, "made to panic");
    });
}

#[test]
fn a_real_panic_with_a_formatted_message_is_caught_too() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::GPipe, 2, 2));
        let number = 41 + 1;
        let job = move |id: StageId, _: &mut Affine| -> anyhow::Result<()> {
            assert!(id != StageId(1), "told to panic {number} times");
            Ok(())
        };
        let error = stage_error(rig.engine.on_each(job).unwrap_err());
        assert_eq!((error.stage, error.action), (StageId(1), Phase::Job));
        assert_eq!(error.source.to_string(), "panicked: told to panic 42 times");
        rig.check_unharmed();
    });
}

#[test]
fn when_all_stages_fail_at_once_one_of_them_is_named() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::GPipe, 4, 3));
        for when in [
            When::Begin,
            When::Action(Kind::Forward, MicroId(0)),
            When::End,
        ] {
            for _ in 0..50 {
                let fault = |stage| Fault {
                    stage: StageId(stage),
                    when,
                    how: How::Error,
                };
                let faults = (0..4).map(fault).collect();
                stage_error(rig.fail(Settings {
                    faults,
                    ..Settings::default()
                }));
            }
            rig.check_unharmed();
        }
    });
}

#[test]
fn only_stages_that_began_the_step_abort_and_each_does_once() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 3, 4));
        for round in 1..=20 {
            let when = When::Action(Kind::Backward, MicroId(3));
            let faults = vec![Fault {
                stage: StageId(0),
                when,
                how: How::Error,
            }];
            stage_error(rig.fail(Settings {
                faults,
                ..Settings::default()
            }));
            // By the first stage's last backward all have begun.
            let aborts = rig.engine.on_each(|_, stage| Ok(stage.aborts)).unwrap();
            assert_eq!(aborts, vec![round; 3]);
        }
        rig.check_unharmed();
    });
}

#[test]
fn a_panic_in_abort_is_told_beside_the_first_failure() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 3, 4));
        let when = When::Action(Kind::Backward, MicroId(3));
        let settings = Settings {
            faults: vec![Fault {
                stage: StageId(0),
                when,
                how: How::Error,
            }],
            abort_panics: vec![StageId(2), StageId(1)],
        };
        let error = rig.fail(settings);
        assert_eq!(error.stage_error().unwrap().stage, StageId(0));
        let EngineError::Abort { first, abort } = error else {
            panic!("{error}")
        };
        assert_eq!(first.action, Phase::Action(Kind::Backward));
        assert_eq!((abort.stage, abort.action), (StageId(1), Phase::Abort));
        rig.check_unharmed();
    });
}

#[test]
fn settings_program_and_values_are_released_by_the_time_a_step_returns() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 3, 4));
        let when = When::Action(Kind::Forward, MicroId(2));
        for faults in [
            vec![],
            vec![Fault {
                stage: StageId(2),
                when,
                how: How::Error,
            }],
        ] {
            let fails = !faults.is_empty();
            let entries = entries(&rig.program, SEED);
            let settings = Arc::new(Settings {
                faults,
                ..Settings::default()
            });
            let result = rig.engine.step(&rig.program, settings, entries);
            assert_eq!(result.is_err(), fails);
            assert_eq!(Arc::strong_count(&rig.program), 1);
        }
    });
}
