//! Buffers that forward passes update, and second runs.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{self, Device, Kind, Tensor, nn};
use gpipe::{Pipeline, PipelineBuilder, Sequential, Values, layers::Context, settings::Recompute};

use crate::support::everywhere::{Closure, batch8, plain_linear};
use crate::support::{assert_same_bits, cross_entropy, gradients, single_threaded, snapshot};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn builder(model: &Sequential) -> PipelineBuilder {
    Pipeline::builder(model.clone())
        .balance(&[model.len()])
        .micro_batches(4)
        .threads_per_stage(1)
        .seed(7)
}

/// Updates a scale, and divides by the buffer itself, so that autograd saves it, not a copy.
fn divided(model: Sequential) -> Sequential {
    model.layer("divided", |path| {
        let scale = path.ones_no_train("scale", &[8]);
        Closure(move |inputs: Values, ctx: &Context| {
            let x = inputs.into_one()?;
            if ctx.train() {
                let own = x.detach().abs().mean_dim(0, false, Kind::Float) + 0.5;
                tch::no_grad(|| scale.shallow_clone().copy_(&(&scale * 0.5 + own * 0.5)));
            }
            Ok((x / &scale).into())
        })
    })
}

/// Loss, gradients and buffers of two accumulating steps.
fn numbers(mut pipe: Pipeline) -> (Vec<u64>, Vec<(String, Tensor)>) {
    single_threaded();
    let (x, y) = batch8();
    let losses = (0..2).map(|_| {
        let report = pipe.train_step(&x, &y, cross_entropy);
        report.unwrap().read().unwrap().loss.to_bits()
    });
    let losses = losses.collect();
    let gradients = gradients(&mut pipe).into_iter();
    let mut all: Vec<_> = gradients
        .map(|(name, value)| (format!("{name}'s gradient"), value))
        .collect();
    all.extend(snapshot(&mut pipe));
    (losses, all)
}

/// Regression test: the second run's graph saved the buffer itself, which was later restored to its value
/// before that run.
#[test]
fn a_graph_that_saves_a_moved_buffer_goes_back_through_what_the_forward_read() {
    let model = plain_linear(divided(plain_linear(Sequential::new(), "one")), "two");
    // Each backward directly follows its forward, as without a pipeline.
    let build = |recompute| {
        let builder = builder(&model).schedule(ScheduleKind::OneFOneB);
        numbers(builder.recompute(recompute).build().unwrap())
    };
    let expected = build(Recompute::Never);
    for recompute in [
        Recompute::ExceptLast,
        Recompute::Always,
        Recompute::Layers(vec![false, true, true]),
    ] {
        let what = recompute.to_string();
        let own = build(recompute);
        assert_eq!(own.0, expected.0, "{what}");
        assert_same_bits(&own.1, &expected.1, &what);
    }
}

thread_local! {
    /// A buffer shared by several layers, which are all built on one thread.
    static SHARED: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

/// A layer that subtracts the shared buffer, and updates it if `moves`.
fn sharing(model: Sequential, name: &str, moves: bool) -> Sequential {
    model.layer(name, move |path| {
        let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
        let shared = SHARED.with_borrow_mut(|shared| {
            let shared = shared.get_or_insert_with(|| Tensor::zeros([8], FLOAT));
            path.add("shared", shared.shallow_clone(), false)
        });
        Closure(move |inputs: Values, ctx: &Context| {
            let x = inputs.into_one()?.apply(&linear);
            let centred = &x - &shared;
            if moves && ctx.train() {
                let own = x.detach().mean_dim(0, false, Kind::Float);
                tch::no_grad(|| shared.shallow_clone().copy_(&(&shared * 0.5 + own * 0.5)));
            }
            Ok(centred.tanh().into())
        })
    })
}

#[test]
fn layers_that_share_a_buffer_find_what_each_of_them_found() {
    let build = |recompute| {
        // A stage's thread is new, and so is its buffer.
        let model = sharing(Sequential::new(), "reads before", false);
        let model = sharing(model, "moves", true);
        let model = sharing(model, "reads behind", false);
        let builder = builder(&model).schedule(ScheduleKind::GPipe);
        numbers(builder.recompute(recompute).build().unwrap())
    };
    let expected = build(Recompute::Never);
    for flags in 1..8 {
        let flags = (0..3).map(|layer| flags >> layer & 1 == 1).collect();
        let what = format!("{flags:?}");
        let own = build(Recompute::Layers(flags));
        assert_eq!(own.0, expected.0, "{what}");
        assert_same_bits(&own.1, &expected.1, &what);
    }
    let own = build(Recompute::Always);
    assert_same_bits(&own.1, &expected.1, "always");
}

/// A layer whose buffer stays unchanged until micro-batch `moves_from`; its second run of the other one
/// fails, with an error or a panic.
fn late(moves_from: usize, failing: &Arc<AtomicUsize>, panics: bool) -> Sequential {
    let failing = Arc::clone(failing);
    let model = plain_linear(Sequential::new(), "one").layer("late", move |path| {
        let mean = path.zeros_no_train("mean", &[8]);
        let failing = Arc::clone(&failing);
        Closure(move |inputs: Values, ctx: &Context| {
            let x = inputs.into_one()?;
            let centred = &x - &mean;
            let micro = ctx.micro().index();
            if ctx.train() && micro >= moves_from {
                let own = x.detach().mean_dim(0, false, Kind::Float);
                tch::no_grad(|| mean.shallow_clone().copy_(&(&mean * 0.5 + own * 0.5)));
            }
            if ctx.recomputing() && failing.load(Ordering::SeqCst) == micro {
                assert!(!panics, "it panics");
                anyhow::bail!("it fails");
            }
            Ok((centred.square() + x).into())
        })
    });
    plain_linear(model, "two")
}

const NEVER: usize = usize::MAX;

#[test]
fn a_buffer_may_begin_to_move_in_the_middle_of_a_step() {
    let failing = Arc::new(AtomicUsize::new(NEVER));
    for moves_from in 0..4 {
        let build = |recompute| {
            let builder = builder(&late(moves_from, &failing, false)).recompute(recompute);
            numbers(builder.schedule(ScheduleKind::GPipe).build().unwrap())
        };
        let expected = build(Recompute::Never);
        for recompute in [Recompute::ExceptLast, Recompute::Always] {
            let what = format!("from {moves_from} on, {recompute}");
            let own = build(recompute);
            assert_eq!(own.0, expected.0, "{what}");
            assert_same_bits(&own.1, &expected.1, &what);
        }
    }
}

#[test]
fn a_second_run_that_fails_leaves_no_trace_in_buffers() {
    single_threaded();
    let (x, y) = batch8();
    for panics in [false, true] {
        let failing = Arc::new(AtomicUsize::new(NEVER));
        let build = || {
            let builder = builder(&late(0, &failing, panics)).recompute(Recompute::Always);
            builder.build().unwrap()
        };
        let (mut hit, mut calm) = (build(), build());
        for bad in [0, 3, 1] {
            let before = snapshot(&mut hit);
            failing.store(bad, Ordering::SeqCst);
            let error = hit.train_step(&x, &y, cross_entropy).unwrap_err();
            failing.store(NEVER, Ordering::SeqCst);
            assert!(error.to_string().contains("layer `late`"), "{error}");
            assert_same_bits(&snapshot(&mut hit), &before, "after a failed step");
            for pipe in [&mut hit, &mut calm] {
                pipe.train_step(&x, &y, cross_entropy).unwrap();
            }
            assert_same_bits(&snapshot(&mut hit), &snapshot(&mut calm), "buffers");
            assert_same_bits(&gradients(&mut hit), &gradients(&mut calm), "gradients");
        }
    }
}
