//! For every schedule, cut, number of micro-batches and recomputation: outputs, losses, gradients and updates
//! equal, bit for bit, those of plain gradient accumulation over the same micro-batches.
//!
//! Dropout masks depend on (seed, step, layer, micro-batch), and the gradients of tied parameters are summed
//! place by place. Plain models do neither, so these are compared with a pipeline of one stage under GPipe's
//! schedule.
//!
//! Each combination makes one update; enough of them make ten to cover each pair of values (a schedule and a
//! number of micro-batches, say).
//!
//! `PARITY=zbv` runs the combinations whose name contains that text; `PARITY_EVERY=1` makes ten updates in
//! all of them (some ten minutes).
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

mod alignment;
mod buffers;
mod case;
mod operators;
mod processes;
mod replicas;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use case::{Case, cases, covering, with_kernels};
use gpipe::partitioner::ScheduleKind;
use gpipe::settings::Kernels;
use gpipe::tch::Tensor;
use support::models::{self, Model, Plainly};
use support::reference::{Named, Numbers, Reference, pipeline_numbers, sizes};
use support::*;

const MICRO_BATCHES: [usize; 7] = [1, 2, 3, 4, 7, 8, 16];
/// Micro-batches of unequal sizes, down to a single sample.
const SAMPLES: i64 = 19;
const UPDATES: usize = 10;
/// Failures that are reported; the rest is left out.
const TOLD: usize = 20;

/// Distinguishes an unselected model from a misspelt one.
const MODELS: [&str; 9] = [
    "mlp",
    "convnet",
    "transformer",
    "transformer with dropout",
    "unet",
    "recurrent",
    "multi-output",
    "tied",
    "moving buffers",
];

#[derive(Default)]
struct Counts {
    run: usize,
    updated: usize,
    refused: usize,
    /// Pairs of values covered by any combination, and by one with updates.
    pairs: BTreeSet<String>,
    updated_pairs: BTreeSet<String>,
}

impl Counts {
    fn count(&mut self, case: &Case, updated: bool) {
        self.run += 1;
        self.pairs.extend(case.pairs());
        if updated {
            self.updated += 1;
            self.updated_pairs.extend(case.pairs());
        }
    }
}

/// Runs every combination for `model`; fails at the end with the names of those that differ, or at once if
/// one hangs.
fn suite(model: Model) {
    suite_with(model, Kernels::Libtorch);
}

/// Likewise with these kernels, also in the reference.
fn suite_with(model: Model, kernels: Kernels) {
    let (say, hear) = mpsc::channel();
    let worker = thread::spawn(move || with_kernels(kernels, || run(&model, &say)));
    let mut last = String::new();
    loop {
        match hear.recv_timeout(Duration::from_mins(2)) {
            Ok(name) => last = name,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("a hang: no end of {last}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}

fn run(model: &Model, say: &Sender<String>) {
    single_threaded();
    let only = std::env::var("PARITY").unwrap_or_default();
    let every = std::env::var_os("PARITY_EVERY").is_some();
    let (x, y) = (model.batch)(SAMPLES);
    let (mut counts, mut failures) = (Counts::default(), Vec::new());
    let began = Instant::now();
    let layers = model.parts.len();
    let covering = covering(MICRO_BATCHES.iter().flat_map(|&m| cases(layers, m)));
    for micro_batches in MICRO_BATCHES {
        say.send(format!("{}: the reference", model.name)).unwrap();
        let expected = expected(model, &x, &y, micro_batches);
        for case in cases(layers, micro_batches) {
            let name = format!("{}: {case}", model.name);
            if !case.exists() {
                counts.refused += 1;
                continue;
            }
            if !name.contains(&only) {
                continue;
            }
            let updates = every || covering.contains(&case.to_string());
            let steps = if updates { UPDATES } else { 1 };
            counts.count(&case, steps > 1);
            say.send(name.clone()).unwrap();
            if let Err(why) = check(&case, model, (&x, &y), &expected, steps) {
                failures.push(format!("{name}: {why}"));
            }
            assert!(failures.len() < TOLD, "{}", failures.join("\n"));
        }
    }
    println!(
        "{}: {} combinations, {} of them over {UPDATES} updates; {} do not exist; {:.1} s",
        model.name,
        counts.run,
        counts.updated,
        counts.refused,
        began.elapsed().as_secs_f64()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let named = |kind: &ScheduleKind| kind.name().contains(&only);
    assert!(
        counts.run > 0
            || !ScheduleKind::ALL.iter().any(named) && MODELS.iter().any(|m| m.contains(&only)),
        "PARITY={only} fits no combination of {}",
        model.name
    );
    if only.is_empty() {
        let missed: Vec<_> = counts.pairs.difference(&counts.updated_pairs).collect();
        assert!(missed.is_empty(), "no updates with {missed:?}");
    }
}

/// Expected results of every combination with this many micro-batches.
fn expected(model: &Model, x: &Tensor, y: &Tensor, micro_batches: usize) -> Numbers {
    let mut one = Case::simplest(micro_batches).pipeline(model).unwrap();
    let initial = snapshot(&mut one);
    if model.plainly == Plainly::Not {
        return pipeline_numbers(&mut one, model, (x, y), UPDATES).unwrap();
    }
    let sizes = sizes(SAMPLES, micro_batches);
    let plain = Reference::new(model, &initial).numbers(x, y, &sizes, UPDATES);
    assert_alive(&plain, model);
    if model.whole {
        let whole = Reference::new(model, &initial);
        let x = support::reference::asking(x);
        let loss = whole.accumulate(&x, y, &[SAMPLES]);
        let what = format!(
            "{} over {micro_batches} and over the whole batch",
            model.name
        );
        // Another order of summation: a few roundings of f32.
        let off = (loss - plain.losses[0]).abs() / loss.abs().max(1.0);
        assert!(off < 1e-6, "{what}: loss {loss}, {off:e} off");
        let output = gpipe::tch::no_grad(|| whole.forward(&x, false));
        assert!(
            plain.output.allclose(&output, 1e-4, 1e-6, false),
            "{what}: output"
        );
        assert_close(&plain.gradients, &whole.gradients(), &what);
        if let Some(gradient) = &plain.input_gradient {
            assert!(
                gradient.allclose(&x.grad(), 1e-4, 1e-6, false),
                "{what}: input"
            );
        }
    }
    if model.plainly == Plainly::Exactly {
        return plain;
    }
    let own = pipeline_numbers(&mut one, model, (x, y), UPDATES).unwrap();
    let what = format!("{} beside plain accumulation", model.name);
    assert!(
        (own.losses[0] - plain.losses[0]).abs() < 1e-6,
        "{what}: loss"
    );
    assert!(
        own.output.allclose(&plain.output, 1e-4, 1e-6, false),
        "{what}: output"
    );
    assert_close(&own.gradients, &plain.gradients, &what);
    own
}

/// Checks that no tensor is all zero or NaN: otherwise nothing would be compared.
fn assert_alive(numbers: &Numbers, model: &Model) {
    for (name, gradient) in &numbers.gradients {
        let most = gradient.abs().max().double_value(&[]);
        assert!(
            most > 0.0 && most.is_finite(),
            "{}: gradient of {name} is {most}",
            model.name
        );
    }
    let last = numbers.losses[UPDATES - 1];
    assert!(
        last < numbers.losses[0],
        "{}: {:?}",
        model.name,
        numbers.losses
    );
}

/// Runs one combination; `Err` names the difference or the failure.
fn check(
    case: &Case,
    model: &Model,
    batch: (&Tensor, &Tensor),
    expected: &Numbers,
    steps: usize,
) -> Result<(), String> {
    let run = || -> Result<Numbers, gpipe::Error> {
        let mut pipe = case.pipeline(model)?;
        pipeline_numbers(&mut pipe, model, batch, steps)
    };
    let got = catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| "panicked in the calling thread".to_owned())?
        .map_err(|error| error.to_string())?;
    compare(&got, expected, steps == UPDATES)
}

/// `Err` names the difference; `after`: compares the state after updates, too.
fn compare(got: &Numbers, expected: &Numbers, after: bool) -> Result<(), String> {
    for (step, (own, plain)) in got.losses.iter().zip(&expected.losses).enumerate() {
        if own.to_bits() != plain.to_bits() {
            return Err(format!("loss of step {step} is {own}, not {plain}"));
        }
    }
    same(&got.output, &expected.output).map_err(|why| format!("output {why}"))?;
    all_same(&got.gradients, &expected.gradients).map_err(|why| format!("gradient of {why}"))?;
    match (&got.input_gradient, &expected.input_gradient) {
        (None, None) => {}
        (Some(own), Some(plain)) => {
            same(own, plain).map_err(|why| format!("gradient of the input {why}"))?;
        }
        (own, _) => return Err(format!("input gradient: {}", own.is_some())),
    }
    if after {
        all_same(&got.after, &expected.after).map_err(|why| format!("after updates {why}"))?;
    }
    Ok(())
}

fn all_same(left: &Named, right: &Named) -> Result<(), String> {
    let names = |list: &Named| {
        list.iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    if names(left) != names(right) {
        return Err(format!("{:?}, not {:?}", names(left), names(right)));
    }
    let pairs = left.iter().zip(right);
    let different = pairs.filter_map(|((name, left), (_, right))| {
        same(left, right).err().map(|why| format!("{name} {why}"))
    });
    match different.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    }
}

fn same(left: &Tensor, right: &Tensor) -> Result<(), String> {
    if left.size() != right.size() {
        return Err(format!(
            "has shape {:?}, not {:?}",
            left.size(),
            right.size()
        ));
    }
    if left.equal(right) {
        return Ok(());
    }
    let most = (left - right).abs().max().double_value(&[]);
    Err(format!("differs by {most:e}"))
}

#[test]
fn mlp() {
    suite(models::mlp());
}

#[test]
fn convolutions_with_batch_norm() {
    suite(models::convnet());
}

/// All products and convolutions by oneDNN, however small.
const ONEDNN: Kernels = Kernels::OneDnn { from: 0 };

#[test]
fn convolutions_with_batch_norm_by_onednn() {
    suite_with(models::convnet(), ONEDNN);
}

#[test]
fn transformer_by_onednn() {
    suite_with(models::transformer(0.0), ONEDNN);
}

#[test]
fn weights_used_more_than_once_by_onednn() {
    suite_with(models::recurrent(), ONEDNN);
}

#[test]
fn transformer() {
    suite(models::transformer(0.0));
}

#[test]
fn transformer_with_dropout() {
    suite(models::transformer(0.1));
}

#[test]
fn unet_with_three_long_skips() {
    suite(models::unet());
}

#[test]
fn weights_used_more_than_once() {
    suite(models::recurrent());
}

#[test]
fn nodes_with_several_outputs() {
    suite(models::multi_output());
}

/// Regression test: a second run found its buffers as later micro-batches had left them, so spectral norm and
/// subtracted running means silently had wrong gradients.
#[test]
fn buffers_that_a_forward_reads_and_moves() {
    suite(models::moving());
}

#[test]
fn tied_embedding_and_head() {
    suite(models::tied());
}
