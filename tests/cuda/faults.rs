//! Whatever a step asks of a device fails once, each in turn: allocations, page-locked memory,
//! copies. Each is an error that says where, nothing leaks, and the step can be tried again.

use std::collections::BTreeSet;

use gpipe::memory::of_device;
use gpipe::partitioner::{Bytes, ScheduleKind};
use gpipe::tch::{Cuda, Device, Kind, Tensor, nn};
use gpipe::{AdamW, Optimizer, Pipeline, PipelineBuilder, Recompute, Sequential};

use crate::harness::Test;
use crate::simulated::{counted, fail, sim_page_locked};
use crate::support::{assert_same_bits, cross_entropy, snapshot};

const GPUS: [Device; 2] = [Device::Cuda(0), Device::Cuda(1)];
const ALLOCATION: &str = "allocation";
const PAGE_LOCKED: &str = "page-locked";
const COPY: &str = "copy";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("faults::of_a_plain_step", || in_turn(&PLAIN)),
        ("faults::of_a_step_that_recomputes", || in_turn(&RECOMPUTE)),
        ("faults::of_a_step_that_offloads", || in_turn(&OFFLOAD)),
        ("faults::of_a_step_that_replays_graphs", || in_turn(&GRAPHS)),
        ("faults::of_the_first_step", || from_anew(&PLAIN, 0)),
        ("faults::of_a_first_step_that_offloads", || {
            from_anew(&OFFLOAD, 0)
        }),
        ("faults::of_a_step_that_captures", || from_anew(&GRAPHS, 3)),
    ]
}

/// A way to train.
struct Case {
    name: &'static str,
    configure: fn(PipelineBuilder) -> PipelineBuilder,
    offload_optimizer: bool,
}

const PLAIN: Case = Case {
    name: "plain",
    configure: |builder| builder,
    offload_optimizer: false,
};
const RECOMPUTE: Case = Case {
    name: "recompute",
    configure: |builder| builder.recompute(Recompute::Always),
    offload_optimizer: false,
};
const OFFLOAD: Case = Case {
    name: "offload",
    configure: |builder| builder.offload(&[0, 1]).offload_at_least(Bytes(1)),
    offload_optimizer: true,
};
const GRAPHS: Case = Case {
    name: "graphs",
    configure: |builder| builder.cuda_graphs(true),
    offload_optimizer: false,
};

fn model() -> Sequential {
    let linear = |out| move |p: &nn::Path<'_>| nn::linear(p, 8, out, nn::LinearConfig::default());
    Sequential::new()
        .layer("one", linear(8))
        .layer("act", |_| nn::func(|x: &Tensor| x.gelu("none")))
        .layer("two", linear(5))
}

/// A pipeline, its optimizer, and what they are given.
struct Training {
    pipe: Pipeline,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    /// Whether what stays is there already.
    settled: bool,
}

/// Bytes of the devices, and of page-locked memory.
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

/// What came of steps that nothing disturbed.
struct Calm {
    losses: Vec<f64>,
    held: Held,
    weights: Vec<(String, Tensor)>,
}

/// What became of what was asked to fail.
enum Outcome {
    /// The numbers of the step, which nothing in it needed.
    Passed(f64),
    Failed {
        why: String,
        retried: f64,
    },
}

impl Case {
    fn build(&self) -> Training {
        let builder = Pipeline::builder(model())
            .devices(&GPUS)
            .schedule(ScheduleKind::OneFOneB)
            .micro_batches(2)
            .deterministic(true)
            .seed(3);
        Training {
            pipe: (self.configure)(builder).build().unwrap(),
            optimizer: Optimizer::new(AdamW::default()).offload(self.offload_optimizer),
            x: Tensor::arange(32, (Kind::Float, Device::Cpu)).view([4, 8]) / 32.0,
            y: Tensor::arange(4, (Kind::Int64, Device::Cpu)),
            settled: false,
        }
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
    fn forward_and_back(&mut self) -> Result<f64, String> {
        let step = self.pipe.train_step(&self.x, &self.y, cross_entropy);
        let report = step.map_err(|error| error.to_string())?;
        Ok(report.read().map_err(|error| error.to_string())?.loss)
    }

    fn step(&mut self) -> f64 {
        let loss = self.forward_and_back().unwrap();
        self.optimizer.step(&mut self.pipe).unwrap();
        loss
    }

    /// What failed holds no memory, but where it made something to stay (the state of an
    /// optimizer, graphs).
    fn not_more_than(&self, before: &Held, why: &str) {
        let now = held();
        assert!(
            !self.settled || now.fits(before),
            "{now:?} after {before:?}: {why}"
        );
    }

    /// A step in which one of them fails; what failed is tried again.
    fn disturbed(&mut self, what: &str, number: u64) -> Outcome {
        fail(what, number);
        let before = held();
        let loss = match self.forward_and_back() {
            Ok(loss) => loss,
            Err(error) => {
                fail(what, 0);
                self.not_more_than(&before, &error);
                let retried = self.step();
                return Outcome::Failed {
                    why: error,
                    retried,
                };
            }
        };
        if what == COPY {
            // An update that has begun is not undone: what it may run out of it has before.
            fail(what, 0);
        }
        let before = held();
        match self.optimizer.step(&mut self.pipe) {
            Ok(()) => {
                fail(what, 0);
                Outcome::Passed(loss)
            }
            Err(error) => {
                fail(what, 0);
                self.not_more_than(&before, &error.to_string());
                self.optimizer.step(&mut self.pipe).unwrap();
                Outcome::Failed {
                    why: error.to_string(),
                    retried: loss,
                }
            }
        }
    }
}

/// In the host's memory, where they are not counted.
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

/// The errors say what failed, and where: on a stage, or in what the caller does with the
/// step's numbers.
fn are_named(case: &Case, what: &str, seen: &BTreeSet<String>) {
    let cause = match what {
        ALLOCATION => "is out of memory: ",
        PAGE_LOCKED => "page-locked memory of the host is out of memory",
        _ => "CUDA error: invalid argument",
    };
    for why in seen {
        let place = why.contains("stage ") || why.contains("the numbers of the step");
        assert!(place && why.contains(cause), "{} {what}: {why}", case.name);
    }
}

/// In later steps of one pipeline.
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
        for number in 1..=each {
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

/// In the step behind so many, each time of a new pipeline.
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
        for number in 1..=each {
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
