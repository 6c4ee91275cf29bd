//! Types of computations, by place.

use std::sync::{Arc, Mutex};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Pipeline, Sequential, Values,
    layers::Context,
    settings::{Precision, Recompute},
};

use super::{SHORT, builder, copied};
use crate::support::everywhere::{Closure, plain_linear, with_linear};
use crate::support::*;

fn short(precision: Precision) -> Kind {
    match precision {
        Precision::Bf16 => Kind::BFloat16,
        _ => Kind::Half,
    }
}

#[test]
fn names_are_read_and_written() {
    for precision in Precision::ALL {
        assert_eq!(precision.to_string().parse(), Ok(precision));
    }
    for (text, expected) in [
        ("bfloat16", Precision::Bf16),
        ("f16", Precision::Fp16),
        ("float32", Precision::F32),
    ] {
        assert_eq!(text.parse(), Ok(expected));
    }
    let error = "fp8".parse::<Precision>().unwrap_err();
    assert_eq!(error, "must be one of f32, bf16, fp16");
}

/// Observations: the place, whether recomputing, and the type.
type Seen = Arc<Mutex<Vec<(&'static str, bool, Kind)>>>;

/// A layer that records the type of its input.
fn spy(model: Sequential, name: &'static str, seen: &Seen) -> Sequential {
    let seen = Arc::clone(seen);
    model.layer(name, move |_| {
        let seen = Arc::clone(&seen);
        Closure(move |inputs: Values, ctx: &Context| {
            let kind = inputs.one()?.kind();
            seen.lock().unwrap().push((name, ctx.recomputing(), kind));
            Ok(inputs)
        })
    })
}

#[test]
fn layers_recomputation_and_loss_compute_in_the_short_type() {
    for precision in SHORT {
        let seen = Seen::default();
        let model = spy(Sequential::new(), "begin", &seen);
        let model = spy(plain_linear(model, "linear"), "product", &seen);
        let model = model.layer("widen", |_| nn::func(|x| x.to_kind(Kind::Float).tanh()));
        let model = plain_linear(spy(model, "widened", &seen), "head");
        let mut pipe = Pipeline::builder(model)
            .devices(&cpus(3))
            .balance(&[2, 2, 2])
            .micro_batches(2)
            .recompute(Recompute::Always)
            .precision(precision)
            .build()
            .unwrap();
        assert_eq!(pipe.precision(), precision);
        let (x, y) = batch(&[4, 8], 4);
        let in_loss = Arc::clone(&seen);
        let loss = move |out: &Tensor, y: &Tensor| {
            let product = out.to_kind(Kind::Float).matmul(&out.tr());
            let loss = out.cross_entropy_for_logits(y);
            let mut seen = in_loss.lock().unwrap();
            seen.push(("output", false, out.kind()));
            seen.push(("product in the loss", false, product.kind()));
            seen.push(("loss", false, loss.kind()));
            loss
        };
        pipe.train_step(&x, &y, loss).unwrap();
        let short = short(precision);
        let expected = [
            ("begin", Kind::Float),
            ("product", short),
            ("widened", Kind::Float),
            ("output", short),
            ("product in the loss", short),
            ("loss", Kind::Float),
        ];
        let seen = seen.lock().unwrap();
        for (place, kind) in expected {
            let at = |again: bool| seen.iter().filter(move |s| s.0 == place && s.1 == again);
            assert_eq!(at(false).count(), 2, "{place}: each micro-batch");
            let layer = ["begin", "product", "widened"].contains(&place);
            assert_eq!(at(true).count(), if layer { 2 } else { 0 }, "{place}");
            let all = at(false).chain(at(true));
            assert!(all.into_iter().all(|s| s.2 == kind), "{place}: {seen:?}");
        }
    }
}

#[test]
fn weights_gradients_and_outputs_for_the_caller_are_single_precision() {
    single_threaded();
    let (x, y) = mlp_batch(8);
    for precision in SHORT {
        let mut pipe = builder(3, precision).build().unwrap();
        let asking = x.copy().set_requires_grad(true);
        let report = pipe.train_step(&asking, &y, cross_entropy).unwrap();
        assert!(!report.read().unwrap().skipped());
        let mut all = pipe.parameters().unwrap();
        all.extend(gradients(&mut pipe));
        assert_eq!(all.len(), 2 * pipe.parameters().unwrap().len());
        all.push(("output".to_owned(), pipe.forward(&x).unwrap()));
        let input = report.input_gradient.unwrap().into_one().unwrap();
        all.push(("the input's gradient".to_owned(), input));
        for (name, tensor) in all {
            assert_eq!(tensor.kind(), Kind::Float, "{name}");
        }
        // This thread is not one of the pipeline's.
        assert_eq!(x.matmul(&x.tr()).kind(), Kind::Float);
    }
}

#[test]
fn a_product_is_that_of_the_shortened_factors() {
    single_threaded();
    let (x, _) = mlp_batch(8);
    for precision in SHORT {
        let model = Sequential::new().layer("only", |path| {
            nn::linear(path, 12, 5, nn::LinearConfig::default())
        });
        let mut pipe = Pipeline::builder(model)
            .precision(precision)
            .threads_per_stage(1)
            .build()
            .unwrap();
        let kind = short(precision);
        let own = snapshot(&mut pipe);
        let (bias, weight) = (own[0].1.to_kind(kind), own[1].1.to_kind(kind));
        let expected = x.to_kind(kind).linear(&weight, Some(&bias));
        let got = pipe.forward(&x).unwrap();
        assert!(got.equal(&expected.to_kind(Kind::Float)), "{precision}");
    }
}

/// If uses of a weight shared its half-precision copy, their gradients would be added in half precision.
#[test]
fn gradients_of_a_weights_uses_are_added_in_single_precision() {
    single_threaded();
    let twice = with_linear(Sequential::new(), "layer", |x, linear, _| {
        Ok(x.apply(linear).apply(linear))
    });
    let apart = plain_linear(plain_linear(Sequential::new(), "first"), "second");
    let (x, y) = batch(&[6, 8], 6);
    for precision in SHORT {
        let pipe = |model: &Sequential| {
            let builder = Pipeline::builder(model.clone()).precision(precision);
            builder.threads_per_stage(1).build().unwrap()
        };
        let (mut twice, mut apart) = (pipe(&twice), pipe(&apart));
        let own = snapshot(&mut twice);
        let renamed = |layer: &str| {
            let own = own.iter();
            let list = own.map(|(name, value)| (name.replace("layer", layer), value.copy()));
            list.collect::<Vec<_>>()
        };
        apart.load(&renamed("first")).unwrap();
        apart.load(&renamed("second")).unwrap();
        for pipe in [&mut twice, &mut apart] {
            assert!(
                !pipe
                    .train_step(&x, &y, cross_entropy)
                    .unwrap()
                    .read()
                    .unwrap()
                    .skipped()
            );
        }
        let parts = gradients(&mut apart);
        for (place, (name, sum)) in gradients(&mut twice).iter().enumerate() {
            let expected = &parts[place].1 + &parts[place + 2].1;
            assert!(sum.equal(&expected), "{precision} {name}");
            assert!(!sum.equal(&expected.to_kind(short(precision)).to_kind(Kind::Float)));
        }
    }
}

#[test]
fn a_layer_may_insist_on_single_precision() {
    for precision in [Precision::F32, Precision::Bf16] {
        let kinds = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&kinds);
        let model = with_linear(Sequential::new(), "layer", move |x, linear, ctx| {
            assert_eq!(ctx.precision(), precision);
            let full = ctx.full_precision(|| Ok(x.apply(linear)))?;
            let refused: anyhow::Result<()> =
                ctx.full_precision(|| anyhow::bail!("the closure's own"));
            assert!(refused.unwrap_err().to_string().contains("own"));
            let outer = x.apply(linear);
            seen.lock().unwrap().push((full.kind(), outer.kind()));
            Ok(full)
        });
        let mut pipe = Pipeline::builder(model)
            .precision(precision)
            .build()
            .unwrap();
        let (x, y) = batch(&[4, 8], 4);
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        let outer = if precision == Precision::F32 {
            Kind::Float
        } else {
            Kind::BFloat16
        };
        assert_eq!(*kinds.lock().unwrap(), [(Kind::Float, outer)]);
    }
}

/// A panic on a stage's thread ends the layer's autocast scope.
#[test]
fn a_failed_step_leaves_nothing_behind() {
    let fail = Arc::new(Mutex::new(false));
    let model = |fail: &Arc<Mutex<bool>>| {
        let fail = Arc::clone(fail);
        let model = plain_linear(Sequential::new(), "first");
        let model = with_linear(model, "second", move |x, linear, ctx| {
            let fail = *fail.lock().unwrap();
            ctx.full_precision(|| {
                assert!(!fail, "as told");
                Ok(())
            })?;
            Ok(x.apply(linear))
        });
        plain_linear(model, "third")
    };
    let (x, y) = batch8();
    let pipe = || {
        let builder = Pipeline::builder(model(&fail)).devices(&cpus(3));
        let builder = builder.micro_batches(2).precision(Precision::Bf16);
        builder.threads_per_stage(1).build().unwrap()
    };
    let (mut once, mut failed) = (pipe(), pipe());
    once.train_step(&x, &y, cross_entropy).unwrap();
    *fail.lock().unwrap() = true;
    let error = failed.train_step(&x, &y, cross_entropy).unwrap_err();
    assert!(error.to_string().contains("as told"), "{error}");
    *fail.lock().unwrap() = false;
    failed.train_step(&x, &y, cross_entropy).unwrap();
    assert_same_bits(&gradients(&mut failed), &gradients(&mut once), "after it");
}

fn batch8() -> (Tensor, Tensor) {
    batch(&[10, 8], 10)
}

/// Autocast's copies of weights belong to a micro-batch's graph. That of the smallest weight takes `SMALLEST`
/// bytes; the variation between steps comes from the release of losses, single numbers of 64 bytes each.
#[test]
fn nothing_is_kept_from_step_to_step() {
    const SMALLEST: u64 = 160;
    let (x, y) = mlp_batch(8);
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let builder = builder(2, Precision::Bf16).schedule(schedule);
        let mut pipe = builder.measure_memory(true).build().unwrap();
        let mut held: Vec<Vec<u64>> = Vec::new();
        for _ in 0..3 {
            let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
            let devices = report.memory.unwrap().devices;
            assert!(devices.iter().all(|used| used.left.get() == 0));
            held.push(devices.iter().map(|used| used.held.get()).collect());
        }
        let same = |(a, b): (&u64, &u64)| a.abs_diff(*b) < SMALLEST;
        let pairs = || held[1].iter().zip(&held[2]);
        assert!(pairs().all(same), "{schedule}: {held:?}");
    }
}

#[test]
fn single_precision_is_what_it_was() {
    let (x, y) = mlp_batch(8);
    let mut told = builder(2, Precision::F32).build().unwrap();
    let mut untold = Pipeline::builder(sequential(&mlp()))
        .devices(&[Device::Cpu])
        .micro_batches(4)
        .threads_per_stage(1)
        .seed(5)
        .build()
        .unwrap();
    let report = told.train_step(&x, &y, cross_entropy).unwrap();
    assert_eq!(report.read().unwrap().loss_scale, None);
    untold.train_step(&x, &y, cross_entropy).unwrap();
    let expected = copied(gradients(&mut untold));
    assert_same_bits(&gradients(&mut told), &expected, "single precision");
}
