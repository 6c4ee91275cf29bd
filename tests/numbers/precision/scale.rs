//! The loss scale changes, without effect on the gradients.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Kind, Tensor};
use gpipe::{
    Error, Optimizer, Pipeline,
    optim::Sgd,
    settings::{LossScale, Precision},
};
use serde_json::{Value, json};

use super::{builder, copied};
use crate::support::*;

fn scaled(initial: f64, growth_interval: u64) -> Pipeline {
    let settings = LossScale {
        initial,
        growth_interval,
    };
    let builder = builder(3, Precision::Fp16).loss_scale(settings);
    builder.schedule(ScheduleKind::ZbH1).build().unwrap()
}

/// Relative to the largest element: half precision has three digits.
#[track_caller]
fn assert_near(got: &Tensor, expected: &Tensor, what: &str) {
    let off = (got - expected).abs().max().double_value(&[]);
    let largest = expected.abs().max().double_value(&[]);
    assert!(off < 0.02 * largest, "{what}: off by {off} of {largest}");
}

#[test]
fn gradients_and_their_norm_are_those_without_a_scale() {
    let (x, y) = mlp_batch(8);
    let x = x.set_requires_grad(true);
    let mut plain = builder(1, Precision::F32).build().unwrap();
    let report = plain.train_step(&x, &y, cross_entropy).unwrap();
    let expected = copied(gradients(&mut plain));
    let norm = plain.clip_grad_norm(0.1).unwrap();
    assert!(norm > 0.1);
    for initial in [64.0, 8192.0] {
        let mut pipe = scaled(initial, 2000);
        let own = pipe.train_step(&x, &y, cross_entropy).unwrap();
        assert!((own.read().unwrap().loss / report.read().unwrap().loss - 1.0).abs() < 0.01);
        for ((name, expected), (_, got)) in expected.iter().zip(&gradients(&mut pipe)) {
            assert_near(got, expected, name);
        }
        let input = |report: &gpipe::report::StepReport| {
            let gradient = report.input_gradient.as_ref().unwrap();
            gradient.one().unwrap().shallow_clone()
        };
        assert_near(&input(&own), &input(&report), "the input's");
        let own = pipe.clip_grad_norm(0.1).unwrap();
        assert!((own / norm - 1.0).abs() < 0.01, "{own} {norm}");
        let after = pipe.clip_grad_norm(f64::INFINITY).unwrap();
        assert!((after / 0.1 - 1.0).abs() < 1e-3, "{after}");
    }
}

/// Losses with weights are divided by their sum. Regression test: the input's gradient was not.
#[test]
fn weights_of_the_loss_function_reach_the_inputs_gradient() {
    let (x, y) = mlp_batch(10);
    let x = x.set_requires_grad(true);
    let weighted = |out: &Tensor, y: &Tensor| (cross_entropy(out, y), y.size()[0] as f64);
    let input = |precision: Precision, weights: bool| {
        let settings = LossScale {
            initial: 64.0,
            ..LossScale::default()
        };
        let mut pipe = builder(2, precision).loss_scale(settings).build().unwrap();
        let report = if weights {
            pipe.train_step(&x, &y, weighted)
        } else {
            pipe.train_step(&x, &y, cross_entropy)
        };
        let report = report.unwrap();
        assert!(!report.read().unwrap().skipped());
        report.input_gradient.unwrap().into_one().unwrap()
    };
    let expected = input(Precision::F32, false);
    let got = input(Precision::F32, true);
    // Divided by 10 at the end, or by shares from the start: rounded elsewhere, which affects nearly
    // cancelling elements most.
    let apart = ((&got - &expected).norm() / expected.norm()).double_value(&[]);
    assert!(apart < 1e-6, "{apart}");
    assert_near(&input(Precision::Fp16, true), &expected, "half precision");
}

/// The scale after each of `steps` steps.
fn scales(pipe: &mut Pipeline, steps: usize) -> Vec<f64> {
    let (x, y) = mlp_batch(8);
    let mut optimizer = Optimizer::new(Sgd::default());
    let mut step = || {
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        assert!(!report.read().unwrap().skipped());
        optimizer.step(pipe).unwrap();
        report.read().unwrap().loss_scale.unwrap()
    };
    (0..steps).map(|_| step()).collect()
}

#[test]
fn good_steps_double_the_scale() {
    let mut pipe = scaled(16.0, 3);
    let expected = [16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 64.0];
    assert_eq!(scales(&mut pipe, 7), expected);
}

#[test]
fn a_restored_scale_goes_on_where_it_was() {
    let mut whole = scaled(16.0, 3);
    let expected = scales(&mut whole, 8);
    let mut before = scaled(16.0, 3);
    let mut got = scales(&mut before, 5);
    let saved = before.loss_scale_state().unwrap();
    assert_eq!(saved, json!({"scale": 32.0, "good_steps": 2}));
    let saved = saved.to_string();
    let mut after = scaled(1024.0, 3);
    let state: Value = serde_json::from_str(&saved).unwrap();
    after.restore_loss_scale(&state).unwrap();
    got.extend(scales(&mut after, 3));
    assert_eq!(got, expected);
}

#[test]
fn states_and_settings_that_cannot_be_are_refused_in_words() {
    let mut pipe = scaled(16.0, 3);
    let wrong = [
        (json!({"scale": 3.0, "good_steps": 0}), "power of two"),
        (json!({"scale": -4.0, "good_steps": 0}), "power of two"),
        (json!({"scale": 4.0}), "missing field `good_steps`"),
        (json!({"scale": 4.0, "good_steps": -1}), "invalid value"),
        (
            json!({"scale": 4.0, "good_steps": 1, "x": 1}),
            "unknown field `x`",
        ),
        (json!("16"), "invalid type"),
    ];
    for (state, expected) in wrong {
        let error = pipe.restore_loss_scale(&state).unwrap_err();
        assert!(matches!(error, Error::Settings(_)));
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(pipe.loss_scale(), Some(16.0), "unchanged");
    let mut other = builder(1, Precision::Bf16).build().unwrap();
    let state = pipe.loss_scale_state().unwrap();
    let error = other.restore_loss_scale(&state).unwrap_err().to_string();
    assert!(
        error.contains("the precision is bf16, which has none"),
        "{error}"
    );
    for (initial, growth_interval, expected) in [
        (
            1000.0,
            5,
            "a loss scale is a power of two from 2^-14 to 2^64",
        ),
        (1024.0, 0, "growth interval is 0"),
    ] {
        let settings = LossScale {
            initial,
            growth_interval,
        };
        let built = builder(1, Precision::Fp16).loss_scale(settings).build();
        let error = built.unwrap_err();
        assert!(error.is_wrong_use());
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Small gradients vanish in half precision; scaled ones do not.
#[test]
fn a_scale_keeps_small_gradients() {
    let (x, y) = mlp_batch(8);
    let small = |out: &Tensor, y: &Tensor| cross_entropy(out, y) * 1e-7;
    let kept = |scale: f64| {
        let mut pipe = scaled(scale, 2000);
        pipe.train_step(&x, &y, small).unwrap();
        let grads = gradients(&mut pipe);
        let nonzero = |grad: &Tensor| grad.not_equal(0.0).sum(Kind::Int64).int64_value(&[]);
        grads.iter().map(|(_, grad)| nonzero(grad)).sum::<i64>()
    };
    assert!(kept(1.0) * 4 < kept(16_777_216.0));
}
