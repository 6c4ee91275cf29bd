//! The same numbers with replicas of the pipeline (data parallelism), for one mini-batch, one number of
//! micro-batches and one tree of gradient sums: in one process, and over several.
//!
//! The reference is a pipeline of one stage with the same tree (defined in tests/numbers/tree). Of the
//! covering combinations, each model runs some, rotating over the models; `PARITY_EVERY=1` runs all.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::{Pipeline, settings::Recompute};

use crate::case::{Case, cases, with_kernels};
use crate::processes::ranks;
use crate::support::models::{self, Model};
use crate::support::reference::{Named, Numbers, pipeline_numbers};
use crate::support::{covering, cpus, single_threaded};
use crate::{ONEDNN, SAMPLES, compare, same};

const LEAVES: usize = 4;
const REPLICAS: [(usize, bool); 5] = [(1, false), (2, false), (2, true), (4, false), (4, true)];
const MICRO_BATCHES: std::ops::RangeInclusive<usize> = 1..=8;
const UPDATES: usize = 3;
/// One of so many combinations runs in one process, and over several.
const EVERY: usize = 5;
const EVERY_SPREAD: usize = 16;

/// A combination, and its number of replicas.
struct Replicated {
    case: Case,
    replicas: usize,
    /// Whether the optimizer's state is sharded over the replicas.
    sharded: bool,
}

impl std::fmt::Display for Replicated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sharded = if self.sharded { " sharded" } else { "" };
        write!(f, "{} d={}{sharded}", self.case, self.replicas)
    }
}

impl Replicated {
    fn exists(&self) -> bool {
        let (all, replicas) = (self.case.micro_batches, self.replicas);
        let share = |replica: usize| (replica + 1) * all / replicas - replica * all / replicas;
        let of_share = |micro_batches| {
            let recompute = Recompute::Never;
            let own = Case {
                micro_batches,
                recompute,
                ..self.case
            };
            own.exists()
        };
        (0..replicas)
            .map(share)
            .all(|own| own == 0 || of_share(own))
    }

    fn devices(&self) -> usize {
        self.case.devices * self.replicas
    }

    /// Each pair of its values on different axes.
    fn pairs(&self) -> Vec<String> {
        let mut axes = self.case.axes().to_vec();
        axes.push(format!("d={} sharded {}", self.replicas, self.sharded));
        covering::pairs(&axes)
    }

    fn builder(&self, model: &Model) -> gpipe::PipelineBuilder {
        let builder = self.case.builder(model).tree(LEAVES);
        builder
            .replicas(self.replicas)
            .shard_optimizer(self.sharded)
    }
}

/// All combinations of a model.
fn all(model: &Model) -> impl Iterator<Item = Replicated> + use<> {
    let layers = model.parts.len();
    let cases = MICRO_BATCHES.flat_map(move |micro_batches| {
        REPLICAS.into_iter().flat_map(move |(replicas, sharded)| {
            let cases = cases(layers, micro_batches).into_iter();
            cases.map(move |case| Replicated {
                case,
                replicas,
                sharded,
            })
        })
    });
    let fits = |own: &Replicated| own.case.devices <= 3 && own.exists();
    // Computed schedules equal others of another name.
    let fits = move |own: &Replicated| own.case.schedule != ScheduleKind::Auto && fits(own);
    cases.filter(fits)
}

/// A covering set of a model's combinations for `size` processes; takes every `stride`th, with an offset that
/// depends on the model.
fn chosen(number: usize, model: &Model, size: usize, stride: usize) -> Vec<Replicated> {
    let fits = |own: &Replicated| size == 1 || own.replicas > 1 && own.devices() >= size;
    let all: Vec<_> = all(model).filter(fits).collect();
    let named: Vec<_> = all
        .iter()
        .map(|own| (own.to_string(), own.pairs()))
        .collect();
    let names = covering::covering(&named);
    let all = all.into_iter();
    let chosen = all.filter(|own| names.contains(&own.to_string()));
    let stride = match std::env::var_os("PARITY_EVERY") {
        Some(_) => 1,
        None => stride,
    };
    let first = (number * 7 + size) % stride;
    chosen.skip(first).step_by(stride).collect()
}

/// Numbers of a single pipeline.
fn expected<'a>(
    known: &'a mut BTreeMap<usize, Numbers>,
    model: &Model,
    micro_batches: usize,
) -> &'a Numbers {
    known.entry(micro_batches).or_insert_with(|| {
        let one = Case::simplest(micro_batches).builder(model);
        let mut one = one.tree(LEAVES).build().unwrap();
        let (x, y) = (model.batch)(SAMPLES);
        pipeline_numbers(&mut one, model, (&x, &y), UPDATES).unwrap()
    })
}

fn numbers(mut pipe: Pipeline, model: &Model) -> Result<Numbers, String> {
    let (x, y) = (model.batch)(SAMPLES);
    let done = pipeline_numbers(&mut pipe, model, (&x, &y), UPDATES);
    done.map_err(|error| error.to_string())
}

/// Runs the combinations in one process.
fn suite(number: usize, model: &Model) {
    single_threaded();
    let (mut known, mut failures, mut count) = (BTreeMap::new(), Vec::new(), 0);
    for own in chosen(number, model, 1, EVERY) {
        count += 1;
        let builder = own.builder(model).devices(&cpus(own.devices()));
        let got = builder.build().map_err(|error| error.to_string());
        let got = got.and_then(|pipe| numbers(pipe, model));
        let expected = expected(&mut known, model, own.case.micro_batches);
        if let Err(why) = got.and_then(|got| compare(&got, expected, true)) {
            failures.push(format!("{}: {own}: {why}", model.name));
        }
    }
    println!("{}: {count} combinations", model.name);
    assert!(count > 5, "{count} combinations are too few");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Joins the numbers of all processes, whose copies of a stage must agree.
fn joined(all: Vec<Numbers>) -> Result<Numbers, String> {
    let mut all = all.into_iter();
    let mut joined = all.next().ok_or("no processes")?;
    let mut inputs: Vec<Tensor> = joined.input_gradient.take().into_iter().collect();
    for own in all {
        same(&own.output, &joined.output).map_err(|why| format!("outputs: one {why}"))?;
        if own.losses != joined.losses {
            return Err(format!("losses {:?} and {:?}", own.losses, joined.losses));
        }
        inputs.extend(own.input_gradient);
        add(&mut joined.gradients, own.gradients)?;
        add(&mut joined.after, own.after)?;
    }
    // Copies of the first stage are in the order of ranks.
    joined.input_gradient = (!inputs.is_empty()).then(|| Tensor::cat(&inputs, 0));
    Ok(joined)
}

fn add(all: &mut Named, more: Named) -> Result<(), String> {
    for (name, tensor) in more {
        match all.iter().find(|(own, _)| *own == name) {
            Some((_, own)) => {
                same(&tensor, own).map_err(|why| format!("copies of {name}: {why}"))?
            }
            None => all.push((name, tensor)),
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(())
}

/// Runs the combinations over several processes, which are threads here.
fn spread(number: usize, make: fn() -> Model) {
    single_threaded();
    let model = make();
    let (mut known, mut failures, mut count) = (BTreeMap::new(), Vec::new(), 0);
    for size in [2, 4] {
        let all = Arc::new(chosen(number, &model, size, EVERY_SPREAD));
        let own = Arc::clone(&all);
        let results = ranks(size, move |world, tell| {
            let model = make();
            let one = |own: &Replicated| {
                let devices = (own.devices() + world.rank()) / size;
                let builder = own.builder(&model).devices(&cpus(devices));
                let pipe = builder.world(world).build();
                pipe.map_err(|error| error.to_string())
                    .and_then(|pipe| numbers(pipe, &model))
            };
            own.iter().map(one).for_each(tell);
        });
        let mut results: Vec<_> = results.into_iter().map(Vec::into_iter).collect();
        for own in all.iter() {
            count += 1;
            let got: Result<Vec<Numbers>, String> =
                results.iter_mut().map(|own| own.next().unwrap()).collect();
            let expected = expected(&mut known, &model, own.case.micro_batches);
            let got = got.and_then(joined);
            if let Err(why) = got.and_then(|got| compare(&got, expected, true)) {
                failures.push(format!(
                    "{}: {own} over {size} processes: {why}",
                    model.name
                ));
            }
        }
    }
    println!("{}: {count} combinations over processes", model.name);
    assert!(count > 3, "{count} combinations are too few");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn mlp() {
    suite(0, &models::mlp());
    spread(0, models::mlp);
}

/// Buffers change with every micro-batch, and no replica sees all of them.
#[test]
fn buffers_that_a_forward_moves_are_refused() {
    single_threaded();
    for (model, layer) in [(models::convnet(), "norm1"), (models::moving(), "spectral")] {
        let own = Replicated {
            case: Case::simplest(4),
            replicas: 2,
            sharded: false,
        };
        let pipe = own.builder(&model).devices(&cpus(2)).build();
        let error = numbers(pipe.unwrap(), &model).unwrap_err();
        let named = format!("layer `{layer}");
        assert!(error.contains(&named), "{error}");
        assert!(error.contains("moves the buffer"), "{error}");
    }
}

#[test]
fn transformer() {
    suite(2, &models::transformer(0.0));
}

#[test]
fn transformer_with_dropout() {
    suite(3, &models::transformer(0.1));
    spread(2, || models::transformer(0.1));
}

#[test]
fn transformer_with_dropout_by_onednn() {
    with_kernels(ONEDNN, || {
        suite(2, &models::transformer(0.1));
        spread(3, || models::transformer(0.1));
    });
}

#[test]
fn unet_with_three_long_skips() {
    suite(4, &models::unet());
    spread(3, models::unet);
}

#[test]
fn weights_used_more_than_once() {
    suite(5, &models::recurrent());
    spread(4, models::recurrent);
}

#[test]
fn nodes_with_several_outputs() {
    suite(6, &models::multi_output());
    spread(5, models::multi_output);
}

#[test]
fn tied_embedding_and_head() {
    suite(7, &models::tied());
    spread(6, models::tied);
}
