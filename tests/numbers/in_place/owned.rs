//! Parameters and buffers that a layer returns stay unchanged, whatever later layers do in place.
//!
//! Regression tests: within a stage such a change reached the owner, across a cut it did not, so the numbers
//! depended on the cut.

use gpipe::tch::Tensor;
use gpipe::{Sequential, Values, layers::Context};

use crate::support::everywhere::{
    Closure, batch8, plain_linear, popped, same_everywhere, with_linear,
};

fn double(in_place: bool) -> impl Fn(Tensor) -> Tensor + Clone + Send + Sync {
    move |mut x| {
        if in_place {
            x.g_mul_scalar_(2.0)
        } else {
            x * 2.0
        }
    }
}

/// A layer that returns its input, a parameter, a buffer and a part of that.
fn giving(in_place: bool) -> Sequential {
    let model = plain_linear(Sequential::new(), "in").layer("give", |path| {
        let weight = path.ones("weight", &[8]);
        let buffer = path.ones_no_train("buffer", &[8]);
        Closure(move |x: Values, _: &Context| {
            let part = buffer.narrow(0, 0, 4);
            let (weight, buffer) = (weight.shallow_clone(), buffer.shallow_clone());
            Ok(vec![x.into_one()?, weight, buffer, part].into())
        })
    });
    let model = model.layer("pass", |_| Closure(|x: Values, _: &Context| Ok(x)));
    let double = double(in_place);
    let model = model.layer("write", move |_| {
        let double = double.clone();
        Closure(move |x: Values, _: &Context| {
            let x: Vec<Tensor> = x.into_iter().flatten().collect();
            let [x, weight, buffer, part] = <[Tensor; 4]>::try_from(x).unwrap();
            let (weight, buffer) = (double(weight), double(buffer));
            let part = if in_place { part } else { part * 2.0 };
            Ok((x * weight + buffer + Tensor::cat(&[&part, &part], 0)).into())
        })
    });
    plain_linear(model, "last")
}

/// A layer that returns only a parameter.
fn table(in_place: bool) -> Sequential {
    let model = with_linear(Sequential::new(), "table", |x, linear, ctx| {
        ctx.stash("x", &x.apply(linear))?;
        Ok(linear.ws.shallow_clone())
    });
    let double = double(in_place);
    let model = with_linear(model.stashes("x"), "write", move |table, _, _| {
        Ok(double(table))
    });
    let model = with_linear(model, "look up", |table, linear, ctx| {
        Ok(popped(ctx, "x")?.matmul(&table).apply(linear))
    });
    plain_linear(model.pops("x"), "last")
}

#[test]
fn what_a_layer_gives_out_stays_its_own() {
    for model in [giving, table] {
        same_everywhere(&model(true), &batch8().0, Some(&model(false)));
    }
}
