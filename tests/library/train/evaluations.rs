//! Evaluations during training.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gpipe::data::{Batches, Dataset, Made, Source};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::train::metrics::read;
use gpipe::train::{
    BEST, Ended, Evaluation, Hook, Outcome, RunFolder, Stop, TrainError, Trainer, TrainerBuilder,
};
use gpipe::{Optimizer, Pipeline, Sequential};

use super::{Pair, data, loss, optimizer, weights};

/// A model that an evaluation could disturb: it draws random numbers, and has batch statistics.
fn pipe(devices: usize) -> Pipeline {
    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    let model = Sequential::new()
        .layer("in", move |p| linear(p, 4, 8))
        .layer("norm", |p| {
            nn::batch_norm1d(p, 8, nn::BatchNormConfig::default())
        })
        .layer("drop", |_| nn::func_t(|x, train| x.dropout(0.3, train)))
        .layer("out", move |p| linear(p, 8, 1));
    Pipeline::builder(model)
        .devices(&vec![Device::Cpu; devices])
        .micro_batches(2)
        .threads_per_stage(1)
        .seed(4)
        .build()
        .unwrap()
}

/// Ten items in batches of four: the last one has two.
fn held_out(of: f64) -> Batches<impl Source, Pair> {
    let item = move |item: usize| {
        let x = Tensor::arange(4, (Kind::Float, Device::Cpu)) - item as f64;
        Ok((x.cos(), Tensor::from_slice(&[of as f32])))
    };
    Dataset::new(Made::new(10, item)).batch(4)
}

fn twelve<'a>(
    pipe: &'a mut Pipeline,
    optimizer: &'a mut Optimizer,
    run: &Path,
) -> TrainerBuilder<'a> {
    Trainer::builder(pipe, optimizer, data().endless(), loss)
        .steps(12)
        .checkpoint_every(4)
        .folder(run)
}

fn trained(
    run: &Path,
    devices: usize,
    change: impl FnOnce(TrainerBuilder<'_>) -> TrainerBuilder<'_>,
) -> Outcome {
    let (mut pipe, mut optimizer) = (pipe(devices), optimizer());
    let outcome = change(twelve(&mut pipe, &mut optimizer, run))
        .build()
        .unwrap()
        .run()
        .unwrap();
    assert!(outcome.files.is_ok(), "{outcome:?}");
    outcome
}

/// Bits of the metrics: the losses, and the held-out losses if present.
fn lines(run: &Path) -> Vec<(u64, Option<u64>)> {
    let lines = read(&run.join("metrics.jsonl")).unwrap().into_iter();
    lines
        .map(|line| (line.loss.to_bits(), line.held_out_loss.map(f64::to_bits)))
        .collect()
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn evaluations_change_no_bit_of_training_over_any_cut() {
    let place = Place::new();
    let plain = place.run("plain");
    trained(&plain, 1, |new| new);
    for devices in 1..=3 {
        let own = place.run(&devices.to_string());
        let outcome = trained(&own, devices, |new| new.evaluate_every(1, || held_out(1.0)));
        assert_eq!(weights(&own), weights(&plain), "{devices} devices");
        let [own, plain] = [lines(&own), lines(&plain)];
        assert!(own.iter().zip(&plain).all(|(own, plain)| own.0 == plain.0));
        assert!(own.iter().all(|(_, held_out)| held_out.is_some()));
        let last = own.last().unwrap().1.map(f64::from_bits);
        assert_eq!(outcome.held_out_loss, last);
        let summary = outcome.summary();
        assert_eq!(summary.best_step, outcome.best.map(|best| best.step));
        assert!(summary.best_held_out_loss <= last);
    }
}

#[test]
fn they_are_of_the_weights_after_their_step_and_after_the_last_one() {
    let place = Place::new();
    let (every, once) = (place.run("every"), place.run("once"));
    trained(&every, 2, |new| new.evaluate_every(5, || held_out(1.0)));
    let evaluated: Vec<usize> = (1..)
        .zip(lines(&every))
        .filter(|(_, line)| line.1.is_some())
        .map(|(step, _)| step)
        .collect();
    assert_eq!(evaluated, [5, 10, 12]);
    let five = trained(&once, 2, |new| new.steps(5).held_out(held_out(1.0)));
    assert_eq!(five.held_out_loss.map(f64::to_bits), lines(&every)[4].1);
}

/// Stops where requested, and records the reported evaluations.
#[derive(Clone, Default)]
struct Told {
    evaluated: Rc<RefCell<Vec<(u64, bool)>>>,
    /// During the evaluation after a step, or after the step itself.
    stop: Option<(bool, u64, Stop)>,
}

impl Told {
    fn look(&self, within: bool, step: u64) {
        if let Some((own, at, stop)) = &self.stop
            && (*own, *at) == (within, step)
        {
            stop.stop();
        }
    }
}

impl Hook for Told {
    fn step(&mut self, metrics: &gpipe::train::metrics::StepMetrics) {
        self.look(false, metrics.step);
    }

    fn evaluate(&mut self, step: u64, batches: Option<usize>) {
        assert_eq!(batches, None);
        self.look(true, step);
    }

    fn evaluated(&mut self, Evaluation { step, .. }: Evaluation, is_best: bool) {
        self.evaluated.borrow_mut().push((step, is_best));
    }
}

#[test]
fn a_run_that_is_stopped_resumes_with_the_same_best_one_also_from_within_an_evaluation() {
    let place = Place::new();
    let whole = place.run("whole");
    let told = Told::default();
    let undisturbed = trained(&whole, 2, |new| {
        new.hook(told.clone()).evaluate_every(3, || held_out(1.0))
    });
    assert_eq!(told.evaluated.borrow().len(), 4);
    for (within, step) in [(false, 5), (false, 6), (true, 6), (true, 3)] {
        let part = place.run(&format!("{within}{step}"));
        let stop = Stop::new();
        let told = Told {
            stop: Some((within, step, stop.clone())),
            ..Told::default()
        };
        let (mut pipe_, mut optimizer_) = (pipe(2), optimizer());
        let first = twelve(&mut pipe_, &mut optimizer_, &part)
            .hook(told)
            .stop(stop);
        let first = first
            .evaluate_every(3, || held_out(1.0))
            .build()
            .unwrap()
            .run()
            .unwrap();
        assert_eq!(
            first.ended,
            Ended::Stopped {
                step: step as usize
            }
        );
        let rest = trained(&part, 3, |new| {
            new.resume(true).evaluate_every(3, || held_out(1.0))
        });
        assert_eq!(lines(&part), lines(&whole), "{within} {step}");
        assert_eq!(rest.best, undisturbed.best);
        assert_eq!(weights(&part), weights(&whole));
    }
    // Unchanged if nothing is evaluated any more.
    let on = trained(&whole, 2, |new| new.resume(true).steps(14));
    assert_eq!(on.best, undisturbed.best);
    let more = trained(&whole, 2, |new| {
        let new = new.resume(true).steps(15);
        new.evaluate_every(3, || held_out(1.0))
    });
    assert!(more.best.unwrap().loss <= undisturbed.best.unwrap().loss);
}

/// Evaluations with growing losses: the held-out data moves away from all outputs each time.
fn ever_worse<'a>(new: TrainerBuilder<'a>, begun: &Rc<Cell<u32>>) -> TrainerBuilder<'a> {
    let begun = Rc::clone(begun);
    new.evaluate_every(2, move || {
        begun.set(begun.get() + 1);
        held_out(f64::from(begun.get()) * 100.0)
    })
}

#[test]
fn the_best_checkpoint_outlives_newer_ones_and_is_named() {
    let place = Place::new();
    let run = place.run("run");
    let begun = Rc::new(Cell::new(0));
    let outcome = trained(&run, 2, |new| ever_worse(new.checkpoint_keep(1), &begun));
    assert_eq!(outcome.ended, Ended::AllDone);
    let best = outcome.best.unwrap();
    assert_eq!((best.step, begun.get()), (2, 6));
    let folder = RunFolder::open(&run).unwrap();
    let kept = folder.best_checkpoint().unwrap().unwrap();
    assert_eq!(kept.extras().step, 2);
    assert!(run.join(BEST).symlink_metadata().unwrap().is_symlink());
    let all = gpipe::checkpoint::Checkpoint::list(folder.checkpoints()).unwrap();
    assert_eq!(all.iter().map(|one| one.step).collect::<Vec<_>>(), [2, 12]);
    // Another folder that resumes the run has it, too.
    let fork = place.run("fork");
    let resume = gpipe::train::Resume::open(
        &run,
        &gpipe::train::ResumeOptions::default().fork(Some(fork.clone())),
        &mut |_| (),
    );
    let (mut pipe, mut optimizer) = (pipe(2), optimizer());
    let builder = twelve(&mut pipe, &mut optimizer, &fork).steps(14);
    let resumed = ever_worse(builder.resume_opened(resume.unwrap()), &begun);
    assert_eq!(resumed.build().unwrap().run().unwrap().best, Some(best));
    let kept = RunFolder::open(&fork).unwrap().best_checkpoint().unwrap();
    assert_eq!(kept.unwrap().extras().step, 2);
}

#[test]
fn a_run_ends_early_where_none_is_better_and_waits_as_long_when_it_was_stopped_between() {
    let place = Place::new();
    let (whole, part) = (place.run("whole"), place.run("part"));
    let begun = Rc::new(Cell::new(0));
    let outcome = trained(&whole, 2, |new| ever_worse(new.early_stopping(3), &begun));
    assert_eq!(outcome.ended, Ended::EarlyStopped { step: 8 });
    assert!(outcome.to_string().contains("early after step 8"));
    assert!(outcome.summary().early_stopped);
    assert_eq!((outcome.steps(), outcome.best.unwrap().step), (8, 2));

    begun.set(0);
    let stop = Stop::new();
    let told = Told {
        stop: Some((false, 5, stop.clone())),
        ..Told::default()
    };
    trained(&part, 2, |new| {
        ever_worse(new.early_stopping(3).hook(told).stop(stop), &begun)
    });
    let rest = trained(&part, 1, |new| {
        ever_worse(new.early_stopping(3).resume(true), &begun)
    });
    assert_eq!(rest.ended, outcome.ended);
    assert_eq!(lines(&part), lines(&whole));
    // Resuming does not continue it either, unless the patience is increased.
    let again = trained(&part, 1, |new| {
        ever_worse(new.early_stopping(3).resume(true), &begun)
    });
    assert_eq!(again.ended, outcome.ended);
    let on = trained(&part, 1, |new| {
        ever_worse(new.early_stopping(9).resume(true), &begun)
    });
    assert_eq!(on.ended, Ended::AllDone);
}

#[test]
fn what_does_not_fit_together_is_told() {
    let place = Place::new();
    let (mut pipe, mut optimizer) = (pipe(1), optimizer());
    let mut wrong = |change: &dyn Fn(TrainerBuilder<'_>) -> TrainerBuilder<'_>| {
        let error = change(twelve(&mut pipe, &mut optimizer, &place.run("new"))).build();
        assert!(matches!(&error, Err(TrainError::Settings(_))), "{error:?}");
    };
    wrong(&|new| new.evaluate_every(0, || held_out(1.0)));
    wrong(&|new| new.early_stopping(2));
    wrong(&|new| new.evaluate_every(1, || held_out(1.0)).early_stopping(0));
    assert!(!place.run("new").exists());
}
