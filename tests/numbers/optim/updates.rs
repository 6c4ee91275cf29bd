//! Updates against their published rules, in double precision.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Kind, Tensor};
use gpipe::{
    Error, Optimizer, Pipeline,
    optim::{Adam, AdamW, OptimizerKind, Sgd},
};

use crate::support::*;

fn pipeline(stages: usize) -> Pipeline {
    Pipeline::builder(sequential(&mlp()))
        .devices(&cpus(stages))
        .micro_batches(2)
        .schedule(ScheduleKind::OneFOneB)
        .threads_per_stage(1)
        .seed(11)
        .build()
        .unwrap()
}

fn double(list: Vec<(String, Tensor)>) -> Vec<Tensor> {
    let list = list.into_iter();
    list.map(|(_, tensor)| tensor.to_kind(Kind::Double))
        .collect()
}

/// Trains for `steps`; `rule` gets a parameter's index, weight and gradient, and returns the updated weight.
fn assert_follows(
    kind: impl Into<OptimizerKind>,
    steps: i32,
    mut rule: impl FnMut(i32, usize, &Tensor, &Tensor) -> Tensor,
) {
    let (x, y) = mlp_batch(8);
    let mut pipe = pipeline(2);
    let mut optimizer = Optimizer::new(kind);
    let mut weights = double(snapshot(&mut pipe));
    let before = double(snapshot(&mut pipe));
    for step in 1..=steps {
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        for (place, grad) in double(gradients(&mut pipe)).iter().enumerate() {
            weights[place] = rule(step, place, &weights[place], grad);
        }
        optimizer.step(&mut pipe).unwrap();
    }
    let after = double(snapshot(&mut pipe));
    for ((own, expected), before) in after.iter().zip(&weights).zip(&before) {
        assert!(own.allclose(expected, 1e-4, 1e-5, false));
        assert!(!own.allclose(before, 1e-3, 1e-4, false), "nothing moved");
    }
}

/// Kingma & Ba 2015, algorithm 1; a weight decay is part of the gradient.
fn adam_follows(adam: Adam) {
    let (mut means, mut squares) = (Vec::new(), Vec::new());
    assert_follows(adam, 20, |step, place, weight, grad| {
        if step == 1 {
            means.push(weight.zeros_like());
            squares.push(weight.zeros_like());
        }
        let grad = grad + weight * adam.weight_decay;
        means[place] = &means[place] * adam.beta1 + &grad * (1.0 - adam.beta1);
        squares[place] = &squares[place] * adam.beta2 + &grad * &grad * (1.0 - adam.beta2);
        let mean = &means[place] / (1.0 - adam.beta1.powi(step));
        let square = &squares[place] / (1.0 - adam.beta2.powi(step));
        weight - mean / (square.sqrt() + adam.eps) * adam.lr
    });
}

#[test]
fn adam_follows_its_published_rule() {
    let lr = 0.01;
    adam_follows(Adam {
        lr,
        ..Adam::default()
    });
    adam_follows(Adam {
        lr,
        beta1: 0.7,
        beta2: 0.9,
        eps: 1e-3,
        weight_decay: 0.2,
    });
}

/// Sutskever et al. 2013 as in PyTorch: the first update fills the buffer with the whole gradient, dampened
/// or not.
fn sgd_follows(sgd: Sgd) {
    let mut buffers: Vec<Tensor> = Vec::new();
    assert_follows(sgd, 10, |step, place, weight, grad| {
        let grad = grad + weight * sgd.weight_decay;
        if step == 1 {
            buffers.push(grad.copy());
        } else {
            buffers[place] = &buffers[place] * sgd.momentum + &grad * (1.0 - sgd.dampening);
        }
        let update = if sgd.nesterov {
            &grad + &buffers[place] * sgd.momentum
        } else if sgd.momentum == 0.0 {
            grad
        } else {
            buffers[place].copy()
        };
        weight - update * sgd.lr
    });
}

#[test]
fn sgd_follows_its_published_rule_with_every_number() {
    let sgd = Sgd {
        lr: 0.05,
        ..Sgd::default()
    };
    let (momentum, weight_decay) = (0.9, 0.1);
    sgd_follows(sgd);
    sgd_follows(Sgd {
        weight_decay,
        ..sgd
    });
    sgd_follows(Sgd { momentum, ..sgd });
    sgd_follows(Sgd {
        momentum,
        dampening: 0.4,
        weight_decay,
        ..sgd
    });
    sgd_follows(Sgd {
        momentum,
        weight_decay,
        nesterov: true,
        ..sgd
    });
}

/// Weights after some steps of each optimizer in turn, over this many stages.
fn trained(stages: usize, kinds: &[OptimizerKind]) -> Vec<(String, Tensor)> {
    let (x, y) = mlp_batch(10);
    let mut pipe = pipeline(stages);
    for &kind in kinds {
        let mut optimizer = Optimizer::new(kind);
        for _ in 0..5 {
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            optimizer.step(&mut pipe).unwrap();
        }
    }
    snapshot(&mut pipe)
}

#[test]
fn adam_has_the_same_bits_for_every_cut_and_is_not_adamw() {
    let weight_decay = 0.1;
    let adam = Adam {
        weight_decay,
        ..Adam::default()
    };
    let adamw = AdamW {
        weight_decay,
        ..AdamW::default()
    };
    let reference = trained(1, &[adam.into()]);
    for stages in 2..=4 {
        assert_same_bits(&trained(stages, &[adam.into()]), &reference, "adam");
    }
    let other = trained(1, &[adamw.into()]);
    assert!(!other[0].1.equal(&reference[0].1));
    // Without weight decay they are equal.
    let bare = |kind: OptimizerKind| trained(2, &[kind]);
    let adamw = AdamW {
        weight_decay: 0.0,
        ..AdamW::default()
    };
    assert_same_bits(
        &bare(Adam::default().into()),
        &bare(adamw.into()),
        "no decay",
    );
}

#[test]
fn numbers_that_adam_is_not_defined_for_are_refused() {
    let mut pipe = pipeline(2);
    let mut optimizer = Optimizer::new(Adam {
        beta1: 1.0,
        ..Adam::default()
    });
    let error = optimizer.step(&mut pipe).unwrap_err();
    assert!(matches!(error, Error::Settings(_)));
    let expected = "the optimizer's Adam: beta1 is 1, but must be at least 0 and below 1";
    assert_eq!(error.to_string(), expected);
}
