//! Slices along any dimension, windows and expanded tensors: promised copies are real.
//!
//! Regression tests: all of these failed. Copying returned the tensor itself if libtorch was not certain that
//! its elements do not overlap, as for every slice not along the first dimension.

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Sequential, Values};

use super::plain::{Parts, as_plain};
use crate::support::everywhere::{
    batch8, everywhere, plain_linear, popped, same_everywhere, with_linear,
};
use crate::support::*;

fn lin(x: Values, linear: &nn::Linear) -> anyhow::Result<Values> {
    Ok(x.into_one()?.apply(linear).into())
}

fn double(x: Values, _: &nn::Linear) -> anyhow::Result<Values> {
    Ok(x.into_one()?.g_mul_scalar_(2.0).into())
}

/// In its own memory, and at full width again.
fn widen(x: Values, linear: &nn::Linear) -> anyhow::Result<Values> {
    let x = x.into_one()?;
    let times = 8 / x.size()[1];
    Ok(Tensor::cat(&vec![&x; times as usize], 1)
        .apply(linear)
        .into())
}

fn narrow(x: Values, _: &nn::Linear) -> anyhow::Result<Values> {
    Ok(x.into_one()?.narrow(1, 4, 4).into())
}

#[test]
fn a_received_slice_may_be_written_to() {
    let every_second: &Parts = &[
        ("in", lin),
        ("slice", |x, _| Ok(x.into_one()?.slice(1, 0, 8, 2).into())),
        ("double", double),
        ("widen", widen),
    ];
    let selected: &Parts = &[
        ("in", lin),
        ("select", |x, _| {
            Ok(x.into_one()?.view([-1, 2, 4]).select(1, 1).into())
        }),
        ("double", double),
        ("widen", widen),
    ];
    let twice: &Parts = &[
        ("in", lin),
        ("first", narrow),
        ("double", double),
        ("widen", widen),
        ("second", narrow),
        ("double2", double),
        ("widen2", widen),
    ];
    for parts in [every_second, selected, twice] {
        as_plain(parts);
    }
}

/// A part of an expanded tensor that does not overlap itself.
#[test]
fn a_received_expanded_tensor_may_be_written_to_where_that_is_possible() {
    as_plain(&[
        ("in", lin),
        ("expand", |x, _| {
            let means = x.into_one()?.mean_dim(1_i64, true, Kind::Float);
            Ok(means.expand([-1, 8], false).into())
        }),
        ("one", |x, _| {
            let x = x.into_one()?;
            let mut one = x.detach().narrow(1, 0, 1);
            let _ = one.g_mul_scalar_(2.0);
            Ok(x.contiguous().into())
        }),
        ("out", lin),
    ]);
}

/// An in-place change.
type Write = fn(&Tensor);

fn overwriting(write: Write) -> Sequential {
    let model = with_linear(Sequential::new(), "write", move |x, linear, _| {
        write(&x.detach());
        Ok(x.contiguous().apply(linear))
    });
    let names = ["second", "third", "last"];
    names.into_iter().fold(model, plain_linear)
}

#[test]
fn the_callers_slice_is_never_written_to() {
    let wave = || Tensor::arange(400, (Kind::Float, Device::Cpu)).sin();
    let whole = |x: &Tensor| drop(x.shallow_clone().g_mul_scalar_(2.0));
    let part = |x: &Tensor| drop(x.narrow(1, 0, 1).g_mul_scalar_(2.0));
    let zero = |x: &Tensor| drop(x.shallow_clone().zero_());
    let inputs: [(Tensor, Write); 5] = [
        (wave().view([10, 40]).narrow(1, 3, 8), whole),
        (
            wave().view([10, 2, 20]).select(1, 1).slice(1, 0, 16, 2),
            whole,
        ),
        // Overlapping windows, and one value eight times: operations that fill a tensor may write to them.
        (wave().as_strided([10, 8], [2, 1], 3), zero),
        (
            wave().narrow(0, 0, 10).view([10, 1]).expand([10, 8], false),
            zero,
        ),
        (
            wave().narrow(0, 0, 10).view([10, 1]).expand([10, 8], false),
            part,
        ),
    ];
    let (_, y) = batch8();
    for (input, write) in inputs {
        for input in [
            input.shallow_clone(),
            input.detach().set_requires_grad(true),
        ] {
            let before = input.detach().contiguous().copy();
            let mut losses = None;
            everywhere(&overwriting(write), |builder, what| {
                let mut pipe = builder.build().unwrap();
                for _ in 0..2 {
                    let _ = pipe.forward(&input).unwrap();
                    let step = pipe.train_step(&input, &y, cross_entropy).unwrap();
                    let loss = step.read().unwrap().loss.to_bits();
                    assert_eq!(*losses.get_or_insert(loss), loss, "{what}");
                    assert!(input.equal(&before), "{what}: the input has changed");
                }
            });
        }
    }
}

/// The same without writes, except for `in_place`.
fn stashing(in_place: bool) -> Sequential {
    let double = move |mut x: Tensor| {
        if in_place {
            x.g_mul_scalar_(2.0)
        } else {
            x * 2.0
        }
    };
    let model = plain_linear(Sequential::new(), "in");
    let model = with_linear(model, "stash", |x, linear, ctx| {
        let x = x.apply(linear).narrow(1, 2, 4);
        ctx.stash("slice", &x)?;
        Ok(x)
    });
    let model = with_linear(model.stashes("slice"), "double", move |x, linear, _| {
        let x = double(x);
        Ok(Tensor::cat(&[&x, &x], 1).apply(linear))
    });
    let pop = move |x: Tensor, linear: &nn::Linear, ctx: &gpipe::layers::Context| {
        let x = x.apply(linear);
        let slice = double(popped(ctx, "slice")?);
        Ok(x + Tensor::cat(&[&slice, &slice], 1))
    };
    let model = with_linear(model, "pop", pop).pops("slice");
    let model = with_linear(model, "pop again", pop).pops("slice");
    plain_linear(model, "last")
}

#[test]
fn a_stashed_slice_is_a_snapshot() {
    same_everywhere(&stashing(true), &batch8().0, Some(&stashing(false)));
}
