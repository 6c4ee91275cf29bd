//! Values that skip layers arrive as stashed, wherever the model is cut, and their gradients come back.

use crate::support::everywhere::{
    Closure, batch8, plain_linear, popped, same_everywhere, with_linear,
};
use crate::support::*;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Pipeline, Sequential, Values, layers::Context};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn refused(model: Sequential) -> String {
    Pipeline::builder(model).build().unwrap_err().to_string()
}

#[test]
fn stashes_and_pops_that_do_not_belong_together_are_refused_with_the_names() {
    let layer = |model, name| plain_linear(model, name);
    let three = |stash: &[&str], pop: &[&str], late: &[&str]| {
        let mut model = layer(Sequential::new(), "one");
        for name in stash {
            model = model.stashes(*name);
        }
        model = layer(model, "two");
        for name in pop {
            model = model.pops(*name);
        }
        model = layer(model, "three");
        for name in late {
            model = model.stashes(*name);
        }
        model
    };
    for (model, words) in [
        (
            three(&["a"], &[], &[]),
            vec!["`one`", "`a`", "no layer pops"],
        ),
        (
            three(&[], &["a"], &[]),
            vec!["`two`", "`a`", "no layer stashes"],
        ),
        (
            three(&[], &["a"], &["a"]),
            vec!["`two`", "`a`", "before layer `three`"],
        ),
        (
            three(&["a"], &["a"], &["a"]),
            vec!["`one`", "`three`", "both stash `a`"],
        ),
        (
            three(&["a"], &["a", "a"], &[]),
            vec!["`two`", "`a`", "twice"],
        ),
        (
            layer(Sequential::new(), "one").stashes("a").pops("a"),
            vec!["`one`", "`a`", "before"],
        ),
    ] {
        let error = refused(model);
        for word in words {
            assert!(error.contains(word), "no {word} in: {error}");
        }
    }
}

#[test]
fn a_layer_must_do_with_its_skips_what_it_declares() {
    let model = |f: fn(&Context, &Tensor) -> anyhow::Result<()>, name: &'static str| {
        let both = |model: Sequential| {
            with_linear(model, name, move |x, _, ctx| {
                f(ctx, &x)?;
                Ok(x)
            })
        };
        if name == "stashing" {
            plain_linear(both(Sequential::new()).stashes("a"), "end").pops("a")
        } else {
            let start = with_linear(Sequential::new(), "start", |x, _, ctx| {
                ctx.stash("a", &x)?;
                Ok(x)
            });
            both(start.stashes("a")).pops("a")
        }
    };
    for (model, words) in [
        (
            model(|_, _| Ok(()), "stashing"),
            "declares that it stashes `a`",
        ),
        (
            model(
                |ctx, x| ctx.stash("a", x).and(ctx.stash("a", x)),
                "stashing",
            ),
            "stashes `a` twice",
        ),
        (
            model(|ctx, x| ctx.stash("b", x), "stashing"),
            "stashes `b`, which the model does not declare",
        ),
        (
            model(|ctx, _| ctx.pop("a").and(ctx.pop("a")).map(drop), "popping"),
            "pops `a` twice",
        ),
        (
            model(|ctx, _| ctx.pop("b").map(drop), "popping"),
            "pops `b`, which the model does not declare",
        ),
    ] {
        let name = if words.contains("pops") {
            "popping"
        } else {
            "stashing"
        };
        for devices in 1..=2 {
            let mut pipe = Pipeline::new(model.clone(), &cpus(devices), 2).unwrap();
            let (x, y) = batch8();
            let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(words), "no {words} in: {error}");
            assert!(error.contains(&format!("layer `{name}`")), "{error}");
        }
    }
}

/// Three layers pop one value, and all layers use their inputs several times, so that the order of the sums
/// shows.
fn popped_three_times() -> Sequential {
    let model = plain_linear(Sequential::new(), "in");
    let model = with_linear(model, "stash", |x, linear, ctx| {
        let x = x.apply(linear).tanh() + x * 0.3;
        ctx.stash("a", &x)?;
        Ok(x)
    });
    let twice = |x: Tensor, linear: &nn::Linear, ctx: &Context| {
        let a = popped(ctx, "a")?;
        Ok(x * &a + a.apply(linear).sigmoid() + a.cos() * 0.7)
    };
    let residual = |x: Tensor, linear: &nn::Linear, _: &Context| {
        Ok(x.apply(linear).tanh() + x.sin() + x * 0.1)
    };
    let model = with_linear(model.stashes("a"), "residual", residual);
    let model = with_linear(model, "pop1", twice).pops("a");
    let model = with_linear(model, "pop2", twice).pops("a");
    let model = with_linear(model, "residual2", residual);
    with_linear(model, "pop3", twice).pops("a")
}

#[test]
fn gradients_of_several_pops_are_added_in_one_order_wherever_the_cuts_are() {
    same_everywhere(&popped_three_times(), &batch8().0, None);
}

#[test]
fn absent_values_stay_absent_for_each_micro_batch_alike() {
    let model = with_linear(Sequential::new(), "stash", |x, linear, ctx| {
        let x = x.apply(linear);
        ctx.stash("none", None)?;
        ctx.stash("some", (ctx.micro().index() % 2 == 1).then_some(&x))?;
        Ok(x)
    });
    let model = plain_linear(model.stashes("none").stashes("some"), "between");
    let model = with_linear(model, "early", |x, _, ctx| {
        anyhow::ensure!(ctx.pop("none")?.is_none());
        Ok(x)
    });
    let model = plain_linear(model.pops("none"), "after");
    let model = with_linear(model, "late", |x, _, ctx| {
        anyhow::ensure!(ctx.pop("none")?.is_none());
        let some = ctx.pop("some")?;
        anyhow::ensure!(some.is_some() == (ctx.micro().index() % 2 == 1));
        Ok(some.map_or_else(|| x.shallow_clone(), |some| &x + some))
    });
    let model = model.pops("none").pops("some");
    same_everywhere(&model, &batch8().0, None);
}

/// Tensors of every kind: with gradients, and others.
fn assorted(x: &Tensor) -> Vec<(&'static str, Tensor)> {
    vec![
        ("integers", x.argmax(1, false)),
        ("booleans", x.gt(0.1)),
        ("number", x.mean(Kind::Float) + 1.0),
        ("empty", x.narrow(1, 0, 0)),
        ("transposed", x.transpose(0, 1)),
        (
            "expanded",
            x.mean_dim(1_i64, true, Kind::Float).expand([-1, 8], false),
        ),
        ("strided", x.slice(1, 0, 8, 2)),
        ("double", x.to_kind(Kind::Double)),
    ]
}

/// Combines the tensors of [`assorted`].
fn mixed(x: &Tensor, parts: &[Tensor]) -> anyhow::Result<Tensor> {
    let [
        integers,
        booleans,
        number,
        empty,
        transposed,
        expanded,
        strided,
        double,
    ] = parts
    else {
        anyhow::bail!("{} values", parts.len());
    };
    anyhow::ensure!(integers.kind() == Kind::Int64 && booleans.kind() == Kind::Bool);
    anyhow::ensure!(number.dim() == 0 && empty.size()[1] == 0 && !transposed.is_contiguous());
    anyhow::ensure!(expanded.stride()[1] == 0 && strided.stride() == [8, 2]);
    let sum = x * number
        + integers.to_kind(Kind::Float).unsqueeze(1) * 0.1
        + expanded
        + Tensor::cat(&[strided, strided, empty], 1)
        + double.to_kind(Kind::Float).sin();
    Ok(sum.where_self(booleans, &transposed.tr()))
}

#[test]
fn tensors_of_every_kind_skip_layers() {
    let names: Vec<_> = assorted(&Tensor::zeros([2, 8], FLOAT))
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    let mut model = with_linear(
        plain_linear(Sequential::new(), "in"),
        "stash",
        |x, linear, ctx| {
            let x = x.apply(linear);
            for (name, tensor) in assorted(&x) {
                ctx.stash(name, &tensor)?;
            }
            Ok(x)
        },
    );
    for name in &names {
        model = model.stashes(*name);
    }
    for pop in ["pop1", "pop2"] {
        model = plain_linear(model, &format!("before {pop}"));
        let own = names.clone();
        model = with_linear(model, pop, move |x, linear, ctx| {
            let parts = own.iter().map(|name| popped(ctx, name));
            mixed(&x.apply(linear), &parts.collect::<Result<Vec<_>, _>>()?)
        });
        for name in &names {
            model = model.pops(*name);
        }
    }
    same_everywhere(&model, &batch8().0, None);
}

#[test]
fn tensors_of_every_kind_cross_borders() {
    let apart = Sequential::new().layer("apart", |path| {
        let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
        Closure(move |inputs: Values, _: &Context| {
            let x = inputs.into_one()?.apply(&linear);
            let mut all = Values::from(&x);
            all.push(None);
            assorted(&x)
                .into_iter()
                .for_each(|(_, tensor)| all.push(Some(tensor)));
            Ok(all)
        })
    });
    let mut model = apart;
    for number in 0..3 {
        model = model.layer(format!("through{number}"), |path| {
            let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
            Closure(move |inputs: Values, _: &Context| {
                let mut all: Vec<_> = inputs.into_iter().collect();
                all[0] = all[0].as_ref().map(|x| x.apply(&linear).tanh());
                Ok(all.into_iter().collect())
            })
        });
    }
    let model = model.layer("together", |path| {
        let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
        Closure(move |inputs: Values, _: &Context| {
            let mut all: Vec<_> = inputs.into_iter().collect();
            anyhow::ensure!(all.remove(1).is_none(), "the absent value");
            let all: Vec<Tensor> = all.into_iter().flatten().collect();
            Ok(mixed(&all[0].apply(&linear), &all[1..])?.into())
        })
    });
    same_everywhere(&plain_linear(model, "end"), &batch8().0, None);
}
