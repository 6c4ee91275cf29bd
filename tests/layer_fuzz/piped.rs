//! The program as a pipeline.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};
use gpipe::partitioner::{Bytes, ScheduleKind, Shape};
use gpipe::tch::{self, Tensor};
use gpipe::{
    Layer, Loss as PipedLoss, Pipeline, Sequential, Values,
    layers::Context,
    settings::{Recompute, on_values},
};

use crate::batch::{Given, loss};
use crate::check::KERNELS;
use crate::layer::{Body, CPU, Pass, Plan, plans};
use crate::machine::skip;
use crate::program::{After, Program, Recomputing, Scheduled, Settings};
use crate::record::{Record, Step, different};
use crate::reference::{RATE, asks, full_name};
use crate::schedule::random;

/// A layer of the pipeline.
#[derive(Debug)]
struct Piped(Body);

impl Layer for Piped {
    fn forward(&self, inputs: Values, ctx: &Context) -> Result<Values> {
        let outputs = self.0.forward(inputs.into_iter().collect(), ctx)?;
        Ok(outputs.into_iter().collect())
    }
}

impl Pass for Context {
    fn train(&self) -> bool {
        Context::train(self)
    }

    fn micro(&self) -> usize {
        Context::micro(self).index()
    }

    fn stash(&self, name: &str, value: Option<&Tensor>) -> Result<()> {
        Context::stash(self, name, value)
    }

    fn pop(&self, name: &str) -> Result<Option<Tensor>> {
        Context::pop(self, name)
    }

    fn note(&self, _: impl FnOnce() -> String) {}
}

/// The settings adapted to a program.
pub(crate) struct Fitted {
    schedule: Scheduled,
    devices: usize,
    chunks: usize,
    balance: Vec<usize>,
    recompute: Recompute,
    offload: Vec<usize>,
}

impl Fitted {
    pub(crate) fn new(program: &Program) -> Self {
        let layers = program.layers.len();
        let own = &program.settings;
        let fits = |&(devices, chunks): &(usize, usize)| {
            let shape = Shape::new(devices, own.micro_batches).with_chunks(chunks);
            let exists = match own.schedule {
                Scheduled::Kind(kind) => kind.generate(shape).is_ok(),
                Scheduled::Random { .. } => own.micro_batches as i64 <= program.batch.samples,
            };
            devices * chunks <= layers && exists
        };
        // The most stages possible; a model may be too short for the schedule.
        let all = (1..=own.devices).flat_map(|p| (1..=own.chunks).map(move |v| (p, v)));
        let most = all.filter(fits).max_by_key(|(p, v)| p * v);
        let (devices, chunks) = most.unwrap_or((1, 1));
        let simplest = Scheduled::Kind(ScheduleKind::GPipe);
        let stages = devices * chunks;
        Self {
            schedule: most.map_or(simplest, |_| own.schedule.clone()),
            devices,
            chunks,
            balance: balance(layers, stages, own),
            recompute: recompute(layers, stages, &own.recompute),
            offload: own.offload.iter().map(|stage| stage % stages).collect(),
        }
    }

    fn pipeline(self, model: Sequential, micro_batches: usize) -> Result<Pipeline> {
        let (devices, stages) = (self.devices, self.devices * self.chunks);
        let pipe = Pipeline::builder(model)
            .devices(&vec![CPU; devices])
            .chunks(self.chunks)
            .balance(&self.balance)
            .micro_batches(micro_batches)
            .recompute(self.recompute)
            .offload(&self.offload)
            .offload_at_least(Bytes(0))
            .threads_per_stage(1)
            .kernels(KERNELS.get());
        let pipe = match self.schedule {
            Scheduled::Kind(kind) => pipe.schedule(kind),
            Scheduled::Random { choices, halves } => {
                pipe.custom_schedule(random((devices, stages), micro_batches, &choices, &halves))
            }
        };
        pipe.build().context("cannot be built")
    }
}

impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            schedule,
            devices,
            chunks,
            balance,
            recompute,
            offload,
        } = self;
        write!(
            f,
            "{schedule:?}, {devices} devices, {chunks} chunks, balance {balance:?}, recompute {recompute:?}, \
             offload {offload:?}"
        )
    }
}

fn balance(layers: usize, stages: usize, settings: &Settings) -> Vec<usize> {
    let mut balance = vec![1; stages];
    for extra in 0..layers.saturating_sub(stages) {
        balance[settings.cut.get(extra).map_or(0, |stage| stage % stages)] += 1;
    }
    balance
}

fn recompute(layers: usize, stages: usize, what: &Recomputing) -> Recompute {
    let repeated = |flags: &[bool], count| flags.iter().copied().cycle().take(count).collect();
    match what {
        Recomputing::Never => Recompute::Never,
        Recomputing::Always => Recompute::Always,
        Recomputing::ExceptLast => Recompute::ExceptLast,
        Recomputing::Stages(flags) => Recompute::Stages(repeated(flags, stages)),
        Recomputing::Layers(flags) => Recompute::Layers(repeated(flags, layers)),
    }
}

fn sequential(plans: &[Plan]) -> Sequential {
    let mut model = Sequential::new();
    for plan in plans {
        let own = plan.clone();
        model = model.layer(&plan.name, move |path| {
            Piped(Body::new(&own, |own, values| {
                path.add(own.name, values, own.trainable)
            }))
        });
        for &name in &plan.stashes {
            model = model.stashes(skip(name));
        }
        for &name in &plan.pops {
            model = model.pops(skip(name));
        }
    }
    let tied = plans.iter().filter_map(|plan| Some((plan, plan.tied_to?)));
    tied.fold(model, |model, (plan, first)| {
        model.tie(format!("l{first}.weight"), format!("{}.weight", plan.name))
    })
}

fn built(program: &Program, plans: &[Plan]) -> Result<Pipeline> {
    let fitted = Fitted::new(program);
    let mut pipe = fitted.pipeline(sequential(plans), program.settings.micro_batches)?;
    let mut frozen = Vec::new();
    for plan in plans {
        let (weight, bias) = plan.layer.frozen;
        if weight && plan.tied_to.is_none() {
            frozen.push(format!("{}.weight", plan.name));
        }
        if weight {
            frozen.push(format!("{}.idle", plan.name));
        }
        if bias {
            frozen.push(format!("{}.bias", plan.name));
        }
    }
    pipe.freeze(move |name| frozen.iter().any(|own| own == name))?;
    Ok(pipe)
}

/// Runs a program.
pub(crate) fn record(program: &Program) -> Result<Record> {
    let plans = plans(program);
    let mut pipe = built(program, &plans)?;
    let caller = Caller {
        inputs: Given::inputs(program),
        target: Given::target(program),
    };
    let before = caller.bases();
    let output = outputs(&mut pipe, program, &caller)?;
    let mut steps = Vec::new();
    for (number, after) in program.steps.iter().enumerate() {
        let step = step(&mut pipe, program, &caller, &plans);
        steps.push(step.with_context(|| format!("step {number}"))?);
        match after {
            After::Zero => pipe.zero_grad()?,
            After::Keep => {}
            After::Update => update(&mut pipe)?,
        }
    }
    let after = outputs(&mut pipe, program, &caller)?;
    for (base, before) in caller.bases().iter().zip(&before) {
        if let Some(how) = different("what the caller gave", Some(base), Some(before)) {
            bail!(how.text);
        }
    }
    Ok(Record {
        before: output,
        steps,
        after,
    })
}

/// The tensors of the caller.
struct Caller {
    inputs: Vec<Given>,
    target: Given,
}

impl Caller {
    /// Copies of the memory that holds them.
    fn bases(&self) -> Vec<Tensor> {
        let all = self.inputs.iter().chain([&self.target]);
        all.map(|given| given.base.copy()).collect()
    }

    fn input(&self, program: &Program, gradients: bool) -> Values {
        let pairs = self.inputs.iter().zip(&program.batch.inputs);
        let tensors = pairs.map(|(given, input)| {
            let tensor = given.tensor();
            if gradients && asks(input) {
                return tensor.detach().set_requires_grad(true);
            }
            tensor
        });
        tensors.collect()
    }
}

/// `None` if those of the micro-batches cannot be joined.
fn outputs(
    pipe: &mut Pipeline,
    program: &Program,
    caller: &Caller,
) -> Result<Option<Vec<Option<Tensor>>>> {
    match pipe.forward_values(caller.input(program, false)) {
        // Copies, since an output may share its memory with a parameter.
        Ok(values) => Ok(Some(tch::no_grad(|| {
            values.iter().map(|v| v.map(Tensor::copy)).collect()
        }))),
        Err(gpipe::Error::Batch(_)) => Ok(None),
        Err(error) => Err(error).context("inference"),
    }
}

fn step(pipe: &mut Pipeline, program: &Program, caller: &Caller, plans: &[Plan]) -> Result<Step> {
    let what = program.loss;
    let of_values = move |outputs: &Values, targets: &Values| -> Result<PipedLoss> {
        let outputs: Vec<_> = outputs
            .iter()
            .map(|o| o.map(Tensor::shallow_clone))
            .collect();
        let (value, weight) = loss(what, &outputs, targets.one()?)?;
        Ok(match weight {
            Some(weight) => PipedLoss::weighted(value, weight),
            None => PipedLoss::mean(value),
        })
    };
    let input = caller.input(program, true);
    let mut report = pipe.train_step(input, caller.target.tensor(), on_values(of_values))?;
    let parameters = pipe.parameters()?;
    let buffers = pipe.buffers()?;
    let mut gradients = Vec::new();
    let mut moved = Vec::new();
    for plan in plans {
        for own in &plan.owns {
            let name = full_name(plan, own.name);
            let all = if own.trainable { &parameters } else { &buffers };
            let Some((_, tensor)) = all.iter().find(|(other, _)| *other == name) else {
                bail!("{name} is missing");
            };
            if !own.trainable {
                moved.push((name, tensor.copy()));
            } else if plan.tied_to.is_none() || own.name != "weight" {
                let gradient = tensor.grad();
                gradients.push((name, gradient.defined().then(|| gradient.copy())));
            }
        }
    }
    let input_gradients = report
        .input_gradient
        .take()
        .map_or_else(Vec::new, |all| all.into_iter().collect());
    let asked = program.batch.inputs.iter().any(asks);
    ensure!(
        asked != input_gradients.is_empty(),
        "{} gradients of inputs",
        input_gradients.len()
    );
    Ok(Step {
        loss: report.read().unwrap().loss,
        gradients,
        buffers: moved,
        input_gradients,
    })
}

fn update(pipe: &mut Pipeline) -> Result<()> {
    for (_, mut parameter) in pipe.parameters()? {
        let gradient = parameter.grad();
        if gradient.defined() {
            let _ = tch::no_grad(|| parameter.f_add_(&gradient.f_mul_scalar(RATE)?))?;
        }
    }
    Ok(pipe.zero_grad()?)
}
