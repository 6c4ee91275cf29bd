//! A loss function may change its inputs in place, too.
//!
//! Regression tests: only layers were considered, so a loss function that wrote to its target changed the
//! caller's, and its change of a popped value changed the stashed one, which autograd had saved.

use gpipe::tch::{Tensor, nn};
use gpipe::{Pipeline, Sequential, Values, layers::Context, settings::on_values};

use crate::support::everywhere::{Closure, batch8, everywhere, plain_linear, with_linear};
use crate::support::*;

/// The last layer returns the first one's stash and its own result.
fn popping() -> Sequential {
    let model = with_linear(Sequential::new(), "stash", |x, linear, ctx| {
        let x = x.apply(linear).tanh();
        ctx.stash("a", &x)?;
        Ok(x * 2.0)
    });
    let model = plain_linear(plain_linear(model.stashes("a"), "second"), "third");
    let model = model.layer("pop", |path| {
        let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
        Closure(move |x: Values, ctx: &Context| {
            let popped: Option<Tensor> = ctx.pop("a")?;
            Ok(vec![x.into_one()?.apply(&linear), popped.unwrap()].into())
        })
    });
    model.pops("a")
}

/// The squared errors, with everything doubled.
fn doubled(out: &Values, target: &Values, in_place: bool) -> anyhow::Result<Tensor> {
    let double = |tensor: &Tensor| {
        if in_place {
            tensor.shallow_clone().g_mul_scalar_(2.0)
        } else {
            tensor * 2.0
        }
    };
    let all: Vec<Tensor> = out.present().map(double).collect();
    let off = &all[0] + all[1].sin() - double(target.one()?);
    Ok(off.square().mean(off.kind()))
}

#[test]
fn what_a_loss_function_does_in_place_nobody_else_sees() {
    let (x, _) = batch8();
    let target = x.cos();
    let before = target.copy();
    let steps = |pipe: &mut Pipeline, in_place: bool, what: &str| {
        let loss = || on_values(move |out: &Values, y: &Values| doubled(out, y, in_place));
        let losses = [0, 1].map(|_| {
            let step = pipe.train_step(&x, &target, loss());
            step.unwrap_or_else(|e| panic!("{what}: {e}"))
                .read()
                .unwrap()
                .loss
                .to_bits()
        });
        (losses, gradients(pipe))
    };
    let first = Pipeline::builder(popping());
    let first = first.micro_batches(3).threads_per_stage(1).seed(7).build();
    let expected = steps(&mut first.unwrap(), false, "out of place");
    everywhere(&popping(), |builder, what| {
        let own = steps(&mut builder.build().unwrap(), true, what);
        assert!(target.equal(&before), "{what}: the target has changed");
        assert_eq!(own.0, expected.0, "{what}");
        assert_same_bits(&own.1, &expected.1, what);
    });
}
