//! Replicas that train separately for some steps and are then merged (`local_steps`, DiLoCo).
//!
//! The reference is a separate pipeline for each replica, and the outer step written in plain tch: the tree
//! of differences, Nesterov's momentum, the new weights.

use std::collections::BTreeMap;

use gpipe::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Extras};
use gpipe::tch::{self, Device, Kind, Tensor, nn};
use gpipe::{
    Error, Loss, Optimizer, Pipeline, PipelineBuilder, Sequential,
    error::Setting,
    layers,
    optim::AdamW,
    settings::{LossScale, Precision},
};

use crate::support::*;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const STEPS: usize = 3;

type Named = Vec<(String, Tensor)>;

fn model() -> Sequential {
    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    Sequential::new()
        .layer("one", move |p| linear(p, 6, 6))
        .layer("norm", |p| {
            layers::BatchNorm::new(p, 6, nn::BatchNormConfig::default())
        })
        .layer("two", move |p| linear(p, 6, 6))
        .layer("out", move |p| linear(p, 6, 3))
        .tie("one.weight", "two.weight")
}

/// Different samples in every step.
fn batch(step: usize, samples: i64) -> (Tensor, Tensor) {
    let x = Tensor::arange(samples * 6, FLOAT) * (0.7 + 0.1 * step as f64);
    let y = Tensor::arange(samples, (Kind::Int64, Device::Cpu)) + step as i64;
    (x.sin().view([samples, 6]) * 1.5, y.remainder(3))
}

fn builder(replicas: usize, devices: usize) -> PipelineBuilder {
    single_threaded();
    let builder = Pipeline::builder(model()).devices(&cpus(devices * replicas));
    let builder = builder.replicas(replicas).tree(replicas);
    builder.threads_per_stage(1).seed(3)
}

/// Replicas of pipelines that train separately.
fn local(replicas: usize, devices: usize) -> PipelineBuilder {
    builder(replicas, devices)
        .micro_batches(2 * replicas)
        .local_steps(STEPS)
}

fn optimizer() -> Optimizer {
    Optimizer::new(AdamW {
        lr: 0.02,
        ..AdamW::default()
    })
}

/// A step with clipping; returns its loss and norm.
fn step(pipe: &mut Pipeline, optimizer: &mut Optimizer, (x, y): (&Tensor, &Tensor)) -> [f64; 2] {
    let report = pipe.train_step(x, y, cross_entropy).unwrap();
    let norm = pipe.clip_grad_norm(0.3).unwrap();
    optimizer.step(pipe).unwrap();
    [report.read().unwrap().loss, norm]
}

/// The sum in a balanced binary tree.
fn tree(all: &[Tensor]) -> Tensor {
    if let [one] = all {
        return one.shallow_clone();
    }
    let (left, right) = all.split_at(all.len() / 2);
    tree(left) + tree(right)
}

/// Separate pipelines that are merged by hand.
struct Reference {
    pipes: Vec<(Pipeline, Optimizer)>,
    start: Named,
    momentum: BTreeMap<String, Tensor>,
    done: usize,
}

impl Reference {
    fn new(replicas: usize) -> Self {
        let pipe = |_| (builder(1, 1).micro_batches(2).build().unwrap(), optimizer());
        let mut pipes: Vec<_> = (0..replicas).map(pipe).collect();
        Self {
            start: snapshot(&mut pipes[0].0),
            pipes,
            momentum: BTreeMap::new(),
            done: 0,
        }
    }

    fn step(&mut self, (x, y): (&Tensor, &Tensor), outer: (f64, f64)) -> [f64; 2] {
        let count = self.pipes.len();
        let (x, y) = (x.chunk(count as i64, 0), y.chunk(count as i64, 0));
        let mut sums = [0.0; 2];
        for (number, (pipe, optimizer)) in self.pipes.iter_mut().enumerate() {
            let own = step(pipe, optimizer, (&x[number], &y[number]));
            sums = [sums[0] + own[0], sums[1] + own[1]];
        }
        self.done += 1;
        if self.done.is_multiple_of(STEPS) {
            self.bring_together(outer);
        }
        sums.map(|sum| sum / count as f64)
    }

    /// Computed by one pipeline for all samples, in the replicas' micro-batches: on some processors the bits
    /// of a product depend on its number of rows.
    fn outputs(&mut self, x: &Tensor) -> Tensor {
        let shares = x.chunk(self.pipes.len() as i64, 0);
        let one = &mut self.pipes[0].0;
        let all: Vec<Tensor> = shares.iter().map(|x| one.forward(x).unwrap()).collect();
        Tensor::cat(&all, 0)
    }

    fn bring_together(&mut self, (rate, keep): (f64, f64)) {
        let own: Vec<Named> = self.pipes.iter_mut().map(|(p, _)| snapshot(p)).collect();
        let trained: Vec<String> = {
            let all = self.pipes[0].0.parameters().unwrap().into_iter();
            all.map(|(name, _)| name).collect()
        };
        let count = own.len() as f64;
        let mut values = Named::new();
        for (place, (name, start)) in self.start.iter().enumerate() {
            let new = if trained.contains(name) {
                let moved: Vec<Tensor> = own.iter().map(|own| start - &own[place].1).collect();
                let gradient = tree(&moved) / count;
                let momentum = match self.momentum.get(name) {
                    Some(own) => own * keep + &gradient,
                    None => gradient.copy(),
                };
                let new = start - (&momentum * keep + gradient) * rate;
                self.momentum.insert(name.clone(), momentum);
                new
            } else {
                let all: Vec<Tensor> = own.iter().map(|own| own[place].1.copy()).collect();
                if all[0].is_floating_point() {
                    tree(&all) / count
                } else {
                    all[0].copy()
                }
            };
            values.push((name.clone(), new));
        }
        for (pipe, _) in &mut self.pipes {
            pipe.load(&values).unwrap();
        }
        self.start = values;
    }
}

#[test]
fn rounds_are_those_of_pipelines_of_their_own() {
    for (replicas, devices, outer) in [(2, 1, (0.7, 0.9)), (2, 2, (1.0, 0.0)), (4, 1, (0.5, 0.6))] {
        let case = format!("{replicas} replicas of {devices} devices, {outer:?}");
        let builder = local(replicas, devices).outer(outer.0, outer.1);
        let (mut pipe, mut own) = (builder.build().unwrap(), optimizer());
        let mut reference = Reference::new(replicas);
        for number in 0..3 * STEPS {
            let (x, y) = batch(number, 4 * replicas as i64);
            let numbers = step(&mut pipe, &mut own, (&x, &y));
            let expected = reference.step((&x, &y), outer);
            let bits = |all: [f64; 2]| all.map(f64::to_bits);
            assert_eq!(bits(numbers), bits(expected), "{case}, step {number}");
            if (number + 1) % STEPS == 0 {
                let all = snapshot(&mut pipe);
                assert_same_bits(&all, &reference.start, &format!("{case}, step {number}"));
                // All copies have it.
                let outputs = pipe.forward(&x).unwrap();
                let expected = reference.outputs(&x);
                assert!(outputs.equal(&expected), "{case}: outputs");
            }
        }
    }
}

fn saved(pipe: &mut Pipeline, own: &Optimizer, step: usize) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
    let extras = Extras::new(step as u64);
    checkpointer.save(pipe, own, extras).unwrap();
    checkpointer.finish().unwrap();
    let saved = Checkpoint::newest(folder.path()).unwrap();
    (folder, saved)
}

fn steps(pipe: &mut Pipeline, own: &mut Optimizer, which: std::ops::Range<usize>) -> Vec<[u64; 2]> {
    let one = |number| {
        let (x, y) = batch(number, 16);
        step(pipe, own, (&x, &y)).map(f64::to_bits)
    };
    which.map(one).collect()
}

/// Within rounds and between them, from one cut to another.
#[test]
fn a_checkpoint_goes_on_to_the_bit_wherever_it_is_in_a_round() {
    let (mut whole, mut own) = (local(4, 1).build().unwrap(), optimizer());
    let numbers = steps(&mut whole, &mut own, 0..9);
    let outputs = whole.forward(&batch(0, 16).0).unwrap();
    let expected = snapshot(&mut whole);
    for at in [1, 2, 3, 5, 6] {
        let (mut pipe, mut own) = (local(4, 1).build().unwrap(), optimizer());
        steps(&mut pipe, &mut own, 0..at);
        let (_folder, saved) = saved(&mut pipe, &own, at);
        drop(pipe);
        let (mut pipe, mut own) = (local(4, 2).seed(8).build().unwrap(), optimizer());
        saved.restore(&mut pipe, &mut own).unwrap();
        assert_eq!(
            steps(&mut pipe, &mut own, at..9),
            numbers[at..],
            "from {at}"
        );
        assert_same_bits(&snapshot(&mut pipe), &expected, &format!("from {at}"));
        assert!(pipe.forward(&batch(0, 16).0).unwrap().equal(&outputs));
    }
}

#[test]
fn other_replicas_go_on_between_rounds_only() {
    let (mut pipe, mut own) = (local(4, 1).build().unwrap(), optimizer());
    steps(&mut pipe, &mut own, 0..4);
    let (_folder, inside) = saved(&mut pipe, &own, 4);
    let others = || {
        let longer = local(4, 1).local_steps(5);
        [
            local(2, 1).micro_batches(8),
            longer,
            builder(4, 1).micro_batches(8),
        ]
    };
    for other in others() {
        let (mut pipe, mut own) = (other.build().unwrap(), optimizer());
        let before = snapshot(&mut pipe);
        let error = inside.restore(&mut pipe, &mut own).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error.cause(), CheckpointError::Fit { .. }),
            "{text}"
        );
        assert!(text.contains("after 1 of 3"), "{text}");
        assert!(text.contains("4 replicas and local_steps = 3"), "{text}");
        assert_same_bits(&snapshot(&mut pipe), &before, "refused");
    }
    steps(&mut pipe, &mut own, 4..6);
    let (_folder, between) = saved(&mut pipe, &own, 6);
    let expected = snapshot(&mut pipe);
    for other in others() {
        let (mut pipe, mut own) = (other.build().unwrap(), optimizer());
        between.restore(&mut pipe, &mut own).unwrap();
        assert_same_bits(&snapshot(&mut pipe), &expected, "between rounds");
        steps(&mut pipe, &mut own, 6..7);
    }
}

/// The loss weights apply within each replica.
#[test]
fn weighted_losses_and_the_input_are_of_each_replica() {
    let weighted = |out: &Tensor, y: &Tensor| {
        let weight = y.sum(Kind::Float).double_value(&[]) + 1.0;
        Loss::weighted(cross_entropy(out, y), weight)
    };
    let (x, y) = batch(0, 8);
    let x = x.set_requires_grad(true);
    let mut pipe = local(2, 1).build().unwrap();
    let report = pipe.train_step(&x, &y, weighted).unwrap();
    let (mut losses, mut inputs) = (Vec::new(), Vec::new());
    for (x, y) in x.chunk(2, 0).iter().zip(y.chunk(2, 0)) {
        let mut alone = builder(1, 1).micro_batches(2).build().unwrap();
        let x = x.detach().set_requires_grad(true);
        let own = alone.train_step(&x, &y, weighted).unwrap();
        losses.push(own.read().unwrap().loss);
        inputs.push(own.input_gradient.unwrap().into_one().unwrap());
        if losses.len() == 1 {
            let first = gradients(&mut alone);
            assert_same_bits(&gradients(&mut pipe), &first, "of the first replica");
        }
    }
    let loss = report.read().unwrap().loss;
    assert_eq!(
        loss.to_bits(),
        f64::midpoint(losses[0], losses[1]).to_bits()
    );
    let input = report.input_gradient.unwrap().into_one().unwrap();
    assert!(input.equal(&Tensor::cat(&inputs, 0)));
}

/// One replica's overflow skips the step for all, which still counts in the round.
#[test]
fn an_overflow_skips_the_step_in_all_replicas() {
    let scale = LossScale {
        initial: 256.0,
        ..LossScale::default()
    };
    let builder = local(2, 1).precision(Precision::Fp16).loss_scale(scale);
    let (mut pipe, mut own) = (builder.build().unwrap(), optimizer());
    for number in 0..STEPS {
        let (x, y) = batch(number, 8);
        let factor = Tensor::ones([8], (Kind::Int64, Device::Cpu));
        let y = Tensor::stack(&[y, factor * i64::from(number == 1)], 1);
        let loss = |out: &Tensor, y: &Tensor| {
            let loss = cross_entropy(out, &y.select(1, 0));
            let bad = y.select(1, 1).sum(Kind::Int64).int64_value(&[]) > 0;
            if bad { loss * 1e9 } else { loss }
        };
        let before = snapshot(&mut pipe);
        let report = pipe.train_step(&x, &y, loss).unwrap();
        assert_eq!(report.read().unwrap().skipped(), number == 1);
        own.step(&mut pipe).unwrap();
        if number == 1 {
            assert_same_bits(&snapshot(&mut pipe), &before, "skipped");
        }
    }
    pipe.freeze(|name| name == "out.bias").unwrap();
}

#[test]
fn what_would_leave_replicas_apart_is_refused_within_a_round() {
    let (mut pipe, mut own) = (local(2, 1).build().unwrap(), optimizer());
    let values = snapshot(&mut pipe);
    pipe.load(&values).unwrap();
    steps(&mut pipe, &mut own, 0..1);
    for error in [
        pipe.load(&values).unwrap_err(),
        pipe.freeze(|_| true).unwrap_err(),
        pipe.unfreeze(|_| true).unwrap_err(),
    ] {
        let text = error.to_string();
        let Error::Settings(error) = error else {
            panic!("{text}");
        };
        assert_eq!(error.setting, Setting::LocalSteps);
        assert!(text.contains("after 1 of 3"), "{text}");
    }
    steps(&mut pipe, &mut own, 1..3);
    pipe.freeze(|name| name.starts_with("out")).unwrap();
    let before = snapshot(&mut pipe);
    steps(&mut pipe, &mut own, 3..6);
    let after = snapshot(&mut pipe);
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        assert_eq!(before.equal(after), name.starts_with("out"), "{name}");
    }
    tch::no_grad(|| pipe.load(&values)).unwrap();
}

#[test]
fn local_steps_of_nothing_are_refused() {
    for (builder, setting, wanted) in [
        (
            local(2, 1).local_steps(0),
            Setting::LocalSteps,
            "0 local steps",
        ),
        (local(1, 1), Setting::LocalSteps, "of which there is 1"),
        (
            local(2, 1).shard_optimizer(true),
            Setting::LocalSteps,
            "`shard_optimizer`",
        ),
        (
            local(2, 1).outer(0.0, 0.9),
            Setting::Outer,
            "outer learning rate of 0",
        ),
        (local(2, 1).outer(f64::NAN, 0.9), Setting::Outer, "of NaN"),
        (
            local(2, 1).outer(0.7, 1.0),
            Setting::Outer,
            "outer momentum of 1",
        ),
    ] {
        let error = builder.check().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(wanted), "{text}");
        let Error::Settings(error) = error else {
            panic!("{text}");
        };
        assert_eq!(error.setting, setting);
    }
}
