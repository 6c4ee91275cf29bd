//! The library's trainer, without the command.

mod evaluations;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use gpipe::checkpoint::Checkpoint;
use gpipe::data::{Batches, Dataset, Made, Source};
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::train::metrics::StepMetrics;
use gpipe::train::{
    Ended, Feed, Hook, LogLines, NoRun, Outcome, Remedy, Resume, ResumeOptions, Stop, TrainError,
    Trainer, TrainerBuilder,
};
use gpipe::{
    Optimizer, Pipeline, Sequential, Values,
    optim::{AdamW, LrKind, LrSchedule},
};
use serde_json::{Value, json};

type Pair = (Tensor, Tensor);

fn pipe(devices: usize) -> Pipeline {
    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    let model = Sequential::new()
        .layer("in", move |p| linear(p, 4, 8))
        .layers("hidden", 2, move |p, _| {
            nn::seq().add_fn(Tensor::tanh).add(linear(p, 8, 8))
        })
        .layer("out", move |p| linear(p, 8, 1));
    Pipeline::builder(model)
        .devices(&vec![Device::Cpu; devices])
        .micro_batches(2)
        .threads_per_stage(1)
        .build()
        .unwrap()
}

fn optimizer() -> Optimizer {
    Optimizer::new(AdamW::default())
}

/// Thirty items in batches of six.
fn data() -> Batches<impl Source, Pair> {
    let item = |item: usize| {
        let x = Tensor::arange(4, (Kind::Float, Device::Cpu)) + item as f64;
        let x = (x * 0.3).sin();
        let y = x.sum_dim_intlist([0].as_slice(), true, Kind::Float);
        Ok((x, y))
    };
    Dataset::new(Made::new(30, item))
        .shuffle(usize::MAX, 5)
        .batch(6)
}

fn loss(out: &Tensor, y: &Tensor) -> Tensor {
    out.mse_loss(y, Reduction::Mean)
}

/// Twelve steps, every fourth of which is saved.
fn twelve<'a>(
    pipe: &'a mut Pipeline,
    optimizer: &'a mut Optimizer,
    run: &Path,
) -> TrainerBuilder<'a> {
    Trainer::builder(pipe, optimizer, data().endless(), loss)
        .steps(12)
        .lr(LrSchedule::new(LrKind::Cosine, 1e-2, Some(12)).unwrap())
        .clip(1.0)
        .checkpoint_every(4)
        .folder(run)
}

fn run(builder: TrainerBuilder<'_>) -> Result<Outcome, TrainError> {
    let outcome = builder.build()?.run()?;
    assert!(outcome.files.is_ok(), "{outcome:?}");
    Ok(outcome)
}

fn losses(outcome: &Outcome) -> Vec<u64> {
    let bits = |record: &StepMetrics| record.loss.to_bits();
    outcome.records.iter().map(bits).collect()
}

fn weights(run: &Path) -> Vec<(String, Vec<f32>)> {
    let newest = Checkpoint::newest(run.join("checkpoints")).unwrap();
    let weights = newest.weights().unwrap().into_iter();
    let numbers = |tensor: Tensor| Vec::try_from(&tensor.reshape([-1])).unwrap();
    weights
        .map(|(name, tensor)| (name, numbers(tensor)))
        .collect()
}

/// Records the trainer's calls as text; requests a stop after a step.
#[derive(Clone, Default)]
struct Told {
    lines: Rc<RefCell<Vec<String>>>,
    stop: Option<(u64, Stop)>,
}

impl Told {
    fn push(&self, line: String) {
        self.lines.borrow_mut().push(line);
    }
}

impl Hook for Told {
    fn begin(&mut self, done: usize) {
        self.push(format!("begin {done}"));
    }

    fn step(&mut self, metrics: &StepMetrics) {
        if let Some((step, stop)) = &self.stop
            && metrics.step == *step
        {
            stop.stop();
        }
    }

    fn checkpoint(&mut self, step: u64) {
        self.push(format!("checkpoint {step}"));
    }

    fn note(&mut self, note: &str) {
        self.push(format!("note {note}"));
    }

    fn warning(&mut self, warning: &str) {
        self.push(format!("warning {warning}"));
    }

    fn end(&mut self, ended: Ended) {
        self.push(format!("{ended:?}"));
    }

    fn held_out(&mut self, _: Option<usize>) {
        self.push("held out".to_owned());
    }
}

#[test]
fn a_run_that_is_stopped_resumes_over_another_cut_to_the_same_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let (whole, part) = (
        temporary.path().join("whole"),
        temporary.path().join("part"),
    );
    let (mut pipes, mut optimizers) = ([pipe(1), pipe(2), pipe(3)], [(); 3].map(|()| optimizer()));
    let [one, two, three] = &mut pipes;
    let [first, second, third] = &mut optimizers;
    let undisturbed = run(twelve(one, first, &whole)).unwrap();

    let stop = Stop::new();
    let told = Told {
        stop: Some((6, stop.clone())),
        ..Told::default()
    };
    let config = "mine = true\n";
    let builder = twelve(two, second, &part)
        .hook(told.clone())
        .stop(stop)
        .config(config);
    let outcome = run(builder.part("mine", json!([1, 2]))).unwrap();
    assert_eq!(outcome.ended, Ended::Stopped { step: 6 });
    // The lines of a stopped run must differ from those of a completed one.
    assert!(outcome.to_string().contains("stopped after step 6"));
    assert!(outcome.comparison.is_none());
    let lines = [
        "begin 0",
        "checkpoint 4",
        "Stopped { step: 6 }",
        "checkpoint 6",
    ];
    assert_eq!(*told.lines.borrow(), lines);

    let resume = Resume::open(&part, &ResumeOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(resume.config().1, config);
    let saved = resume.checkpoint().unwrap().extras();
    assert_eq!((saved.step, saved.config.as_str()), (6, config));
    assert_eq!(saved.get("mine"), Some(&json!([1, 2])));
    drop(resume);

    let told = Told::default();
    let builder = twelve(three, third, &part).resume(true).hook(told.clone());
    let outcome = run(builder.held_out(data())).unwrap();
    assert_eq!(losses(&outcome), losses(&undisturbed));
    assert_eq!(weights(&part), weights(&whole));
    assert!(outcome.held_out_loss.unwrap().is_finite());
    assert!(outcome.comparison.unwrap().text(80).contains("measured"));
    let lines = told.lines.borrow();
    assert!(
        lines[0].starts_with("note goes on after step 6 from "),
        "{lines:?}"
    );
    let rest = [
        "begin 6",
        "checkpoint 8",
        "AllDone",
        "checkpoint 12",
        "held out",
    ];
    assert_eq!(lines[1..], rest);
    // The existing configuration stays if none is given.
    let kept = std::fs::read_to_string(part.join("config.toml")).unwrap();
    assert_eq!(kept, config);
}

/// Ones, and a count of them.
struct Ones(i64);

impl Feed for Ones {
    fn next_batch(&mut self) -> Option<anyhow::Result<(Values, Values)>> {
        self.0 += 1;
        let ones = |size: [i64; 2]| Tensor::ones(size, (Kind::Float, Device::Cpu)).into();
        Some(Ok((ones([4, 4]), ones([4, 1]))))
    }

    fn state(&self) -> Value {
        json!(self.0)
    }
}

#[test]
fn a_function_gives_batches_from_where_they_stood() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("run");
    for (steps, wanted) in [(2, 0), (5, 2)] {
        let (mut pipe, mut optimizer) = (pipe(1), optimizer());
        let begun = |from: Option<&Value>| {
            let from = from.and_then(Value::as_i64).unwrap_or_default();
            assert_eq!(from, wanted);
            Ok(Ones(from))
        };
        let builder = Trainer::builder(&mut pipe, &mut optimizer, begun, loss);
        let builder = builder.steps(steps).folder(&folder).resume(steps > 2);
        assert_eq!(run(builder).unwrap().steps(), steps as u64);
    }
}

#[test]
fn without_a_number_of_steps_it_trains_to_the_end_of_the_data() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut pipe, mut optimizer) = (pipe(2), optimizer());
    let mut log = Vec::new();
    let builder = Trainer::builder(&mut pipe, &mut optimizer, data().epochs(2), loss)
        .hook(LogLines::new(&mut log, 4))
        .folder(temporary.path().join("run"));
    let outcome = run(builder).unwrap();
    assert_eq!((outcome.ended, outcome.steps()), (Ended::AllDone, 10));
    let log = String::from_utf8(log).unwrap();
    let steps: Vec<&str> = log.lines().map(|line| &line[..10]).collect();
    assert_eq!(steps, ["step     1", "step     4", "step     8"]);
}

/// Regression test: it was silent, as if it had trained.
#[test]
fn a_run_whose_steps_are_done_says_so_when_it_is_resumed() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("run");
    let told = Told::default();
    for again in [false, true] {
        let (mut pipe, mut optimizer) = (pipe(1), optimizer());
        let builder = twelve(&mut pipe, &mut optimizer, &folder);
        run(builder.resume(again).hook(told.clone())).unwrap();
    }
    let lines = told.lines.borrow();
    let said = "note all 12 steps are done: nothing is left to train";
    assert_eq!(
        lines.iter().filter(|line| *line == said).count(),
        1,
        "{lines:?}"
    );
}

#[test]
fn wrong_use_is_told_before_anything_is_written() {
    let temporary = tempfile::tempdir().unwrap();
    let place = |name: &str| temporary.path().join(name);
    let (mut pipe, mut optimizer) = (pipe(1), optimizer());
    run(twelve(&mut pipe, &mut optimizer, &place("run"))).unwrap();
    std::fs::write(place("file"), "").unwrap();
    std::fs::create_dir(place("other")).unwrap();
    let mut wrong = |change: &dyn Fn(TrainerBuilder<'_>) -> TrainerBuilder<'_>| {
        let builder = change(twelve(&mut pipe, &mut optimizer, &place("new")));
        let error = builder.build().unwrap_err();
        assert!(error.is_wrong_use(), "{error}");
        error
    };
    let error = wrong(&|new| new.folder(place("run")));
    assert!(matches!(error, TrainError::Occupied { .. }), "{error}");
    let error = wrong(&|new| new.folder(place("file")));
    assert!(matches!(error, TrainError::NewFolder { .. }), "{error}");
    for (name, wanted) in [
        ("nowhere", NoRun::Missing),
        ("file", NoRun::File),
        ("other", NoRun::Foreign),
    ] {
        let error = wrong(&|new| new.folder(place(name)).resume(true));
        let TrainError::NoRun { why, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(why, wanted);
    }
    for error in [
        wrong(&|new| new.steps(0)),
        wrong(&|new| new.report("last.pdf")),
    ] {
        assert!(matches!(error, TrainError::Settings(_)), "{error}");
    }
    assert!(!place("new").exists());
}

#[test]
fn a_run_that_diverges_says_from_where_it_can_resume() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("run");
    let (mut pipe, mut optimizer) = (pipe(2), optimizer());
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let diverging = move |out: &Tensor, y: &Tensor| {
        let calls = seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        // Two micro-batches per step.
        loss(out, y) * if calls < 2 * 7 { 1.0 } else { f64::NAN }
    };
    let error = Trainer::builder(&mut pipe, &mut optimizer, data().endless(), diverging)
        .steps(12)
        .checkpoint_every(3)
        .folder(&folder)
        .build()
        .and_then(Trainer::run)
        .unwrap_err();
    assert!(!error.is_wrong_use());
    let TrainError::Diverged { step, remedy, .. } = error else {
        panic!("{error}");
    };
    let whole = Some(6);
    assert_eq!((step, *remedy), (8, Remedy::SmallerRate { folder, whole }));
}
