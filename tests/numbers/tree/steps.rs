//! Consecutive steps, failed and skipped ones; invalid settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Tensor, nn};
use gpipe::{
    Error, Loss, Optimizer, Pipeline, PipelineBuilder, Sequential,
    error::{NonFinite, Setting},
    optim::Sgd,
    settings::{LossScale, Precision},
};

use super::oracle::{LEAVES, Oracle, assert_bits, bits};
use crate::support::models;
use crate::support::reference::{Named, optimizer};
use crate::support::*;

fn builder(stages: usize, micro_batches: usize, leaves: usize) -> PipelineBuilder {
    Pipeline::builder(models::mlp().sequential())
        .devices(&cpus(stages))
        .micro_batches(micro_batches)
        .tree(leaves)
        .threads_per_stage(1)
        .seed(7)
}

fn copied(named: Named) -> Named {
    let copy = |(name, tensor): (String, Tensor)| (name, tensor.copy());
    named.into_iter().map(copy).collect()
}

#[test]
fn steps_accumulate_and_batches_may_be_of_any_size() {
    single_threaded();
    let model = models::mlp();
    for leaves in LEAVES {
        for stages in [1, 3] {
            let mut pipe = builder(stages, 6, leaves).build().unwrap();
            let mut expected: Option<Named> = None;
            // Includes fewer micro-batches than leaves, and no update between them.
            for samples in [13, 2, 6, 1, 5] {
                let (x, y) = mlp_batch(samples);
                let own = Oracle::new(&model, &mut pipe, (&x, &y), 6).sums(leaves);
                pipe.train_step(&x, &y, cross_entropy).unwrap();
                let pairs = own.into_iter().enumerate();
                let sum = pairs.map(|(place, (name, own))| match &expected {
                    Some(earlier) => (name, &earlier[place].1 + own),
                    None => (name, own),
                });
                expected = Some(sum.collect());
                let expected = expected.as_ref().unwrap();
                let case = format!("k={leaves} p={stages}, {samples} samples");
                assert_bits(&gradients(&mut pipe), expected, &case);
            }
        }
    }
}

#[test]
fn training_has_the_same_bits_under_every_cut_and_schedule() {
    let (x, y) = mlp_batch(11);
    let trained = |builder: PipelineBuilder| {
        let (mut pipe, mut optimizer) = (builder.build().unwrap(), optimizer());
        let mut norms = Vec::new();
        for _ in 0..6 {
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            norms.push(pipe.clip_grad_norm(0.05).unwrap().to_bits());
            optimizer.step(&mut pipe).unwrap();
        }
        (norms, bits(&snapshot(&mut pipe)))
    };
    let serial = trained(builder(1, 7, 1));
    for leaves in [2, 4] {
        let one = trained(builder(1, 7, leaves));
        assert_ne!(one, serial, "a tree of {leaves} leaves is another sum");
        for (stages, schedule) in [
            (2, ScheduleKind::ZbH1),
            (3, ScheduleKind::OneFOneB),
            (4, ScheduleKind::GPipe),
            (2, ScheduleKind::Zbv),
        ] {
            let own = trained(builder(stages, 7, leaves).schedule(schedule));
            assert!(own == one, "k={leaves} p={stages} {schedule}");
        }
    }
}

#[test]
fn frozen_parameters_are_absent_from_every_leaf() {
    single_threaded();
    let (model, (x, y)) = (models::mlp(), mlp_batch(13));
    let frozen = |name: &str| name.starts_with("residual.") || name == "norm.bias";
    for leaves in LEAVES {
        let mut pipe = builder(3, 5, leaves).build().unwrap();
        let mut expected = Oracle::new(&model, &mut pipe, (&x, &y), 5).sums(leaves);
        expected.retain(|(name, _)| !frozen(name));
        pipe.freeze(frozen).unwrap();
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        assert_bits(&gradients(&mut pipe), &expected, &format!("k={leaves}"));
    }
}

/// Zeros in place of absent gradients would turn it into 0.0.
#[test]
fn a_minus_zero_stays_one_where_all_other_gradients_are_absent() {
    let model = || {
        Sequential::new().layer("scale", |path| {
            let scale = path.ones("scale", &[1, 3]);
            nn::func(move |x| x * &scale)
        })
    };
    let x = Tensor::from_slice(&[-0.0_f32; 12]).view([4, 3]);
    for counts in 0..4 {
        let y = Tensor::zeros([4, 3], gpipe::tch::kind::FLOAT_CPU);
        let _ = y.narrow(0, counts, 1).fill_(1.0);
        let pipe = Pipeline::builder(model()).micro_batches(4).tree(4);
        let mut pipe = pipe.seed(1).build().unwrap();
        let loss = |out: &Tensor, y: &Tensor| {
            let weight = y.double_value(&[0, 0]);
            Loss::weighted(out.sum(None), weight)
        };
        pipe.train_step(&x, &y, loss).unwrap();
        let own = bits(&gradients(&mut pipe));
        let minus_zero = (-0.0_f32).to_bits();
        assert_eq!(own, [("scale.scale".to_owned(), vec![minus_zero; 3])]);
    }
}

/// A loss that fails at call `at`, from 0.
fn failing(at: usize) -> impl Fn(&Tensor, &Tensor) -> anyhow::Result<Tensor> + Send + Sync {
    let calls = Arc::new(AtomicUsize::new(0));
    move |out: &Tensor, y: &Tensor| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(call != at, "as asked");
        Ok(cross_entropy(out, y))
    }
}

#[test]
fn a_failed_step_leaves_nothing_in_the_tree() {
    single_threaded();
    let (model, (x, y)) = (models::mlp(), mlp_batch(16));
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        for stages in [1, 3] {
            for at in 0..8 {
                let case = format!("p={stages} {schedule}, fails at {at}");
                let mut pipe = builder(stages, 8, 4).schedule(schedule).build().unwrap();
                let expected = Oracle::new(&model, &mut pipe, (&x, &y), 8).sums(4);
                let error = pipe.train_step(&x, &y, failing(at)).unwrap_err();
                assert!(error.to_string().contains("as asked"), "{case}: {error}");
                assert!(gradients(&mut pipe).is_empty(), "{case}");
                pipe.train_step(&x, &y, cross_entropy).unwrap();
                assert_bits(&gradients(&mut pipe), &expected, &case);
                // Gradients of an earlier step are restored.
                let before = copied(gradients(&mut pipe));
                pipe.train_step(&x, &y, failing(at)).unwrap_err();
                assert_bits(&gradients(&mut pipe), &before, &case);
            }
        }
    }
}

/// A loss whose gradient overflows half precision at call `at`.
fn overflowing(at: usize) -> impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync {
    let calls = Arc::new(AtomicUsize::new(0));
    move |out: &Tensor, y: &Tensor| {
        let large = calls.fetch_add(1, Ordering::Relaxed) == at;
        cross_entropy(out, y) * if large { 1e9 } else { 1.0 }
    }
}

#[test]
fn an_overflow_in_any_leaf_skips_the_step() {
    let (x, y) = mlp_batch(8);
    let build = || {
        let scale = LossScale {
            initial: 256.0,
            ..LossScale::default()
        };
        let builder = builder(2, 8, 4).precision(Precision::Fp16);
        builder.loss_scale(scale).build().unwrap()
    };
    let mut good = build();
    good.train_step(&x, &y, cross_entropy).unwrap();
    for at in 0..8 {
        let mut pipe = build();
        let report = pipe.train_step(&x, &y, overflowing(at)).unwrap();
        assert!(report.read().unwrap().non_finite.is_some(), "at {at}");
        assert!(gradients(&mut pipe).is_empty(), "at {at}");
        assert_eq!(pipe.loss_scale(), Some(128.0), "at {at}");
        let _ = pipe.train_step(&x, &y, cross_entropy).unwrap();
        // Scales are powers of two.
        let case = format!("at {at}");
        assert_close(&gradients(&mut pipe), &gradients(&mut good), &case);
        Optimizer::new(Sgd::default()).step(&mut pipe).unwrap();
    }
}

/// After the last micro-batch of a leaf its gradients leave the parameters.
#[test]
fn a_gradient_that_is_not_finite_fails_the_step_with_its_micro_batch() {
    let (x, y) = mlp_batch(8);
    for at in 0..8 {
        let calls = Arc::new(AtomicUsize::new(0));
        // A finite loss whose gradient is infinity times 0.
        let loss = move |out: &Tensor, y: &Tensor| {
            let wrong = calls.fetch_add(1, Ordering::Relaxed) == at;
            let zero = (out * 0.0).sqrt().sum(None);
            if wrong { zero } else { cross_entropy(out, y) }
        };
        let builder = builder(1, 8, 4).on_non_finite(NonFinite::Fail);
        let mut pipe = builder.build().unwrap();
        let error = pipe.train_step(&x, &y, loss).unwrap_err().to_string();
        let place = format!("micro-batch {at}, backward");
        assert!(
            error.contains(&place) && error.contains("not finite"),
            "{error}"
        );
    }
}

/// Gradients kept in the tree do not count as activations.
#[test]
fn gradients_of_leaves_are_not_counted_as_activations() {
    let (x, y) = mlp_batch(64);
    let measured = |leaves: usize| {
        let mut pipe = builder(1, 8, leaves).measure_memory(true).build().unwrap();
        for _ in 0..2 {
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            pipe.zero_grad().unwrap();
        }
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        let memory = report.memory.unwrap().stages[0].unwrap();
        (memory.held, memory.left)
    };
    let serial = measured(1);
    for leaves in [2, 4, 8] {
        assert_eq!(measured(leaves), serial, "{leaves} leaves");
    }
}

#[test]
fn numbers_of_leaves_that_are_none_are_refused_in_words() {
    for leaves in [0, 3, 6, 12, 1 << 17, usize::MAX] {
        let builder = builder(1, 4, leaves);
        let error = builder.check().unwrap_err();
        let Error::Settings(settings) = &error else {
            panic!("{error}");
        };
        assert_eq!(settings.setting, Setting::Tree);
        let said = error.to_string();
        let words = [&format!("`tree` is {leaves}"), "power of two", "65536"];
        assert!(words.iter().all(|word| said.contains(*word)), "{said}");
        assert_eq!(builder.build().unwrap_err().to_string(), said);
    }
    builder(1, 4, 1 << 16).check().unwrap();
}
