//! Models of small layers, run over every cut and schedule.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::{Tensor, nn};
use gpipe::{
    Error, Layer, Pipeline, PipelineBuilder, Sequential, Values, layers::Context,
    settings::Recompute,
};

use super::reference::{Named, optimizer};
use super::{assert_same_bits, batch, cpus, cross_entropy, gradients, snapshot};

/// A layer made of a closure.
pub(crate) struct Closure<F>(pub(crate) F);

impl<F> fmt::Debug for Closure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closure")
    }
}

impl<F: Fn(Values, &Context) -> anyhow::Result<Values>> Layer for Closure<F> {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        self.0(inputs, ctx)
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// A layer of one value: applies the closure to the value and the linear layer.
pub(crate) fn with_linear<F>(model: Sequential, name: &str, f: F) -> Sequential
where
    F: Fn(Tensor, &nn::Linear, &Context) -> anyhow::Result<Tensor> + Clone + Send + Sync + 'static,
{
    model.layer(name, move |path| {
        let linear = nn::linear(path, 8, 8, nn::LinearConfig::default());
        let f = f.clone();
        Closure(
            move |inputs: Values, ctx: &Context| Ok(f(inputs.into_one()?, &linear, ctx)?.into()),
        )
    })
}

/// A layer that only multiplies.
pub(crate) fn plain_linear(model: Sequential, name: &str) -> Sequential {
    with_linear(model, name, |x, linear, _| Ok(x.apply(linear)))
}

/// Every way to cut `layers` layers into `stages` stages.
fn balances(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let first = 1..=layers - (stages - 1);
    first
        .flat_map(|first| {
            let rest = balances(layers - first, stages - 1);
            rest.into_iter()
                .map(move |rest| [vec![first], rest].concat())
        })
        .collect()
}

/// Pipelines over all cuts into one to three stages, and over one cut for every schedule; with and without
/// recomputation.
pub(crate) fn everywhere(model: &Sequential, mut case: impl FnMut(PipelineBuilder, &str)) {
    let layers = model.len();
    let base = || {
        Pipeline::builder(model.clone())
            .micro_batches(3)
            .threads_per_stage(1)
            .seed(7)
    };
    for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
        for stages in 1..=3 {
            for balance in balances(layers, stages) {
                let schedule = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1][balance[0] % 2];
                let builder = base()
                    .devices(&cpus(stages))
                    .balance(&balance)
                    .schedule(schedule)
                    .recompute(recompute.clone());
                case(builder, &format!("{schedule} {balance:?} {recompute}"));
            }
        }
        for schedule in ScheduleKind::ALL {
            if schedule == ScheduleKind::ForwardOnly {
                continue;
            }
            let chunks = schedule.default_chunks();
            let shape = Shape::new(2, 3).with_chunks(chunks);
            schedule.generate(shape).unwrap();
            let even = balances(layers, 2 * chunks);
            let builder = base()
                .devices(&cpus(2))
                .balance(&even[even.len() / 2])
                .schedule(schedule)
                .recompute(recompute.clone());
            case(builder, &format!("{schedule} {recompute}"));
        }
    }
}

pub(crate) fn batch8() -> (Tensor, Tensor) {
    batch(&[10, 8], 10)
}

/// Loss bits of three steps, the first gradients, the final weights.
fn trained(pipe: &mut Pipeline, x: &Tensor) -> Result<(Vec<u64>, Named), Error> {
    let (_, y) = batch8();
    let mut optimizer = optimizer();
    let (mut losses, mut numbers) = (Vec::new(), Vec::new());
    for step in 0..3 {
        losses.push(
            pipe.train_step(x, &y, cross_entropy)?
                .read()?
                .loss
                .to_bits(),
        );
        if step == 0 {
            let named = gradients(pipe);
            numbers.extend(
                named
                    .into_iter()
                    .map(|(n, t)| (format!("{n}'s gradient"), t.copy())),
            );
        }
        optimizer.step(pipe)?;
    }
    numbers.extend(snapshot(pipe));
    Ok((losses, numbers))
}

/// Checks for equal bits everywhere, also with `expected` in the calling order of `model`.
pub(crate) fn same_everywhere(model: &Sequential, x: &Tensor, expected: Option<&Sequential>) {
    let first = Pipeline::builder(expected.unwrap_or(model).clone())
        .micro_batches(3)
        .threads_per_stage(1)
        .seed(7)
        .build();
    let mut first = first.unwrap();
    let output = first.forward(x).unwrap();
    let (losses, numbers) = trained(&mut first, x).unwrap();
    everywhere(model, |builder, what| {
        let mut pipe = builder.build().unwrap();
        assert!(pipe.forward(x).unwrap().equal(&output), "{what}: output");
        let (own, named) = trained(&mut pipe, x).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(own, losses, "{what}: losses");
        assert_same_bits(&named, &numbers, what);
    });
}

/// Pops a value that an earlier layer has stashed for certain.
pub(crate) fn popped(ctx: &Context, name: &str) -> anyhow::Result<Tensor> {
    ctx.pop(name)?
        .ok_or_else(|| anyhow::anyhow!("`{name}` is absent"))
}

/// Three layers, the second of which fails in its run number `time`.
pub(crate) fn failing_at(time: usize) -> Sequential {
    let runs = Arc::new(AtomicUsize::new(0));
    let model = plain_linear(Sequential::new(), "one");
    let model = with_linear(model, "two", move |x, linear, _| {
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        anyhow::ensure!(run != time, "as asked");
        Ok(x.apply(linear))
    });
    plain_linear(model, "three")
}
