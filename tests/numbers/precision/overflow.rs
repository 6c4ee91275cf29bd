//! A gradient beyond the range of half precision costs one whole step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Tensor, nn};
use gpipe::{
    Error, Optimizer, Pipeline, Sequential,
    error::NonFinite,
    layers,
    optim::AdamW,
    settings::{LossScale, Precision},
};
use serde_json::json;

use super::{builder, copied};
use crate::support::everywhere::{plain_linear, with_linear};
use crate::support::*;

/// A loss whose gradient overflows at call `at`, from 0: in one micro-batch only.
fn overflowing(at: usize) -> impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync {
    let calls = Arc::new(AtomicUsize::new(0));
    move |out: &Tensor, y: &Tensor| {
        let loss = cross_entropy(out, y);
        if calls.fetch_add(1, Ordering::Relaxed) == at {
            return loss * 1e9;
        }
        loss
    }
}

fn half(initial: f64) -> LossScale {
    LossScale {
        initial,
        ..LossScale::default()
    }
}

fn optimizer() -> Optimizer {
    Optimizer::new(AdamW {
        lr: 0.01,
        ..AdamW::default()
    })
}

#[test]
fn one_overflow_skips_exactly_one_step_on_all_stages() {
    let training = |kind: &ScheduleKind| *kind != ScheduleKind::ForwardOnly;
    for schedule in ScheduleKind::ALL.into_iter().filter(training) {
        let fits = (1..=3).filter(|&stages| one_overflow_skips_one_step(stages, schedule));
        // Some need a number of micro-batches that three devices divide.
        assert!(fits.count() >= 2, "{schedule}");
    }
}

/// Returns whether such a pipeline exists.
fn one_overflow_skips_one_step(stages: usize, schedule: ScheduleKind) -> bool {
    let (x, y) = mlp_batch(8);
    let what = format!("p={stages} {schedule}");
    let pipe = || {
        let builder = builder(stages, Precision::Fp16).schedule(schedule);
        builder.loss_scale(half(256.0)).build()
    };
    let (Ok(mut hit), Ok(mut spared)) = (pipe(), pipe()) else {
        return false;
    };
    let mut optimizers = [optimizer(), optimizer()];
    let mut skipped = Vec::new();
    for step in 0..5 {
        // The second of the third step's four micro-batches.
        let loss = overflowing(if step == 2 { 1 } else { usize::MAX });
        let before = snapshot(&mut hit);
        let report = hit.train_step(&x, &y, loss).unwrap();
        let scale = if step < 3 { 256.0 } else { 128.0 };
        assert_eq!(report.read().unwrap().loss_scale, Some(scale), "{what}");
        skipped.push(report.read().unwrap().skipped());
        optimizers[0].step(&mut hit).unwrap();
        for ((name, before), (_, after)) in before.iter().zip(&snapshot(&mut hit)) {
            assert_eq!(before.equal(after), step == 2, "{what}: {name}");
        }
        if step == 2 {
            // The other run leaves this step out.
            let state = hit.loss_scale_state().unwrap();
            spared.restore_loss_scale(&state).unwrap();
            continue;
        }
        spared.train_step(&x, &y, cross_entropy).unwrap();
        optimizers[1].step(&mut spared).unwrap();
    }
    assert_eq!(skipped, [false, false, true, false, false], "{what}");
    assert_same_bits(&snapshot(&mut hit), &snapshot(&mut spared), &what);
    assert_eq!(hit.loss_scale_state(), spared.loss_scale_state());
    true
}

#[test]
fn the_report_says_what_overflowed_and_the_scale_is_halved() {
    let (x, y) = mlp_batch(8);
    let mut pipe = builder(2, Precision::Fp16).build().unwrap();
    assert_eq!(pipe.loss_scale(), Some(65536.0));
    let report = pipe.train_step(&x, &y, overflowing(0)).unwrap();
    assert!(report.read().unwrap().skipped());
    let what = report.read().unwrap().non_finite.clone().unwrap();
    assert!(what.starts_with("the gradient of `"), "{what}");
    assert!(report.read().unwrap().loss.is_finite());
    assert_eq!(report.read().unwrap().loss_scale, Some(65536.0));
    assert_eq!(pipe.loss_scale(), Some(32768.0));
}

/// Gradients of earlier calls are unchanged, so that the batch can be tried again.
#[test]
fn gradients_of_earlier_steps_outlive_an_overflow() {
    let (x, y) = mlp_batch(8);
    let mut pipe = builder(2, Precision::Fp16).build().unwrap();
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    let before = copied(gradients(&mut pipe));
    assert!(!before.is_empty());
    assert!(
        pipe.train_step(&x, &y, overflowing(3))
            .unwrap()
            .read()
            .unwrap()
            .skipped()
    );
    assert_same_bits(&gradients(&mut pipe), &before, "after the overflow");
    assert!(
        !pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .skipped()
    );
    for ((name, once), (_, twice)) in before.iter().zip(&gradients(&mut pipe)) {
        assert!(twice.allclose(&(once * 2), 1e-2, 1e-4, false), "{name}");
    }
}

#[test]
fn statistics_of_an_overflown_step_do_not_count() {
    let model = Sequential::new()
        .layer("linear", |p| {
            nn::linear(p, 12, 6, nn::LinearConfig::default())
        })
        .layer("norm", |p| {
            layers::BatchNorm::new(p, 6, nn::BatchNormConfig::default())
        })
        .layer("head", |p| nn::linear(p, 6, 5, nn::LinearConfig::default()));
    let mut pipe = Pipeline::builder(model)
        .devices(&cpus(3))
        .micro_batches(2)
        .precision(Precision::Fp16)
        .build()
        .unwrap();
    let (x, y) = mlp_batch(8);
    let before = copied(pipe.buffers().unwrap());
    assert!(
        pipe.train_step(&x, &y, overflowing(1))
            .unwrap()
            .read()
            .unwrap()
            .skipped()
    );
    assert_same_bits(&pipe.buffers().unwrap(), &before, "after the overflow");
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert!(!pipe.buffers().unwrap()[0].1.equal(&before[0].1));
}

#[test]
fn other_precisions_have_no_scale_and_nobody_looks() {
    let (x, y) = mlp_batch(8);
    for precision in [Precision::F32, Precision::Bf16] {
        let mut pipe = builder(2, precision).build().unwrap();
        let infinite = |out: &Tensor, y: &Tensor| cross_entropy(out, y) * f64::INFINITY;
        let report = pipe.train_step(&x, &y, infinite).unwrap();
        assert!(!report.read().unwrap().skipped());
        assert_eq!(
            (report.read().unwrap().loss_scale, pipe.loss_scale()),
            (None, None)
        );
        assert_eq!(pipe.loss_scale_state(), None);
    }
}

/// A model whose second layer multiplies by `factor`.
fn multiplied(factor: f64) -> Sequential {
    let model = plain_linear(Sequential::new(), "first");
    let model = with_linear(model, "second", move |x, linear, _| {
        Ok(x.apply(linear) * factor)
    });
    plain_linear(model, "third")
}

fn multiplied_pipeline(factor: f64, non_finite: NonFinite) -> Pipeline {
    Pipeline::builder(multiplied(factor))
        .devices(&cpus(3))
        .micro_batches(2)
        .precision(Precision::Fp16)
        .on_non_finite(non_finite)
        .build()
        .unwrap()
}

/// With every setting, the loss scale handles an overflow of gradients.
#[test]
fn an_overflow_skips_the_step_whatever_non_finite_says() {
    let (x, y) = batch(&[8, 8], 8);
    for non_finite in [NonFinite::Allow, NonFinite::Skip, NonFinite::Fail] {
        let mut pipe = multiplied_pipeline(1.0, non_finite);
        let report = pipe.train_step(&x, &y, overflowing(1)).unwrap();
        assert!(report.read().unwrap().skipped(), "{non_finite:?}");
        assert_eq!(pipe.loss_scale(), Some(32768.0));
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        assert!(!report.read().unwrap().skipped(), "{non_finite:?}");
    }
}

/// Infinite activations give infinite gradients: no scale helps, but the step is skipped, or fails if so
/// configured.
#[test]
fn an_overflow_of_the_forward_skips_or_fails_as_told() {
    let (x, y) = batch(&[8, 8], 8);
    for non_finite in [NonFinite::Allow, NonFinite::Skip] {
        let mut pipe = multiplied_pipeline(1e30, non_finite);
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        let what = report.read().unwrap().non_finite.clone().unwrap();
        let expected = match non_finite {
            NonFinite::Skip => "the loss (NaN)",
            _ => "the gradient of `",
        };
        assert!(what.starts_with(expected), "{what}");
    }
    let mut pipe = multiplied_pipeline(1e30, NonFinite::Fail);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    let expected = "stage 1, layer `second`, micro-batch 0, forward: an output is not finite";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(pipe.loss_scale(), Some(65536.0), "a failed step was none");
}

/// A run must not skip steps forever.
#[test]
fn a_model_that_no_scale_helps_is_an_error_in_the_end() {
    let (x, y) = batch(&[8, 8], 8);
    let mut pipe = multiplied_pipeline(1e30, NonFinite::Allow);
    let state = json!({ "scale": 2.0_f64.powi(-13), "good_steps": 0 });
    pipe.restore_loss_scale(&state).unwrap();
    assert!(
        pipe.train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .skipped()
    );
    let before = snapshot(&mut pipe);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    assert!(matches!(error, Error::LossScale { .. }));
    assert!(!error.is_wrong_use());
    let text = error.to_string();
    assert!(
        text.contains("with a loss scale as small as 0.00006103515625"),
        "{text}"
    );
    assert!(text.contains("bf16"), "{text}");
    assert!(gradients(&mut pipe).is_empty(), "the step is undone");
    assert_same_bits(&snapshot(&mut pipe), &before, "weights");
    let _ = pipe.forward(&x).unwrap();
}
