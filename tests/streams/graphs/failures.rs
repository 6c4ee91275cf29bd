//! Captures and steps that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;

use super::setup::{Pair, Setup, WARM_UP};
use crate::support::everywhere::failing_at;
use crate::support::models::{self, Model};
use crate::support::{batch, cross_entropy, single_threaded};

#[test]
fn a_capture_that_is_refused_leaves_a_stage_that_goes_on() {
    // For the second model, a backward without a graph reruns the forward, and must find the buffers of its
    // micro-batch.
    refused_captures(&models::unet());
    refused_captures(&models::moving());
}

fn refused_captures(model: &Model) {
    single_threaded();
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let setup = Setup {
            stages: 2,
            micro_batches: 4,
            schedule,
        };
        // A stage's captures are consecutive, so forwards, backwards and weight passes are among them.
        for number in 0..8 {
            let case = format!("{} {schedule}, capture {number}", model.name);
            let mut pair = Pair::new(&setup, || setup.builder(model.sequential()));
            pair.recorder.refuse_capture(number);
            let batch = (model.batch)(8);
            for _ in 0..WARM_UP + 3 {
                pair.step(&batch, || model.loss, &case);
            }
            let uses = pair.finish(&case);
            let reasons: Vec<_> = uses.iter().filter_map(|used| used.eager.as_ref()).collect();
            assert!(reasons.len() <= 1, "{case}: {reasons:?}");
            for reason in &reasons {
                assert!(
                    reason.contains("its capture failed: operation not"),
                    "{reason}"
                );
            }
            if number < 4 {
                assert_eq!(reasons.len(), 1, "{case}");
            }
        }
    }
}

#[test]
fn a_layer_that_fails_while_it_is_captured_is_named() {
    single_threaded();
    let setup = Setup {
        stages: 2,
        micro_batches: 2,
        schedule: ScheduleKind::GPipe,
    };
    // The first stage's first run detects its writes; then there are two runs per step.
    let capture = 2 * WARM_UP + 1;
    let build = |time: usize| setup.builder(failing_at(time)).balance(&[2, 1]);
    let runs = AtomicUsize::new(0);
    let mut pair = Pair::new(&setup, || {
        let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
        build(if first { 0 } else { capture })
    });
    let batch = batch(&[8, 8], 8);
    for step in 0..WARM_UP + 3 {
        pair.step(&batch, || cross_entropy, &format!("step {step}"));
    }
    let uses = pair.finish("named");
    assert_eq!(
        uses[0].eager.as_deref(),
        Some("its capture failed in layer `two`: as asked")
    );
    assert_eq!((uses[0].captured, uses[0].replayed), (0, 0));
    assert_eq!(uses[1].eager, None);
}

#[test]
fn a_step_that_fails_is_undone_and_its_slots_are_used_again() {
    single_threaded();
    let model = models::mlp();
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        for failing in WARM_UP..WARM_UP + 3 {
            let setup = Setup {
                stages: 2,
                micro_batches: 4,
                schedule,
            };
            let case = format!("{schedule}, step {failing}");
            let mut pair = Pair::new(&setup, || setup.builder(model.sequential()));
            let batch = (model.batch)(8);
            for step in 0..WARM_UP + 4 {
                if step == failing {
                    let seen = Arc::new(AtomicUsize::new(0));
                    let failing = || {
                        let seen = Arc::clone(&seen);
                        move |out: &Tensor, y: &Tensor| {
                            let third = seen.fetch_add(1, Ordering::SeqCst) % 3 == 2;
                            anyhow::ensure!(!third, "as asked");
                            anyhow::Ok(out.cross_entropy_for_logits(y))
                        }
                    };
                    for run in [&mut pair.plain, &mut pair.graphs] {
                        let error = run.step(&batch, failing()).unwrap_err().to_string();
                        assert!(error.contains("as asked"), "{case}: {error}");
                    }
                }
                pair.step(&batch, || model.loss, &case);
            }
            let uses = pair.finish(&case);
            assert!(
                uses.iter().all(|used| used.eager.is_none()),
                "{case}: {uses:?}"
            );
        }
    }
}
