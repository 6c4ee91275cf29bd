//! Values that share memory keep sharing it, in autograd too, wherever the model is cut.
//!
//! Regression tests: all of these gave wrong gradients, and across a cut wrong losses. Each output became a
//! separate variable over the same memory, so that autograd did not know that changing one changes the other;
//! and if one was copied, the other did not change.

use gpipe::partitioner::Bytes;
use gpipe::tch::{Kind, Tensor, nn};
use gpipe::{Pipeline, Sequential, Values};

use super::plain::{Body, Parts, as_plain, sequential};
use crate::support::everywhere::{
    Closure, batch8, plain_linear, popped, same_everywhere, with_linear,
};
use crate::support::{cpus, cross_entropy};

fn lin(x: Values, linear: &nn::Linear) -> anyhow::Result<Values> {
    Ok(x.into_one()?.apply(linear).into())
}

fn handle(values: &Values, index: usize) -> Tensor {
    values.get(index).unwrap().shallow_clone()
}

/// A layer that returns several values, and one that writes to one of them; cut anywhere.
fn given_and_written(give: Body, write: Body) {
    as_plain(&[("in", lin), ("give", give), ("write", write), ("out", lin)]);
    as_plain(&[
        ("give", give),
        ("pass", |x, _| Ok(x)),
        ("pass again", |x, _| Ok(x)),
        ("write", write),
        ("out", lin),
    ]);
}

fn twice(x: Values, _: &nn::Linear) -> anyhow::Result<Values> {
    let x = x.into_one()?;
    Ok(vec![x.shallow_clone(), x].into())
}

#[test]
fn the_same_value_twice() {
    given_and_written(twice, |x, _| {
        let (mut a, b) = (handle(&x, 0), handle(&x, 1));
        let _ = a.g_mul_scalar_(2.0);
        Ok((a + b * 3.0).into())
    });
}

#[test]
fn a_value_and_a_part_of_it() {
    let give: Body = |x, _| {
        let x = x.into_one()?;
        Ok(vec![x.narrow(1, 2, 4), x].into())
    };
    given_and_written(give, |x, _| {
        let (mut part, whole) = (handle(&x, 0), handle(&x, 1));
        let _ = part.g_mul_scalar_(2.0);
        Ok((&whole * 3.0 + whole.sin() * Tensor::cat(&[&part, &part], 1)).into())
    });
    given_and_written(give, |x, _| {
        let (part, mut whole) = (handle(&x, 0), handle(&x, 1));
        let _ = whole.g_mul_scalar_(2.0);
        Ok((&whole * 3.0 + whole.sin() * Tensor::cat(&[&part, &part], 1)).into())
    });
}

#[test]
fn a_value_and_its_transpose() {
    let give: Body = |x, linear| {
        let x = x.into_one()?.apply(linear).tr();
        Ok(vec![x.tr(), x].into())
    };
    given_and_written(give, |x, _| {
        let (a, mut b) = (handle(&x, 0), handle(&x, 1));
        let _ = b.g_mul_scalar_(0.5);
        let _ = b.narrow(0, 3, 2).g_add_(&b.narrow(0, 5, 2).detach());
        Ok((&a * a.cos() + b.tr() * 3.0).contiguous().into())
    });
}

#[test]
fn parts_that_overlap_each_other() {
    let give: Body = |x, linear| {
        let x = x.into_one()?.apply(linear);
        Ok(vec![x.narrow(1, 0, 6), x.narrow(1, 2, 6), x.narrow(1, 1, 1)].into())
    };
    given_and_written(give, |x, _| {
        let (mut a, mut b, c) = (handle(&x, 0), handle(&x, 1), handle(&x, 2));
        let _ = a.g_mul_scalar_(2.0);
        let _ = b.narrow(1, 0, 3).g_mul_scalar_(1.5);
        let _ = b.g_add_scalar_(0.25);
        Ok((Tensor::cat(&[&a.sin(), &b.narrow(1, 4, 2)], 1) * c).into())
    });
}

/// The next two layers write to parts of one matrix that do not overlap.
#[test]
fn parts_side_by_side_changed_by_several_layers() {
    let give: Body = |x, linear| {
        let x = x.into_one()?.apply(linear);
        let parts = [0, 2, 5].map(|start| x.narrow(1, start, if start == 2 { 3 } else { 2 }));
        Ok(parts.into_iter().collect::<Vec<_>>().into())
    };
    as_plain(&[
        ("in", lin),
        ("give", give),
        ("write first", |x, _| {
            let _ = handle(&x, 0).g_mul_scalar_(2.0);
            Ok(vec![handle(&x, 2), handle(&x, 1), handle(&x, 0)].into())
        }),
        ("write second", |x, linear| {
            let bias = linear.bs.as_ref().unwrap().narrow(0, 1, 3);
            let _ = handle(&x, 1).g_mul_(&bias);
            Ok(x)
        }),
        ("join", |x, linear| {
            let mut all: Vec<Tensor> = x.present().map(Tensor::shallow_clone).collect();
            all.push(&all[0] * &all[2]);
            let all = Tensor::cat(&all, 1).constant_pad_nd([0, -1]);
            Ok(all.apply(linear).into())
        }),
    ]);
}

/// A detached value shares the memory without autograd's knowledge.
#[test]
fn a_value_and_a_detached_one() {
    let give: Body = |x, linear| {
        let x = x.into_one()?.apply(linear);
        Ok(vec![x.detach().narrow(1, 0, 4), x].into())
    };
    given_and_written(give, |x, _| {
        let (mut part, whole) = (handle(&x, 0), handle(&x, 1));
        let _ = part.g_mul_scalar_(2.0);
        Ok((&whole * 3.0 + Tensor::cat(&[&part, &part], 1)).into())
    });
    given_and_written(give, |x, _| {
        let (part, mut whole) = (handle(&x, 0), handle(&x, 1));
        let _ = whole.g_mul_scalar_(2.0);
        Ok((&whole * 3.0 + Tensor::cat(&[&part, &part], 1)).into())
    });
}

#[test]
fn integers_that_share_memory() {
    let give: Body = |x, linear| {
        let x = x.into_one()?.apply(linear);
        let order = x.detach().argsort(1, false);
        Ok(vec![order.narrow(1, 1, 3), x, order].into())
    };
    given_and_written(give, |x, _| {
        let _ = handle(&x, 0).g_add_scalar_(3);
        let order = handle(&x, 2).to_kind(Kind::Float);
        Ok((handle(&x, 1) * order).into())
    });
}

#[test]
fn two_groups_and_a_value_alone() {
    let give: Body = |x, linear| {
        let x = x.into_one()?;
        let (y, z) = (x.apply(linear), x.sin());
        let mut all = Values::from(vec![y.narrow(1, 0, 5), z.narrow(0, 1, 2)]);
        all.push(None);
        [x * 2.0, z, y]
            .into_iter()
            .for_each(|value| all.push(Some(value)));
        Ok(all)
    };
    given_and_written(give, |x, _| {
        let _ = handle(&x, 0).g_mul_scalar_(2.0);
        let _ = handle(&x, 1).g_mul_scalar_(3.0);
        Ok((handle(&x, 3) + handle(&x, 4) * handle(&x, 5)).into())
    });
}

/// Without writes, the gradients are added in the order of plain tch.
#[test]
fn values_that_share_memory_used_many_times() {
    let use_all: Body = |x, linear| {
        let (a, b) = (handle(&x, 0), handle(&x, 1));
        let used = (&a * 0.3).sin() + b.tanh() * a.apply(linear) + b.cos();
        Ok(vec![a, b, used].into())
    };
    as_plain(&[
        ("in", lin),
        ("twice", twice),
        ("use", use_all),
        ("use again", |x, linear| {
            let (a, b, used) = (handle(&x, 0), handle(&x, 1), handle(&x, 2));
            Ok((b.apply(linear) * a.sigmoid() + used + a * 0.1 + b.sin()).into())
        }),
        ("out", lin),
    ]);
}

/// Complex views, and the same bytes as another type.
#[test]
fn complex_numbers_and_their_parts() {
    let give: Body = |x, linear| {
        let z = x
            .into_one()?
            .apply(linear)
            .view([-1, 4, 2])
            .view_as_complex()
            * 1.0;
        Ok(vec![z.view_as_real().select(2, 1), z.conj(), z].into())
    };
    given_and_written(give, |x, _| {
        let (imaginary, conjugate, mut z) = (handle(&x, 0), handle(&x, 1), handle(&x, 2));
        let _ = z.g_mul_scalar_(2.0);
        let product = (&conjugate * &z).view_as_real().select(2, 0);
        Ok(Tensor::cat(&[&product, &imaginary], 1).into())
    });
}

/// Autograd cannot know that changing one changes the other.
#[test]
fn a_gradient_of_its_own_for_the_same_memory_is_refused_with_the_layers_name() {
    let parts: &Parts = &[
        ("in", lin),
        ("give", |x, _| {
            let x = x.into_one()?;
            Ok(vec![x.detach().set_requires_grad(true), x].into())
        }),
        ("join", |x, _| Ok((handle(&x, 0) + handle(&x, 1)).into())),
    ];
    for stages in 1..=3 {
        let mut pipe = Pipeline::new(sequential(parts), &cpus(stages), 2).unwrap();
        let (x, y) = batch8();
        let error = pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap_err()
            .to_string();
        for word in ["layer `give`", "share memory, but not their gradients"] {
            assert!(error.contains(word), "no {word} in: {error}");
        }
    }
}

/// A stash is a snapshot, also with respect to the value passed on.
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
        let x = x.apply(linear);
        ctx.stash("whole", &x)?;
        ctx.stash("part", &x.narrow(1, 4, 4))?;
        Ok(x)
    });
    let model = model.stashes("whole").stashes("part");
    // The received value and two snapshots of it: three independent tensors.
    let model = model.layer("pop", move |_| {
        Closure(move |x: Values, ctx: &gpipe::layers::Context| {
            let x = x.into_one()?;
            let (whole, part) = (popped(ctx, "whole")?, popped(ctx, "part")?);
            Ok(vec![part, x, whole].into())
        })
    });
    let model = model.pops("whole").pops("part");
    let model = model.layer("write", move |_| {
        Closure(move |x: Values, _: &gpipe::layers::Context| {
            let x: Vec<Tensor> = x.into_iter().flatten().collect();
            let [part, x, whole] = <[Tensor; 3]>::try_from(x).unwrap();
            let x = double(x);
            let part = double(double(part));
            Ok((x * 0.1 + Tensor::cat(&[&part, &part], 1) * whole.cos()).into())
        })
    });
    plain_linear(model, "last")
}

#[test]
fn what_was_stashed_shares_memory_with_nobody() {
    same_everywhere(&stashing(true), &batch8().0, Some(&stashing(false)));
}

/// Also of what is in the host's memory meanwhile.
#[test]
fn a_change_of_what_was_saved_is_an_error_where_it_is_offloaded_too() {
    for offload in [&[][..], &[0]] {
        let model = with_linear(Sequential::new(), "spoils", |x, linear, _| {
            let saved = x.apply(linear).exp();
            let out = &saved * 2.0;
            let _ = saved.shallow_clone().g_mul_scalar_(3.0);
            Ok(out)
        });
        let builder = Pipeline::builder(plain_linear(model, "out"))
            .devices(&cpus(1))
            .micro_batches(2)
            .offload(offload)
            .offload_at_least(Bytes(1));
        let (x, y) = batch8();
        let step = builder.build().unwrap().train_step(&x, &y, cross_entropy);
        let message = step.unwrap_err().to_string();
        for part in [
            "layer `spoils`",
            "modified by an inplace operation",
            "is at version 1",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}
