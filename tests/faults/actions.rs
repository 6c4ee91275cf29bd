//! A fault in every action of every schedule, over real stages: the error names the place, nothing hangs, and
//! later steps have the numbers of a run without the fault. (`engine_fault_positions` does the same with
//! synthetic stages, including panics where no Rust code runs here: inside autograd.)

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::*;
use gpipe::engine::Phase;
use gpipe::partitioner::{ActionKind, CheckedSchedule, MicroId, ScheduleKind, StageId};
use gpipe::tch::{self, Tensor, nn};
use gpipe::{
    Error, Layer, Optimizer, Pipeline, Sequential, Values, error::NonFinite, layers::Context,
    optim::AdamW, settings::Recompute,
};

const DEVICES: usize = 3;
const MICRO_BATCHES: usize = 4;
const NEVER: usize = usize::MAX;

/// A layer's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Returns an error, in the first forward or in a recompute.
    Error,
    /// Panics, likewise.
    Panic,
    /// Outputs NaN.
    NotFinite,
    /// Overwrites a value that the input gradient needs.
    Input,
    /// Overwrites a value that only the weight gradient needs.
    Weight,
    /// Has a NaN input gradient.
    InputNotFinite,
    /// Has a NaN weight gradient.
    WeightNotFinite,
}

use Fault::{Error as Fails, Input, InputNotFinite, NotFinite, Panic, Weight, WeightNotFinite};

/// The faults that show in an action of this kind, whether the backward is split or not.
fn faults(kind: ActionKind) -> &'static [Fault] {
    match kind {
        ActionKind::Forward | ActionKind::Recompute => &[Fails, Panic, NotFinite],
        ActionKind::Backward => &[Input, Weight, InputNotFinite, WeightNotFinite],
        ActionKind::BackwardInput => &[Input, InputNotFinite],
        ActionKind::BackwardWeight => &[Weight, WeightNotFinite],
    }
}

/// The fault, its layer and micro-batch, and whether it occurs in a recompute.
#[derive(Debug)]
struct Switch {
    micro: AtomicUsize,
    kind: AtomicUsize,
    recomputing: AtomicUsize,
}

impl Switch {
    fn set(&self, fault: Fault, micro: usize, recomputing: bool) {
        self.kind.store(fault as usize, Ordering::SeqCst);
        self.recomputing
            .store(usize::from(recomputing), Ordering::SeqCst);
        self.micro.store(micro, Ordering::SeqCst);
    }

    fn is(&self, fault: Fault, ctx: &Context) -> bool {
        self.micro.load(Ordering::SeqCst) == ctx.micro().index()
            && self.kind.load(Ordering::SeqCst) == fault as usize
    }

    fn here(&self, ctx: &Context) -> bool {
        self.recomputing.load(Ordering::SeqCst) == usize::from(ctx.recomputing())
    }
}

#[derive(Debug)]
struct Brittle {
    weight: Tensor,
    switch: Arc<Switch>,
}

/// Zero with a NaN gradient.
fn poison(x: &Tensor) -> Tensor {
    (x * 0.0).sqrt().sum(x.kind())
}

impl Layer for Brittle {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let switch = &self.switch;
        let x = inputs.into_one()?;
        let (mut shifted, mut scaled) = (x.exp(), self.weight.exp());
        let mut output = (&shifted * 1.0).log().matmul(&(&scaled * 1.0).log());
        if switch.is(Fails, ctx) && switch.here(ctx) {
            anyhow::bail!("the layer gives up");
        }
        assert!(
            !switch.is(Panic, ctx) || !switch.here(ctx),
            "the layer panics"
        );
        if switch.is(NotFinite, ctx) && switch.here(ctx) {
            output *= f64::NAN;
        }
        if switch.is(InputNotFinite, ctx) {
            output += poison(&x);
        }
        if switch.is(WeightNotFinite, ctx) {
            output += poison(&self.weight);
        }
        tch::no_grad(|| {
            if switch.is(Input, ctx) {
                let _ = shifted.fill_(2.0);
            }
            if switch.is(Weight, ctx) {
                let _ = scaled.fill_(2.0);
            }
        });
        Ok(output.tanh().into())
    }
}

struct Setup {
    pipe: Pipeline,
    optimizer: Optimizer,
    switches: Vec<Arc<Switch>>,
}

fn setup(schedule: ScheduleKind, recompute: Recompute) -> Setup {
    let stages = DEVICES * schedule.default_chunks();
    let switches: Vec<Arc<Switch>> = (0..stages)
        .map(|_| {
            Arc::new(Switch {
                micro: AtomicUsize::new(NEVER),
                kind: AtomicUsize::new(NEVER),
                recomputing: AtomicUsize::new(0),
            })
        })
        .collect();
    let mut model = Sequential::new();
    for (stage, switch) in switches.iter().enumerate() {
        let switch = Arc::clone(switch);
        model = model
            .layer(format!("brittle{stage}"), move |p| Brittle {
                weight: p.kaiming_uniform("weight", &[6, 6]),
                switch: Arc::clone(&switch),
            })
            .layer(format!("norm{stage}"), |p| {
                nn::batch_norm1d(p, 6, nn::BatchNormConfig::default())
            });
    }
    let pipe = Pipeline::builder(model)
        .devices(&cpus(DEVICES))
        .balance(&vec![2; stages])
        .micro_batches(MICRO_BATCHES)
        .schedule(schedule)
        .recompute(recompute)
        .on_non_finite(NonFinite::Fail)
        .threads_per_stage(1)
        .build()
        .unwrap();
    Setup {
        pipe,
        optimizer: Optimizer::new(AdamW::default()),
        switches,
    }
}

/// The input requires a gradient, so that the first stage has an input pass, too.
fn batch() -> (Tensor, Tensor) {
    let (x, y) = mlp_batch(13);
    (x.narrow(1, 0, 6).copy().set_requires_grad(true), y)
}

impl Setup {
    fn good_step(&mut self) -> u64 {
        let (x, y) = batch();
        let loss = self
            .pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .loss;
        self.optimizer.step(&mut self.pipe).unwrap();
        loss.to_bits()
    }

    fn bad_step(&mut self, stage: StageId, micro: MicroId, fault: Fault, redo: bool) -> Error {
        let (x, y) = batch();
        let switch = &self.switches[stage.index()];
        switch.set(fault, micro.index(), redo);
        let error = self.pipe.train_step(&x, &y, cross_entropy).unwrap_err();
        self.switches[stage.index()].set(fault, NEVER, false);
        error
    }
}

fn check(error: &Error, stage: StageId, micro: MicroId, kind: ActionKind, fault: Fault) {
    let what = format!("{fault:?} in {stage}{}{micro}: `{error}`", kind.letter());
    let at = error.stage_error().unwrap_or_else(|| panic!("{what}"));
    assert_eq!(at.stage, stage, "{what}");
    assert_eq!(at.micro, Some(micro), "{what}");
    assert_eq!(at.action, Phase::Action(kind), "{what}");
    let layer = format!("brittle{stage}");
    assert_eq!(at.layer.as_deref(), Some(layer.as_str()), "{what}");
    let why = match fault {
        Fails => "the layer gives up",
        Panic => "panicked: the layer panics",
        NotFinite => "an output is not finite",
        Input | Weight => "inplace operation",
        InputNotFinite => "the gradient of the stage's input is not finite",
        WeightNotFinite => ".weight` is not finite",
    };
    assert!(error.to_string().contains(why), "{what}");
}

fn every_action(schedule: &CheckedSchedule, mut f: impl FnMut(StageId, MicroId, ActionKind)) {
    for (_, list) in schedule.schedule().iter() {
        for action in list {
            f(action.stage, action.micro, action.kind);
        }
    }
}

fn fault_everywhere(schedules: &[ScheduleKind], recompute: &Recompute) -> usize {
    let mut injected = 0;
    for &schedule in schedules {
        let mut calm = setup(schedule, recompute.clone());
        let mut hit = setup(schedule, recompute.clone());
        let plan = hit.pipe.schedule().unwrap();
        every_action(&plan, |stage, micro, kind| {
            for &fault in faults(kind) {
                let redo = kind == ActionKind::Recompute;
                let error = hit.bad_step(stage, micro, fault, redo);
                check(&error, stage, micro, kind, fault);
                injected += 1;
            }
            // Checked once in a while and at the end: no fault has a lasting effect.
            if micro.index() == 1 {
                assert_eq!(hit.good_step(), calm.good_step(), "{schedule}");
            }
        });
        let what = format!("{schedule}, recompute {recompute}");
        assert_eq!(hit.good_step(), calm.good_step(), "{what}");
        assert_same_bits(&snapshot(&mut hit.pipe), &snapshot(&mut calm.pipe), &what);
    }
    injected
}

fn all() -> Vec<ScheduleKind> {
    let mut kinds = ScheduleKind::ALL.to_vec();
    kinds.retain(|kind| *kind != ScheduleKind::ForwardOnly);
    kinds
}

#[test]
fn a_fault_in_every_action_of_every_schedule_is_named_and_leaves_no_trace() {
    watched(|| {
        let injected = fault_everywhere(&all(), &Recompute::Never);
        println!("{injected} faults injected");
        assert!(injected > 1000);
    });
}

#[test]
fn so_it_is_where_stages_recompute() {
    watched(|| {
        let injected = fault_everywhere(&all(), &Recompute::Always);
        println!("{injected} faults injected");
        assert!(injected > 1000);
    });
}
