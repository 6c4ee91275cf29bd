//! A layer may change its inputs in place, without effect on others.

mod aliases;
mod losses;
mod owned;
mod plain;
mod slices;
mod written_views;

use crate::support::everywhere::{batch8, everywhere, popped, same_everywhere, with_linear};
use crate::support::*;
use gpipe::Sequential;
use gpipe::tch::{Device, Kind, Tensor, nn};

/// Layers that begin with a change, in place if `in_place`.
fn overwriting(in_place: bool) -> Sequential {
    let relu = move |mut x: Tensor| if in_place { x.relu_() } else { x.relu() };
    let double = move |mut x: Tensor| {
        if in_place {
            x.g_mul_scalar_(2.0)
        } else {
            x * 2.0
        }
    };
    let mut model = with_linear(Sequential::new(), "in", move |x, linear, _| {
        Ok(double(x).apply(linear))
    });
    for number in 0..2 {
        model = with_linear(model, &format!("first{number}"), move |x, linear, _| {
            Ok(relu(x).apply(linear))
        });
    }
    model = with_linear(model, "stash", move |x, linear, ctx| {
        let x = x.apply(linear);
        ctx.stash("a", &x)?;
        // Not the value that the others pop.
        Ok(double(x))
    });
    model = with_linear(model.stashes("a"), "after", move |x, linear, _| {
        Ok(double(x).apply(linear))
    });
    for pop in ["pop1", "pop2"] {
        model = with_linear(model, pop, move |x, linear, ctx| {
            // Not the value that the second one pops either.
            Ok(x.apply(linear) + double(popped(ctx, "a")?))
        });
        model = model.pops("a");
    }
    model
}

#[test]
fn what_a_layer_does_in_place_nobody_else_sees() {
    same_everywhere(&overwriting(true), &batch8().0, Some(&overwriting(false)));
}

#[test]
fn the_callers_input_is_never_written_to() {
    let tokens = Sequential::new()
        .layer("shift", |_| {
            nn::func(|x| {
                let mut x = x.shallow_clone();
                x.remainder_(7)
            })
        })
        .layer("embed", |p| nn::embedding(p, 7, 8, <_>::default()))
        .layer("tanh", |_| nn::func(Tensor::tanh))
        .layer("mean", |_| {
            nn::func(|x| x.mean_dim(1_i64, false, Kind::Float))
        });
    let floats = overwriting(true);
    let ids = Tensor::arange(50, (Kind::Int64, Device::Cpu)).view([10, 5]);
    let (x, y) = batch8();
    let asking = x.copy().set_requires_grad(true);
    for (model, inputs) in [(floats, vec![x, asking]), (tokens, vec![ids])] {
        for input in inputs {
            let before = input.detach().copy();
            everywhere(&model, |builder, what| {
                let mut pipe = builder.build().unwrap();
                for _ in 0..2 {
                    let _ = pipe.forward(&input).unwrap();
                    let report = pipe.train_step(&input, &y, cross_entropy).unwrap();
                    let gradient = report.input_gradient.is_some();
                    assert_eq!(gradient, input.requires_grad(), "{what}");
                    assert!(input.equal(&before), "{what}: the input has changed");
                }
            });
        }
    }
}

/// In-place changes that begin after the first micro-batch: a received value then belongs to its sender, as
/// in the uncut model, while the caller's input stays unchanged.
#[test]
fn a_layer_that_writes_only_sometimes_is_no_error_and_spares_the_caller() {
    let sometimes = |in_place: bool| {
        (0..4).fold(Sequential::new(), |model, number| {
            with_linear(
                model,
                &format!("layer{number}"),
                move |mut x, linear, ctx| {
                    let x = match (ctx.micro().index(), in_place) {
                        (1, true) => x.relu_(),
                        (1, false) => x.relu(),
                        _ => x,
                    };
                    Ok(x.apply(linear))
                },
            )
        })
    };
    let (x, _) = batch8();
    let before = x.copy();
    same_everywhere(&sometimes(true), &x, Some(&sometimes(false)));
    assert!(x.equal(&before));
}
