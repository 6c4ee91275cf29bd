//! A pipelined model gives the plain model's numbers: outputs, losses, gradients, updates; for any cut,
//! schedule, number of micro-batches and batch size.

mod losses;

use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::*;
use gpipe::partitioner::{Partition, ScheduleKind};
use gpipe::tch::{self, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, Sequential,
    optim::{AdamW, Sgd},
};

const SCHEDULES: [ScheduleKind; 2] = [ScheduleKind::GPipe, ScheduleKind::OneFOneB];
const MICRO_BATCHES: [usize; 6] = [1, 2, 3, 4, 7, 8];

fn pipeline(chain: &Chain, stages: usize, micro: usize, schedule: ScheduleKind) -> Pipeline {
    Pipeline::builder(sequential(chain))
        .devices(&cpus(stages))
        .micro_batches(micro)
        .schedule(schedule)
        .threads_per_stage(1)
        .seed(11)
        .build()
        .unwrap()
}

fn sizes(samples: i64, micro: usize) -> Vec<i64> {
    let count = (micro as i64).min(samples);
    (0..count)
        .map(|i| samples / count + i64::from(i < samples % count))
        .collect()
}

fn every_case(mut case: impl FnMut(usize, usize, ScheduleKind)) {
    for stages in 1..=4 {
        for micro in MICRO_BATCHES {
            for schedule in SCHEDULES {
                case(stages, micro, schedule);
            }
        }
    }
}

#[test]
fn gradients_and_loss_are_those_of_plain_accumulation_to_the_bit() {
    single_threaded();
    for (chain, (x, y)) in [(mlp(), mlp_batch(16)), (convnet(), image_batch(16))] {
        every_case(|stages, micro, schedule| {
            let what = format!("p={stages} m={micro} {schedule}");
            let mut pipe = pipeline(&chain, stages, micro, schedule);
            let plain = Plain::like(&chain, &mut pipe);
            let x = x.copy().set_requires_grad(true);
            let own = x.detach().set_requires_grad(true);
            let expected = plain.accumulate(&own, &y, &sizes(16, micro));
            let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
            assert_eq!(
                report.read().unwrap().loss.to_bits(),
                expected.to_bits(),
                "{what}"
            );
            assert_same_bits(&gradients(&mut pipe), &plain.gradients(), &what);
            let input = report.input_gradient.unwrap().into_one().unwrap();
            assert!(input.equal(&own.grad()), "{what}: gradient of the input");
        });
    }
}

#[test]
fn the_whole_batch_gives_the_same_within_float_tolerance() {
    single_threaded();
    let (chain, (x, y)) = (mlp(), mlp_batch(16));
    every_case(|stages, micro, schedule| {
        let what = format!("p={stages} m={micro} {schedule}");
        let mut pipe = pipeline(&chain, stages, micro, schedule);
        let plain = Plain::like(&chain, &mut pipe);
        let loss = cross_entropy(&plain.forward(&x), &y);
        loss.backward();
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        assert!(
            (report.read().unwrap().loss - loss.double_value(&[])).abs() < 1e-6,
            "{what}"
        );
        assert_close(&gradients(&mut pipe), &plain.gradients(), &what);
    });
}

#[test]
fn outputs_are_those_of_the_plain_model() {
    single_threaded();
    let (chain, (x, _)) = (mlp(), mlp_batch(16));
    every_case(|stages, micro, schedule| {
        let mut pipe = pipeline(&chain, stages, micro, schedule);
        let plain = Plain::like(&chain, &mut pipe);
        let parts: Vec<Tensor> = x
            .split_with_sizes(sizes(16, micro), 0)
            .iter()
            .map(|part| tch::no_grad(|| plain.forward(part)))
            .collect();
        let outputs = pipe.forward(&x).unwrap();
        assert!(
            outputs.equal(&Tensor::cat(&parts, 0)),
            "p={stages} m={micro} {schedule}"
        );
        assert!(!outputs.requires_grad());
    });
}

#[test]
fn twenty_updates_are_the_same_bits_under_every_cut_and_schedule() {
    for (chain, (x, y)) in [(mlp(), mlp_batch(10)), (convnet(), image_batch(10))] {
        for micro in [1, 4, 7] {
            let reference = trained(&mut pipeline(&chain, 1, micro, ScheduleKind::GPipe), &x, &y);
            for stages in 1..=4 {
                for schedule in SCHEDULES {
                    let got = trained(&mut pipeline(&chain, stages, micro, schedule), &x, &y);
                    assert_same_bits(
                        &got,
                        &reference,
                        &format!("p={stages} m={micro} {schedule}"),
                    );
                }
            }
        }
    }
}

fn trained(pipe: &mut Pipeline, x: &Tensor, y: &Tensor) -> Vec<(String, Tensor)> {
    let mut optimizer = Optimizer::new(AdamW {
        lr: 1e-2,
        ..AdamW::default()
    });
    for _ in 0..20 {
        pipe.train_step(x, y, cross_entropy).unwrap();
        optimizer.step(pipe).unwrap();
    }
    snapshot(pipe)
}

#[test]
fn every_cut_of_the_model_gives_the_same_bits() {
    let (chain, (x, y)) = (mlp(), mlp_batch(9));
    let reference = trained(&mut pipeline(&chain, 1, 4, ScheduleKind::GPipe), &x, &y);
    for first in 1..=5 {
        for second in 1..=(7 - first) {
            let balance = [first, second, 8 - first - second];
            let mut pipe = Pipeline::builder(sequential(&chain))
                .devices(&cpus(3))
                .balance(&balance)
                .micro_batches(4)
                .threads_per_stage(1)
                .seed(11)
                .build()
                .unwrap();
            assert_eq!(
                pipe.partition(),
                &Partition::from_balance(8, &balance).unwrap()
            );
            assert_same_bits(
                &trained(&mut pipe, &x, &y),
                &reference,
                &format!("{balance:?}"),
            );
        }
    }
}

/// The rule of Loshchilov & Hutter (2019), written out, in double precision.
#[test]
fn adamw_follows_its_published_rule() {
    let (chain, (x, y)) = (mlp(), mlp_batch(8));
    let mut pipe = pipeline(&chain, 2, 2, ScheduleKind::OneFOneB);
    let (lr, beta1, beta2, eps, decay) = (0.01, 0.9, 0.999, 1e-8, 0.01);
    let double = |list: Vec<(String, Tensor)>| -> Vec<Tensor> {
        list.into_iter()
            .map(|(_, tensor)| tensor.to_kind(Kind::Double))
            .collect()
    };
    let mut weights = double(snapshot(&mut pipe));
    let mut means: Vec<Tensor> = weights.iter().map(Tensor::zeros_like).collect();
    let mut squares: Vec<Tensor> = weights.iter().map(Tensor::zeros_like).collect();
    let mut optimizer = Optimizer::new(AdamW {
        lr,
        ..AdamW::default()
    });
    for step in 1..=20 {
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        for (i, grad) in double(gradients(&mut pipe)).iter().enumerate() {
            means[i] = &means[i] * beta1 + grad * (1.0 - beta1);
            squares[i] = &squares[i] * beta2 + grad * grad * (1.0 - beta2);
            let mean = &means[i] / (1.0 - f64::powi(beta1, step));
            let square = &squares[i] / (1.0 - f64::powi(beta2, step));
            weights[i] = &weights[i] * (1.0 - lr * decay) - mean / (square.sqrt() + eps) * lr;
        }
        optimizer.step(&mut pipe).unwrap();
    }
    for (own, expected) in double(snapshot(&mut pipe)).iter().zip(&weights) {
        assert!(own.allclose(expected, 1e-4, 1e-5, false));
    }
}

#[test]
fn sgd_with_momentum_follows_its_published_rule() {
    let (chain, (x, y)) = (mlp(), mlp_batch(8));
    for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
        let mut pipe = pipeline(&chain, 2, 2, ScheduleKind::OneFOneB);
        let mut weights = snapshot(&mut pipe);
        let mut buffers: Vec<Option<Tensor>> = weights.iter().map(|_| None).collect();
        let sgd = Sgd {
            lr: 0.05,
            momentum,
            nesterov,
            weight_decay: 0.01,
            ..Sgd::default()
        };
        let mut optimizer = Optimizer::new(sgd);
        for _ in 0..10 {
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            for (i, (_, grad)) in gradients(&mut pipe).iter().enumerate() {
                let grad = grad + &weights[i].1 * 0.01;
                let buffer = match &buffers[i] {
                    None => grad.copy(),
                    Some(buffer) => buffer * momentum + &grad,
                };
                let update = if nesterov {
                    &grad + &buffer * momentum
                } else {
                    buffer.copy()
                };
                weights[i].1 = &weights[i].1 - update * 0.05;
                buffers[i] = Some(buffer);
            }
            optimizer.step(&mut pipe).unwrap();
        }
        assert_close(
            &snapshot(&mut pipe),
            &weights,
            &format!("{momentum} {nesterov}"),
        );
    }
}

#[test]
fn odd_small_and_changing_batches_give_the_exact_mini_batch() {
    single_threaded();
    let chain = mlp();
    for schedule in SCHEDULES {
        let mut pipe = pipeline(&chain, 3, 4, schedule);
        let plain = Plain::like(&chain, &mut pipe);
        for samples in [10, 2, 4, 1, 16, 3, 10] {
            let (x, y) = mlp_batch(samples);
            let what = format!("{samples} samples, {schedule}");
            pipe.zero_grad().unwrap();
            let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
            let own = gradients(&mut pipe);

            for (_, mut grad) in plain.gradients() {
                let _ = grad.zero_();
            }
            let expected = plain.accumulate(&x, &y, &sizes(samples, 4));
            assert_eq!(
                report.read().unwrap().loss.to_bits(),
                expected.to_bits(),
                "{what}"
            );
            assert_same_bits(&own, &plain.gradients(), &what);

            for (_, mut grad) in plain.gradients() {
                let _ = grad.zero_();
            }
            let whole = cross_entropy(&plain.forward(&x), &y);
            whole.backward();
            assert!(
                (report.read().unwrap().loss - whole.double_value(&[])).abs() < 1e-6,
                "{what}"
            );
            assert_close(&own, &plain.gradients(), &what);
        }
    }
}

#[test]
fn gradients_add_up_over_steps_until_an_optimizer_uses_them() {
    let (chain, (x, y)) = (mlp(), mlp_batch(8));
    let mut pipe = pipeline(&chain, 2, 4, ScheduleKind::OneFOneB);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    let once: Vec<_> = gradients(&mut pipe)
        .into_iter()
        .map(|(name, grad)| (name, grad.copy() * 2))
        .collect();
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert_same_bits(&gradients(&mut pipe), &once, "twice the same batch");
    Optimizer::new(Sgd::default()).step(&mut pipe).unwrap();
    assert!(
        gradients(&mut pipe).is_empty(),
        "the optimizer uses gradients up"
    );
}

/// Means over unequal numbers of tokens: the loss function gives the weights.
#[test]
fn weights_of_the_loss_function_make_the_mean_over_tokens_exact() {
    single_threaded();
    let chain = mlp();
    let (x, y) = mlp_batch(12);
    // Samples of class 0 do not count.
    let loss = |out: &Tensor, y: &Tensor| {
        let counts = y.not_equal(0).to_kind(Kind::Float);
        let each = out.cross_entropy_loss(y, None::<Tensor>, tch::Reduction::None, -100, 0.0);
        let tokens = counts.sum(None).double_value(&[]);
        ((each * counts).sum(None) / tokens.max(1.0), tokens)
    };
    let mut reference = Vec::new();
    for (stages, schedule) in [(1, ScheduleKind::GPipe), (3, ScheduleKind::OneFOneB)] {
        let mut pipe = pipeline(&chain, stages, 5, schedule);
        let plain = Plain::like(&chain, &mut pipe);
        let whole = loss(&plain.forward(&x), &y).0;
        whole.backward();
        // An earlier step's gradients must not be scaled with this one's.
        pipe.train_step(&x, &y, loss).unwrap();
        let once: Vec<_> = gradients(&mut pipe)
            .into_iter()
            .map(|(name, grad)| (name, grad.copy()))
            .collect();
        let report = pipe.train_step(&x, &y, loss).unwrap();
        assert!((report.read().unwrap().loss - whole.double_value(&[])).abs() < 1e-6);
        assert_close(&once, &plain.gradients(), "weighted by tokens");
        let twice: Vec<_> = once
            .iter()
            .map(|(name, grad)| (name.clone(), grad * 2))
            .collect();
        assert_same_bits(&gradients(&mut pipe), &twice, "the sum of two steps");
        if reference.is_empty() {
            reference = once;
        } else {
            assert_same_bits(&once, &reference, "over partitions");
        }
    }
}

#[test]
fn initial_values_depend_on_the_seed_and_not_on_the_cut_or_the_callers_generator() {
    let chain = mlp();
    let first = snapshot(&mut pipeline(&chain, 1, 1, ScheduleKind::GPipe));
    let _ = Tensor::rand([100], (Kind::Float, tch::Device::Cpu));
    let second = snapshot(&mut pipeline(&chain, 4, 2, ScheduleKind::OneFOneB));
    assert_same_bits(&first, &second, "same seed");
    let mut other = Pipeline::builder(sequential(&chain))
        .seed(12)
        .build()
        .unwrap();
    assert!(
        !snapshot(&mut other)[0].1.equal(&first[0].1),
        "another seed"
    );
}

#[test]
fn loading_puts_values_where_their_layer_is() {
    let chain = mlp();
    let values = snapshot(&mut pipeline(&chain, 1, 1, ScheduleKind::GPipe));
    let changed: Vec<_> = values.iter().map(|(n, t)| (n.clone(), t + 1.0)).collect();
    let mut pipe = pipeline(&chain, 3, 2, ScheduleKind::OneFOneB);
    pipe.load(&changed).unwrap();
    assert_same_bits(&snapshot(&mut pipe), &changed, "loaded");
    let unknown = [(
        "nobody.weight".to_owned(),
        Tensor::zeros([1], tch::kind::FLOAT_CPU),
    )];
    assert!(
        pipe.load(&unknown)
            .unwrap_err()
            .to_string()
            .contains("`nobody.weight`")
    );
}

/// No stage ever builds layers of another one, not even temporarily.
#[test]
fn every_layer_is_built_by_the_device_that_owns_it() {
    let built = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&built);
    let model = Sequential::new().layers("linear", 5, move |p, number| {
        let thread = thread::current().name().unwrap_or_default().to_owned();
        seen.lock().unwrap().push((number, thread));
        nn::linear(p, 4, 4, nn::LinearConfig::default())
    });
    let _pipe = Pipeline::builder(model)
        .devices(&cpus(3))
        .balance(&[1, 3, 1])
        .build()
        .unwrap();
    let mut built = built.lock().unwrap().clone();
    built.sort();
    let owners = ["stage-0", "stage-1", "stage-1", "stage-1", "stage-2"];
    assert!(built.len() == 5, "each once: {built:?}");
    assert!(
        built.iter().map(|(_, thread)| thread.as_str()).eq(owners),
        "{built:?}"
    );
}
