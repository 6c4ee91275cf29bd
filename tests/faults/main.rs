//! Any failure in a layer or the loss function gives an error that names the place, does not hang, and leaves
//! the numbers of a run without the failure.
#![allow(clippy::unwrap_used)]

mod actions;
mod brittle;
mod build_errors;
mod quiet;
mod refused;
mod said_once;
mod stalled;
#[path = "../support/mod.rs"]
mod support;
mod updates;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use gpipe::partitioner::{MicroId, ScheduleKind, StageId};
use gpipe::tch::{self, Tensor};
use gpipe::{Error, Pipeline};

use brittle::{FAULTS, Fault, MICRO_BATCHES, NEVER, STAGES, setup};
use support::*;

#[test]
fn a_fault_on_any_stage_and_micro_batch_is_named_and_leaves_no_trace() {
    watched(|| {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
            for fault in FAULTS {
                let mut calm = setup(fault, schedule);
                let mut hit = setup(fault, schedule);
                for stage in 0..STAGES {
                    for micro in 0..MICRO_BATCHES {
                        let error = hit.bad_step(stage, micro);
                        check_place(&error, fault, stage, micro);
                        assert_eq!(hit.good_step(), calm.good_step(), "after {error}");
                    }
                }
                let what = format!("{fault:?}, {schedule}");
                assert_same_bits(&snapshot(&mut hit.pipe), &snapshot(&mut calm.pipe), &what);
            }
        }
    });
}

fn check_place(error: &Error, fault: Fault, stage: usize, micro: usize) {
    let at = error
        .stage_error()
        .unwrap_or_else(|| panic!("no stage in `{error}`"));
    let text = error.to_string();
    let (layer, action, why) = match fault {
        Fault::Error => (format!("brittle{stage}"), "forward", "the layer gives up"),
        Fault::Panic => (
            format!("brittle{stage}"),
            "forward",
            "panicked: the layer panics",
        ),
        Fault::TorchPanic => (format!("brittle{stage}"), "forward", "cannot be multiplied"),
        Fault::Shape => (format!("norm{stage}"), "forward", "running_mean"),
        Fault::Backward => (format!("brittle{stage}"), "backward", "inplace operation"),
    };
    assert_eq!(at.stage, StageId(stage), "{text}");
    assert_eq!(at.micro, Some(MicroId(micro)), "{text}");
    assert_eq!(at.layer.as_deref(), Some(layer.as_str()), "{text}");
    for part in [
        format!("stage {stage}"),
        layer,
        format!("micro-batch {micro}"),
    ] {
        assert!(text.contains(&part), "`{text}` does not say `{part}`");
    }
    assert!(text.contains(action) && text.contains(why), "{text}");
    assert!(!text.contains("frame #"), "a back-trace in `{text}`");
}

#[test]
fn a_loss_function_that_fails_names_the_last_stage_and_the_loss() {
    watched(|| {
        let mut setup = setup(Fault::Error, ScheduleKind::OneFOneB);
        let (x, y) = mlp_batch(13);
        let before = snapshot(&mut setup.pipe);
        let panics = |out: &Tensor, _: &Tensor| -> Tensor {
            assert!(out.size()[1] == 0, "the loss panics");
            out.shallow_clone()
        };
        let errs =
            |_: &Tensor, _: &Tensor| -> anyhow::Result<Tensor> { anyhow::bail!("no loss today") };
        let vector = |out: &Tensor, _: &Tensor| out.sum_dim_intlist(1_i64, false, None);
        let constant = |_: &Tensor, _: &Tensor| Tensor::from(1.0_f32);
        let backward = |out: &Tensor, _: &Tensor| {
            let mut curve = out.exp();
            tch::no_grad(|| {
                let _ = curve.fill_(2.0);
            });
            curve.mean(None)
        };
        let results = [
            (setup.pipe.train_step(&x, &y, panics), "the loss panics"),
            (setup.pipe.train_step(&x, &y, errs), "no loss today"),
            (setup.pipe.train_step(&x, &y, vector), "must be one number"),
            (
                setup.pipe.train_step(&x, &y, constant),
                "does not depend on any parameter",
            ),
            (setup.pipe.train_step(&x, &y, backward), "inplace operation"),
        ];
        for (result, why) in results {
            let error = result.unwrap_err();
            let at = error.stage_error().unwrap();
            assert_eq!(
                (at.stage, at.layer.as_deref()),
                (StageId(STAGES - 1), Some("loss")),
                "{error}"
            );
            assert_eq!(at.micro, Some(MicroId(0)), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_same_bits(&snapshot(&mut setup.pipe), &before, "nothing moved");
    });
}

/// A failed step must not change gradients of earlier ones.
#[test]
fn gradients_of_earlier_steps_survive_a_failed_one() {
    watched(|| {
        let mut setup = setup(Fault::Panic, ScheduleKind::OneFOneB);
        let (x, y) = mlp_batch(13);
        setup.pipe.train_step(&x, &y, cross_entropy).unwrap();
        let copies = |pipe: &mut Pipeline| -> Vec<(String, Tensor)> {
            gradients(pipe)
                .into_iter()
                .map(|(name, grad)| (name, grad.copy()))
                .collect()
        };
        let before = copies(&mut setup.pipe);
        for micro in 0..MICRO_BATCHES {
            setup.bad_step(0, micro);
            assert_same_bits(&copies(&mut setup.pipe), &before, "after a failed step");
        }
    });
}

#[test]
fn inference_fails_and_recovers_alike() {
    watched(|| {
        let mut setup = setup(Fault::Error, ScheduleKind::OneFOneB);
        let (x, _) = mlp_batch(13);
        let expected = setup.pipe.forward(&x).unwrap();
        setup.switches[1].store(2, Ordering::SeqCst);
        let error = setup.pipe.forward(&x).unwrap_err().to_string();
        assert!(
            error.contains("stage 1, layer `brittle1`, micro-batch 2, forward"),
            "{error}"
        );
        setup.switches[1].store(NEVER, Ordering::SeqCst);
        assert!(setup.pipe.forward(&x).unwrap().equal(&expected));
    });
}

/// Regression test: the abort of a failed inference restored the stages' state before the last training step,
/// which lost its gradients and undid its statistics.
#[test]
fn a_failed_inference_takes_nothing_from_the_step_before() {
    watched(|| {
        let mut setup = setup(Fault::Error, ScheduleKind::OneFOneB);
        let (x, y) = mlp_batch(13);
        for _ in 0..2 {
            setup.pipe.train_step(&x, &y, cross_entropy).unwrap();
        }
        let state = |pipe: &mut Pipeline| {
            let grads = gradients(pipe)
                .into_iter()
                .map(|(name, grad)| (name, grad.copy()));
            (grads.collect::<Vec<_>>(), snapshot(pipe))
        };
        let mut calm = self::setup(Fault::Error, ScheduleKind::OneFOneB);
        for _ in 0..2 {
            calm.pipe.train_step(&x, &y, cross_entropy).unwrap();
        }
        setup.switches[2].store(1, Ordering::SeqCst);
        assert!(setup.pipe.forward(&x).is_err());
        let (own, expected) = (state(&mut setup.pipe), state(&mut calm.pipe));
        assert_same_bits(&own.0, &expected.0, "gradients");
        assert_same_bits(&own.1, &expected.1, "parameters and statistics");
    });
}

/// The weights turn out invalid only after the step has run on every stage.
#[test]
fn a_step_whose_weights_are_of_no_use_is_undone() {
    watched(|| {
        let mut setup = setup(Fault::Error, ScheduleKind::OneFOneB);
        let (x, y) = mlp_batch(13);
        let before = snapshot(&mut setup.pipe);
        let weightless = |out: &Tensor, y: &Tensor| (cross_entropy(out, y), 0.0);
        let error = setup.pipe.train_step(&x, &y, weightless).unwrap_err();
        assert!(
            error.to_string().contains("nothing in the batch counts"),
            "{error}"
        );
        assert!(gradients(&mut setup.pipe).is_empty());
        assert_same_bits(&snapshot(&mut setup.pipe), &before, "statistics");
    });
}

/// Layers are dropped on their stage's thread: once none is alive, the threads have ended.
#[test]
fn dropping_the_pipeline_in_any_state_ends_its_threads() {
    watched(|| {
        for fault in FAULTS {
            let fresh = setup(fault, ScheduleKind::OneFOneB);
            let alive = Arc::clone(&fresh.alive);
            drop(fresh);
            assert_eq!(alive.load(Ordering::SeqCst), 0, "never used");

            let mut used = setup(fault, ScheduleKind::OneFOneB);
            used.good_step();
            let alive = Arc::clone(&used.alive);
            drop(used);
            assert_eq!(alive.load(Ordering::SeqCst), 0, "after a step");

            let mut failed = setup(fault, ScheduleKind::OneFOneB);
            failed.bad_step(1, 2);
            let alive = Arc::clone(&failed.alive);
            drop(failed);
            assert_eq!(alive.load(Ordering::SeqCst), 0, "after a failed step");
        }
    });
}

/// The caller's thread unwinds while it holds the pipeline.
#[test]
fn a_panic_of_the_caller_ends_the_threads_too() {
    watched(|| {
        let mut setup = setup(Fault::Error, ScheduleKind::GPipe);
        let alive = Arc::clone(&setup.alive);
        let (send, receive) = mpsc::channel::<()>();
        let caller = std::thread::spawn(move || {
            setup.good_step();
            drop(send);
            panic!("the caller panics");
        });
        assert!(receive.recv().is_err());
        assert!(caller.join().is_err());
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    });
}
