//! A step that fails names the culprit, hangs nothing and leaves no trace.

use crate::support::rig::{Rig, stage_error};
use crate::support::{Affine, Fault, Gate, How, Settings, When, entries, schedule, watched};
use gpipe_engine::{EngineError, Panicked, Phase};
use gpipe_partitioner::{ActionKind, MicroId, ScheduleKind, StageId};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn an_error_reads_like_a_place_and_a_panic_keeps_its_type() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 2, 4));
        let when = When::Action(ActionKind::Backward, MicroId(2));
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
        let said = error.source.to_string();
        assert!(
            said.starts_with("panicked: told to panic 42 times"),
            "{said}"
        );
        rig.check_unharmed();
    });
}

#[test]
fn when_all_stages_fail_at_once_one_of_them_is_named() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::GPipe, 4, 3));
        for when in [
            When::Begin,
            When::Action(ActionKind::Forward, MicroId(0)),
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
            let when = When::Action(ActionKind::Backward, MicroId(3));
            let faults = vec![Fault {
                stage: StageId(0),
                when,
                how: How::Error,
            }];
            stage_error(rig.fail(Settings {
                faults,
                ..Settings::default()
            }));
            // All stages have begun by the time of the first stage's last backward.
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
        let when = When::Action(ActionKind::Backward, MicroId(3));
        let settings = Settings {
            faults: vec![Fault {
                stage: StageId(0),
                when,
                how: How::Error,
            }],
            abort_panics: vec![StageId(2), StageId(1)],
            ..Settings::default()
        };
        let error = rig.fail(settings);
        assert_eq!(error.stage_error().unwrap().stage, StageId(0));
        let EngineError::Abort { first, abort } = error else {
            panic!("{error}")
        };
        assert_eq!(first.action, Phase::Action(ActionKind::Backward));
        assert_eq!((abort.stage, abort.action), (StageId(1), Phase::Abort));
        rig.check_unharmed();
    });
}

#[test]
fn settings_program_and_values_are_released_by_the_time_a_step_returns() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 3, 4));
        let when = When::Action(ActionKind::Forward, MicroId(2));
        for faults in [
            vec![],
            vec![Fault {
                stage: StageId(2),
                when,
                how: How::Error,
            }],
        ] {
            let fails = !faults.is_empty();
            let entries = entries(&rig.program, 77);
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

/// Long enough for an action of a few nanoseconds, even on a busy machine.
const PATIENCE: Duration = Duration::from_millis(300);

fn blocked(stage: usize, when: When) -> (Settings, Gate) {
    let settings = Settings {
        faults: vec![Fault {
            stage: StageId(stage),
            when,
            how: How::Blocks,
        }],
        ..Settings::default()
    };
    let gate = settings.gate.clone();
    (settings, gate)
}

/// Regression: when a layer waited for something that never came, the caller waited for ever and
/// got no message that named the layer.
#[test]
fn a_stage_that_does_not_come_back_is_named_and_the_step_undone_when_it_does() {
    watched(|| {
        for (when, place) in [
            (When::Begin, "begin of the step"),
            (
                When::Action(ActionKind::Forward, MicroId(2)),
                "micro-batch 2, forward",
            ),
            (
                When::Action(ActionKind::Backward, MicroId(0)),
                "micro-batch 0, backward",
            ),
            (When::End, "end of the step"),
        ] {
            let mut rig = Rig::new(schedule(ScheduleKind::OneFOneB, 3, 4));
            rig.engine.set_patience(Some(PATIENCE));
            let (settings, gate) = blocked(1, when);
            let error = rig.fail(settings);
            let EngineError::Stalled(stall) = &error else {
                panic!("{error}");
            };
            assert_eq!(stall.stage, Some(StageId(1)));
            assert_eq!(
                error.to_string(),
                format!(
                    "device 1, stage 1, layer `affine.1`, {place}: it has not come back for 300ms, which \
                     is the patience that was set: it waits for something, or needs more time than that"
                )
            );
            // The stage is still blocked: the next call does not wait for ever, either.
            let again = rig.engine.on_each(|_, _| Ok(())).unwrap_err();
            assert_eq!(again.to_string(), error.to_string());
            gate.open();
            rig.engine.set_patience(None);
            rig.check_unharmed();
        }
    });
}

#[test]
fn an_engine_with_a_stage_that_never_comes_back_can_be_dropped() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::GPipe, 3, 2));
        rig.engine.set_patience(Some(PATIENCE));
        let (settings, gate) = blocked(0, When::Action(ActionKind::Forward, MicroId(1)));
        rig.fail(settings);
        drop(rig);
        gate.open();
    });
}

#[test]
fn a_failure_before_a_stall_is_told_with_it() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::GPipe, 2, 2));
        rig.engine.set_patience(Some(PATIENCE));
        let (mut settings, gate) = blocked(1, When::Begin);
        settings.faults.push(Fault {
            stage: StageId(0),
            when: When::Begin,
            how: How::ErrorBeside,
        });
        let error = rig.fail(settings).to_string();
        let first =
            "stage 0, layer `affine.0`, begin of the step: made to fail; then device 1, stage 1";
        assert!(error.starts_with(first), "{error}");
        gate.open();
        rig.engine.set_patience(None);
        rig.check_unharmed();
    });
}

#[test]
fn after_a_stall_in_a_job_the_engine_can_only_be_dropped() {
    watched(|| {
        let mut rig = Rig::new(schedule(ScheduleKind::GPipe, 2, 2));
        rig.engine.set_patience(Some(PATIENCE));
        let gate = Gate::default();
        let there = gate.clone();
        let job = move |id: StageId, _: &mut Affine| {
            if id == StageId(1) {
                there.pass();
            }
            Ok(())
        };
        let error = rig.engine.on_each(job).unwrap_err().to_string();
        assert!(
            error.starts_with("device 1, stage 1, layer `affine.1`, job: "),
            "{error}"
        );
        gate.open();
        let error = rig.engine.on_each(|_, _| Ok(())).unwrap_err();
        assert!(matches!(error, EngineError::Broken), "{error}");
    });
}
