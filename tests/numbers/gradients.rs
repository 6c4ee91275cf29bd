//! Operations on the gradients of the whole model: clipping by norm, parameter groups, frozen and unused
//! parameters; the same for every cut.

use crate::support::*;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Kind, Tensor, nn};
use gpipe::{
    Error, Optimizer, Pipeline, Sequential,
    optim::{AdamW, Sgd},
};

const SCHEDULES: [ScheduleKind; 3] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
];

fn pipeline(model: Sequential, stages: usize, schedule: ScheduleKind) -> Pipeline {
    Pipeline::builder(model)
        .devices(&cpus(stages))
        .micro_batches(4)
        .schedule(schedule)
        .threads_per_stage(1)
        .seed(3)
        .build()
        .unwrap()
}

/// Runs `case` for every cut and schedule; its results must all be equal.
fn the_same_for_every_cut<T: PartialEq + std::fmt::Debug>(
    model: impl Fn() -> Sequential,
    mut case: impl FnMut(&mut Pipeline) -> T,
) -> T {
    let mut first = None;
    for stages in 1..=4 {
        for schedule in SCHEDULES {
            let result = case(&mut pipeline(model(), stages, schedule));
            let first = first.get_or_insert_with(|| case(&mut pipeline(model(), 1, SCHEDULES[0])));
            assert!(result == *first, "p={stages} {schedule}");
        }
    }
    first.unwrap()
}

fn step(pipe: &mut Pipeline) {
    let (x, y) = mlp_batch(8);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
}

/// All values, comparable bit for bit.
fn bits(named: &[(String, Tensor)]) -> Vec<(String, Vec<u32>)> {
    let bits = |tensor: &Tensor| -> Vec<u32> {
        let numbers = Vec::<f32>::try_from(tensor.detach().reshape([-1])).unwrap();
        numbers.into_iter().map(f32::to_bits).collect()
    };
    let list = named.iter();
    list.map(|(name, tensor)| (name.clone(), bits(tensor)))
        .collect()
}

fn copies(named: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let list = named.into_iter();
    list.map(|(name, tensor)| (name, tensor.detach().copy()))
        .collect()
}

/// The norm of all gradients, computed naively.
fn plain_norm(grads: &[(String, Tensor)]) -> f64 {
    let squares = |tensor: &Tensor| tensor.to_kind(Kind::Double).square().sum(Kind::Double);
    let sum: f64 = grads
        .iter()
        .map(|(_, grad)| squares(grad).double_value(&[]))
        .sum();
    sum.sqrt()
}

#[test]
fn clipping_is_the_plain_formula_and_has_the_same_bits_for_every_cut() {
    the_same_for_every_cut(
        || sequential(&mlp()),
        |pipe| {
            step(pipe);
            let before = copies(gradients(pipe));
            let norm = pipe.clip_grad_norm(0.01).unwrap();
            assert!((norm / plain_norm(&before) - 1.0).abs() < 1e-12);
            let factor = 0.01 / (norm + 1e-6);
            assert!(factor < 1.0, "there is something to clip");
            for ((name, after), (_, before)) in gradients(pipe).iter().zip(&before) {
                assert!(after.equal(&(before * factor)), "{name}");
            }
            (norm.to_bits(), bits(&gradients(pipe)))
        },
    );
}

#[test]
fn gradients_within_the_limit_keep_their_bits() {
    let mut pipe = pipeline(sequential(&mlp()), 2, ScheduleKind::OneFOneB);
    assert_eq!(pipe.clip_grad_norm(1.0).unwrap(), 0.0, "no gradients yet");
    step(&mut pipe);
    let before = copies(gradients(&mut pipe));
    for limit in [1e6, f64::INFINITY] {
        pipe.clip_grad_norm(limit).unwrap();
        assert_same_bits(&gradients(&mut pipe), &before, "within the limit");
    }
    pipe.clip_grad_norm(0.0).unwrap();
    assert_eq!(plain_norm(&gradients(&mut pipe)), 0.0);
}

#[test]
fn what_several_steps_accumulated_is_clipped_together() {
    the_same_for_every_cut(
        || sequential(&mlp()),
        |pipe| {
            step(pipe);
            let one = plain_norm(&gradients(pipe));
            step(pipe);
            let norm = pipe.clip_grad_norm(1e-3).unwrap();
            assert!((norm / (2.0 * one) - 1.0).abs() < 1e-5);
            (norm.to_bits(), bits(&gradients(pipe)))
        },
    );
}

#[test]
fn a_norm_that_is_not_finite_is_told_and_changes_nothing() {
    let mut pipe = pipeline(sequential(&mlp()), 3, ScheduleKind::OneFOneB);
    let (x, y) = mlp_batch(8);
    let infinite = |out: &Tensor, y: &Tensor| cross_entropy(out, y) * f64::INFINITY;
    pipe.train_step(&x, &y, infinite).unwrap();
    let before = bits(&gradients(&mut pipe));
    assert!(!pipe.clip_grad_norm(1.0).unwrap().is_finite());
    assert_eq!(bits(&gradients(&mut pipe)), before);
}

#[test]
fn limits_that_are_none_are_refused_in_words() {
    let mut pipe = pipeline(sequential(&mlp()), 1, ScheduleKind::GPipe);
    for limit in [-1.0, f64::NAN] {
        let error = pipe.clip_grad_norm(limit).unwrap_err();
        assert!(matches!(error, Error::Settings(_)));
        assert!(error.to_string().contains("0 or more"), "{error}");
    }
}

#[test]
fn clipped_training_is_the_same_for_every_cut() {
    the_same_for_every_cut(
        || sequential(&mlp()),
        |pipe| {
            let mut optimizer = Optimizer::new(AdamW::default());
            let norms: Vec<u64> = (0..10)
                .map(|_| {
                    step(pipe);
                    let norm = pipe.clip_grad_norm(0.05).unwrap();
                    optimizer.step(pipe).unwrap();
                    norm.to_bits()
                })
                .collect();
            (norms, bits(&snapshot(pipe)))
        },
    );
}

fn base() -> AdamW {
    AdamW {
        lr: 0.02,
        weight_decay: 0.3,
        ..AdamW::default()
    }
}

fn bare() -> AdamW {
    AdamW {
        lr: 0.005,
        weight_decay: 0.0,
        ..base()
    }
}

fn grouped() -> Optimizer {
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::default()
    };
    Optimizer::new(base())
        .group(|name| name.ends_with("bias"), bare())
        .group(|name| name.starts_with("norm."), momentum)
}

#[test]
fn groups_are_the_same_for_every_cut() {
    the_same_for_every_cut(
        || sequential(&mlp()),
        |pipe| {
            let mut optimizer = grouped();
            for number in 0..10 {
                step(pipe);
                optimizer.set_lr(0.02 * f64::from(number) / 10.0);
                optimizer.step(pipe).unwrap();
            }
            bits(&snapshot(pipe))
        },
    );
}

#[test]
fn a_grouped_update_is_each_groups_own() {
    let once = |mut optimizer: Optimizer| {
        let mut pipe = pipeline(sequential(&mlp()), 3, ScheduleKind::OneFOneB);
        step(&mut pipe);
        optimizer.step(&mut pipe).unwrap();
        snapshot(&mut pipe)
    };
    let (together, default) = (once(grouped()), once(Optimizer::new(base())));
    let biases = once(Optimizer::new(bare()));
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::default()
    };
    let norms = once(Optimizer::new(momentum));
    for (place, (name, value)) in together.iter().enumerate() {
        let by_hand = match grouped().group_of(name) {
            None => &default,
            Some(0) => &biases,
            Some(_) => &norms,
        };
        assert!(value.equal(&by_hand[place].1), "{name}");
    }
}

#[test]
fn numbers_that_no_update_is_defined_for_stop_it_before_it_begins() {
    let mut pipe = pipeline(sequential(&mlp()), 2, ScheduleKind::OneFOneB);
    step(&mut pipe);
    let (weights, grads) = (snapshot(&mut pipe), copies(gradients(&mut pipe)));
    let mut optimizer = grouped();
    optimizer.set_lr(f64::NAN);
    let error = optimizer.step(&mut pipe).unwrap_err();
    assert!(error.is_wrong_use(), "{error}");
    assert_same_bits(&snapshot(&mut pipe), &weights, "weights");
    assert_same_bits(&gradients(&mut pipe), &grads, "gradients");
}

#[test]
fn frozen_parameters_stay_and_count_for_nothing() {
    let frozen = |name: &str| name.starts_with("hidden.") || name == "norm.bias";
    the_same_for_every_cut(
        || sequential(&mlp()),
        |pipe| {
            let mut optimizer = grouped();
            step(pipe);
            pipe.freeze(frozen).unwrap();
            let before = snapshot(pipe);
            for _ in 0..3 {
                step(pipe);
                assert!(gradients(pipe).iter().all(|(name, _)| !frozen(name)));
                let expected = plain_norm(&gradients(pipe));
                let norm = pipe.clip_grad_norm(f64::INFINITY).unwrap();
                assert!((norm / expected - 1.0).abs() < 1e-12);
                optimizer.step(pipe).unwrap();
            }
            let after = snapshot(pipe);
            for ((name, before), (_, after)) in before.iter().zip(&after) {
                assert_eq!(before.equal(after), frozen(name), "{name}");
            }
            pipe.unfreeze(frozen).unwrap();
            step(pipe);
            optimizer.step(pipe).unwrap();
            let thawed = snapshot(pipe);
            for ((name, before), (_, after)) in after.iter().zip(&thawed) {
                assert!(!before.equal(after), "{name}");
            }
            bits(&thawed)
        },
    );
}

/// Two layers with one weight, and another between them.
fn tied() -> Sequential {
    let square = |p: &nn::Path<'_>| nn::linear(p, 12, 12, nn::LinearConfig::default());
    Sequential::new()
        .layer("first", square)
        .layer("tanh", |_| nn::func(Tensor::tanh))
        .layer("middle", square)
        .layer("second", square)
        .layer("head", |p| {
            nn::linear(p, 12, 5, nn::LinearConfig::default())
        })
        .tie("first.weight", "second.weight")
}

#[test]
fn a_tied_parameter_counts_once() {
    the_same_for_every_cut(tied, |pipe| {
        step(pipe);
        let expected = plain_norm(&gradients(pipe));
        let norm = pipe.clip_grad_norm(0.01).unwrap();
        assert!((norm / expected - 1.0).abs() < 1e-12);
        (norm.to_bits(), bits(&gradients(pipe)))
    });
}

#[test]
fn a_tied_parameter_is_frozen_at_all_its_places() {
    the_same_for_every_cut(tied, |pipe| {
        pipe.freeze(|name| name == "first.weight").unwrap();
        let before = snapshot(pipe);
        let mut optimizer = Optimizer::new(base());
        for _ in 0..2 {
            step(pipe);
            assert!(
                gradients(pipe)
                    .iter()
                    .all(|(name, _)| name != "first.weight")
            );
            optimizer.step(pipe).unwrap();
        }
        for ((name, before), (_, after)) in before.iter().zip(&snapshot(pipe)) {
            assert_eq!(before.equal(after), name == "first.weight", "{name}");
        }
        bits(&snapshot(pipe))
    });
}

#[test]
fn parameters_that_nothing_uses_are_fine() {
    let model = || {
        let head = |p: &nn::Path<'_>| nn::linear(p, 12, 5, nn::LinearConfig::default());
        Sequential::new()
            .layer("odd", |p| {
                let _ = p.ones("unused", &[3]);
                nn::linear(p, 12, 12, nn::LinearConfig::default())
            })
            .layer("tanh", |_| nn::func(Tensor::tanh))
            .layer("other", |p| {
                nn::linear(p, 12, 12, nn::LinearConfig::default())
            })
            .layer("head", head)
    };
    the_same_for_every_cut(model, |pipe| {
        let mut optimizer = grouped();
        for _ in 0..3 {
            step(pipe);
            assert!(gradients(pipe).iter().all(|(name, _)| name != "odd.unused"));
            assert!(pipe.clip_grad_norm(0.1).unwrap() > 0.1);
            optimizer.step(pipe).unwrap();
        }
        let all = snapshot(pipe);
        let unused = all.iter().find(|(name, _)| name == "odd.unused");
        assert!(unused.unwrap().1.equal(&Tensor::from_slice(&[1.0_f32; 3])));
        bits(&all)
    });
}
