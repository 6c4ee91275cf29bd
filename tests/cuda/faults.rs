//! Injects failures into a step, one at a time: allocations, page-locked memory, copies. Each failure must be
//! an error that names its place, leak nothing, and allow a retry of the step.
//!
//! In the small model each operation fails in turn; in larger ones every `n`th ([`Case::stride`]), or each
//! one with `FAULTS_EVERY=1`, which takes minutes.

mod cases;

use std::collections::BTreeSet;

use gpipe::memory::of_device;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Cuda, Device, Tensor};
use gpipe::{Error, Optimizer, Pipeline};

use crate::harness::Test;
use crate::simulated::{counted, fail, fail_times, sim_page_locked};
use crate::support::{assert_same_bits, snapshot};
use cases::{Case, Subject};

const GPUS: [Device; 2] = [Device::Cuda(0), Device::Cuda(1)];
const ALLOCATION: &str = "allocation";
const PAGE_LOCKED: &str = "page-locked";
const COPY: &str = "copy";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("faults::of_a_plain_step", || in_turn(&cases::PLAIN)),
        ("faults::of_a_step_that_recomputes", || {
            in_turn(&cases::RECOMPUTE)
        }),
        ("faults::of_a_step_that_offloads", || {
            in_turn(&cases::OFFLOAD)
        }),
        ("faults::of_a_step_that_replays_graphs", || {
            in_turn(&cases::GRAPHS)
        }),
        ("faults::of_the_first_step", || from_anew(&cases::PLAIN, 0)),
        ("faults::of_a_first_step_that_offloads", || {
            from_anew(&cases::OFFLOAD, 0)
        }),
        ("faults::of_a_step_that_captures", || {
            from_anew(&cases::GRAPHS, 3)
        }),
        (
            "faults::of_a_transformer_that_offloads_and_recomputes",
            || in_turn(&cases::TRANSFORMER),
        ),
        ("faults::of_skips", || in_turn(&cases::SKIPS)),
        ("faults::of_buffers_that_only_the_device_may_undo", || {
            in_turn(&cases::BUFFERS)
        }),
        ("faults::of_tied_weights", || in_turn(&cases::TIED)),
        (
            "faults::an_update_that_was_stopped_is_finished_first",
            || {
                stopped(&cases::OFFLOAD);
            },
        ),
        ("faults::a_tied_weight_is_never_behind", || {
            stopped(&cases::TIED);
        }),
    ]
}

/// A pipeline, its optimizer, and their inputs.
struct Training {
    pipe: Pipeline,
    optimizer: Optimizer,
    subject: Subject,
    /// Whether all lasting allocations have been made.
    settled: bool,
}

/// Bytes in use on the devices, and page-locked bytes.
#[derive(Debug)]
struct Held {
    devices: Vec<u64>,
    page_locked: u64,
}

impl Held {
    fn fits(&self, other: &Self) -> bool {
        let mut pairs = self.devices.iter().zip(&other.devices);
        pairs.all(|(own, other)| own <= other) && self.page_locked <= other.page_locked
    }
}

/// Results of undisturbed steps.
struct Calm {
    losses: Vec<f64>,
    held: Held,
    weights: Vec<(String, Tensor)>,
}

/// Outcome of a step with an injected failure.
enum Outcome {
    /// The step did not need the failed operation: its loss.
    Passed(f64),
    Failed {
        why: String,
        retried: f64,
    },
}

impl Case {
    fn build(&self) -> Training {
        let subject = (self.subject)();
        let builder = Pipeline::builder((subject.model)())
            .devices(&GPUS)
            .schedule(ScheduleKind::OneFOneB)
            .micro_batches(2)
            .deterministic(true)
            .seed(3);
        Training {
            pipe: (self.configure)(builder).build().unwrap(),
            optimizer: (self.optimizer)(),
            subject,
            settled: false,
        }
    }

    /// Numbers of the operations that are to fail, out of `each`.
    fn numbers(&self, each: u64) -> impl Iterator<Item = u64> {
        let asked = std::env::var("FAULTS_EVERY").ok();
        let every = asked.map_or(self.stride, |every| every.parse().unwrap());
        (1..=each).step_by(usize::try_from(every).unwrap())
    }

    fn calm(&self, steps: usize) -> Calm {
        let mut training = self.build();
        Calm {
            losses: (0..steps).map(|_| training.step()).collect(),
            held: held(),
            weights: weights(&mut training.pipe),
        }
    }
}

impl Training {
    fn forward_and_back(&mut self) -> Result<f64, Error> {
        let Subject { x, y, loss, .. } = &self.subject;
        let report = self.pipe.train_step(x, y, *loss)?;
        Ok(report.read()?.loss)
    }

    fn step(&mut self) -> f64 {
        let loss = self.forward_and_back().unwrap();
        self.optimizer.step(&mut self.pipe).unwrap();
        loss
    }

    /// Checks that a failure holds no memory, except for lasting allocations (optimizer states, graphs).
    fn not_more_than(&self, before: &Held, why: &str) {
        let now = held();
        assert!(
            !self.settled || now.fits(before),
            "{now:?} after {before:?}: {why}"
        );
    }

    /// Runs a step in which one operation fails, and retries it.
    fn disturbed(&mut self, what: &str, number: u64) -> Outcome {
        let weights = parameters(&mut self.pipe);
        fail(what, number);
        let before = held();
        let loss = match self.forward_and_back() {
            Ok(loss) => loss,
            Err(error) => {
                fail(what, 0);
                let why = error.to_string();
                self.not_more_than(&before, &why);
                let retried = self.step();
                return Outcome::Failed { why, retried };
            }
        };
        let before = held();
        let updated = self.optimizer.step(&mut self.pipe);
        fail(what, 0);
        let Err(error) = updated else {
            return Outcome::Passed(loss);
        };
        let why = error.to_string();
        let seen = parameters(&mut self.pipe);
        self.optimizer.step(&mut self.pipe).unwrap();
        self.not_more_than(&before, &why);
        let all = parameters(&mut self.pipe);
        assert!(
            are_same(&seen, &weights) || are_same(&seen, &all),
            "some are updated and others not: {why}"
        );
        Outcome::Failed { why, retried: loss }
    }
}

/// Copies in host memory, where they are not counted.
fn parameters(pipe: &mut Pipeline) -> Vec<Tensor> {
    let all = pipe.parameters().unwrap().into_iter();
    all.map(|(_, value)| value.detach().to_device(Device::Cpu))
        .collect()
}

fn are_same(one: &[Tensor], other: &[Tensor]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.equal(other))
}

/// Weights in host memory, where they are not counted.
fn weights(pipe: &mut Pipeline) -> Vec<(String, Tensor)> {
    let all = snapshot(pipe).into_iter();
    all.map(|(name, value)| (name, value.to_device(Device::Cpu)))
        .collect()
}

fn held() -> Held {
    let of = |device: &Device| {
        let Device::Cuda(index) = device else {
            panic!("no GPU")
        };
        Cuda::synchronize(i64::try_from(*index).unwrap());
        of_device(*device).unwrap().current
    };
    Held {
        devices: GPUS.iter().map(of).collect(),
        page_locked: sim_page_locked(),
    }
}

/// Checks that the errors name the operation and the place: a stage, or the caller's use of the step's
/// numbers.
fn are_named(case: &Case, what: &str, seen: &BTreeSet<String>) {
    let cause = match what {
        ALLOCATION => "is out of memory: ",
        PAGE_LOCKED => "page-locked memory of the host is out of memory",
        _ => "CUDA error: invalid argument",
    };
    for why in seen {
        let place = why.contains("stage ") || why.contains("the numbers of the step");
        assert!(place && why.contains(cause), "{} {what}: {why}", case.name);
        if what == ALLOCATION {
            in_an_action(why);
        }
    }
    let layer = |why: &String| why.contains("layer `") && why.contains("micro-batch ");
    assert!(
        what != ALLOCATION || seen.iter().any(layer),
        "{}: {seen:?}",
        case.name
    );
}

/// An error in an action must name the micro-batch, and the transfer if the memory is on another device than
/// the stage's (devices are numbered like the stages here).
fn in_an_action(why: &str) {
    let (place, cause) = why.split_once(" is out of memory").unwrap();
    let (place, device) = place.rsplit_once("cuda:").unwrap();
    let acts = place.contains("forward") || place.contains("backward");
    let Some((_, stage)) = place.split_once("stage ").filter(|_| acts) else {
        return;
    };
    assert!(place.contains("micro-batch "), "{why}");
    let elsewhere = !stage.starts_with(device);
    let sends = cause.contains(&format!("while sending to a stage on cuda:{device}: "));
    let advice = cause.contains(&format!("give the stages on cuda:{device} fewer layers"));
    assert_eq!((sends, advice), (elsewhere, elsewhere), "{why}");
}

/// Failures in successive steps of one pipeline.
fn in_turn(case: &Case) {
    const WARM: usize = 5;
    for what in [ALLOCATION, PAGE_LOCKED, COPY] {
        let mut training = case.build();
        let mut losses: Vec<f64> = (0..WARM).map(|_| training.step()).collect();
        let before = counted(what);
        losses.push(training.step());
        let each = counted(what) - before;
        training.settled = true;
        let mut seen = BTreeSet::new();
        for number in case.numbers(each) {
            losses.push(match training.disturbed(what, number) {
                Outcome::Passed(loss) => loss,
                Outcome::Failed { why, retried } => {
                    seen.insert(why);
                    retried
                }
            });
        }
        let weights = weights(&mut training.pipe);
        let calm = case.calm(losses.len());
        assert_eq!(losses, calm.losses, "{} {what}", case.name);
        assert_same_bits(&weights, &calm.weights, case.name);
        are_named(case, what, &seen);
    }
}

/// Failures after `steps` steps, each in a new pipeline.
fn from_anew(case: &Case, steps: usize) {
    for what in [ALLOCATION, PAGE_LOCKED, COPY] {
        let mut training = case.build();
        (0..steps).for_each(|_| assert!(training.step().is_finite()));
        let before = counted(what);
        training.step();
        let each = counted(what) - before;
        drop(training);
        let calm = case.calm(steps + 3);
        let mut seen = BTreeSet::new();
        for number in case.numbers(each) {
            let mut training = case.build();
            let mut losses: Vec<f64> = (0..steps).map(|_| training.step()).collect();
            losses.push(match training.disturbed(what, number) {
                Outcome::Passed(loss) => loss,
                Outcome::Failed { why, retried } => {
                    seen.insert(why);
                    retried
                }
            });
            losses.extend((0..2).map(|_| training.step()));
            assert_eq!(losses, calm.losses, "{} {what} {number}", case.name);
            let now = held();
            assert!(
                now.fits(&calm.held),
                "{what} {number}: {now:?}, calm {:?}",
                calm.held
            );
            assert_same_bits(&weights(&mut training.pipe), &calm.weights, case.name);
        }
        are_named(case, what, &seen);
    }
}

/// All copies of an update fail from some copy on, each in turn being the first: the caller's next calls are
/// refused until the update can be finished.
fn stopped(case: &Case) {
    let mut training = case.build();
    let mut losses: Vec<f64> = (0..3).map(|_| training.step()).collect();
    losses.push(training.forward_and_back().unwrap());
    let before = counted(COPY);
    training.optimizer.step(&mut training.pipe).unwrap();
    let each = counted(COPY) - before;
    assert!(each > 0, "nothing is copied");
    for number in case.numbers(each) {
        losses.push(training.forward_and_back().unwrap());
        fail_times(COPY, number, u64::MAX);
        let errors = [
            training.optimizer.step(&mut training.pipe).unwrap_err(),
            training.pipe.parameters().map(drop).unwrap_err(),
            training.forward_and_back().map(drop).unwrap_err(),
        ];
        for error in errors {
            let why = error.to_string();
            let says = |words| why.contains(words);
            assert!(
                says("stage ") && says("CUDA error: invalid argument"),
                "{why}"
            );
            assert!(says("the next call goes on with it"), "{why}");
        }
        fail(COPY, 0);
    }
    let calm = case.calm(losses.len());
    assert_eq!(losses, calm.losses, "{}", case.name);
    assert_same_bits(&weights(&mut training.pipe), &calm.weights, case.name);
}
