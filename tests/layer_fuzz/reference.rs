//! Expected results of a program: plain tch in the calling thread, one micro-batch after the other, with
//! autograd's own backward and none of the library's stages.
//!
//! It follows the library's documentation:
//!
//! - Micro-batches are as even as possible, the larger ones first; the loss is their mean weighted by
//!   samples, or by the weights that the loss function returns.
//! - The caller's tensors are never written to: each micro-batch is a fresh copy.
//! - A stash is a snapshot of the moment, and each pop of it a separate path.
//! - If a value leaves a layer by several paths, the gradient of each path is accumulated first, then the
//!   sums are added: those of the skips (the last popping layer first), then those of the outputs. In a
//!   plain model each path is a separate view.
//! - Buffers are updated micro-batch by micro-batch, in order.
//! - Gradients of a step are accumulated separately, micro-batch by micro-batch, then added to those of
//!   earlier steps. Those of a tied parameter are accumulated for each place of use, and then added in the
//!   order of the layers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use anyhow::{Result, ensure};
use gpipe::tch::{self, Tensor};

use crate::batch::{Given, loss};
use crate::layer::{Body, Pass, Plan, plans};
use crate::machine::skip;
use crate::program::{After, Holds, Input, Loss, Program};
use crate::record::{Gradients, Record, Step};
use crate::sums::{added, copied, joined, taken, with_zeros};
use crate::ways::{Stash, apart, not_owned, share, snapshot};

/// Step size of updates.
pub(crate) const RATE: f64 = -0.1;

/// A layer's pass without a pipeline.
struct Plain<'a> {
    train: bool,
    micro: usize,
    layer: usize,
    /// Values by popping layer and name.
    skips: &'a RefCell<HashMap<(usize, &'static str), Option<Tensor>>>,
    stashed: RefCell<Vec<Stash>>,
    notes: Option<&'a RefCell<Vec<String>>>,
}

impl Pass for Plain<'_> {
    fn train(&self) -> bool {
        self.train
    }

    fn micro(&self) -> usize {
        self.micro
    }

    fn stash(&self, name: &str, value: Option<&Tensor>) -> Result<()> {
        self.stashed.borrow_mut().push(Stash::new(name, value)?);
        Ok(())
    }

    fn pop(&self, name: &str) -> Result<Option<Tensor>> {
        let mut skips = self.skips.borrow_mut();
        let value = skips.extract_if(|(layer, own), _| *layer == self.layer && *own == name);
        let value = value.map(|(_, value)| value).next();
        Ok(value.flatten())
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if let Some(notes) = self.notes {
            notes.borrow_mut().push(text());
        }
    }
}

/// A program's plain form.
pub(crate) struct Reference<'a> {
    program: &'a Program,
    layers: Vec<Body>,
    /// Whether values that share memory left a layer.
    shared: Cell<bool>,
    /// Results of each operation, for the first micro-batch.
    pub(crate) notes: RefCell<Vec<String>>,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(program: &'a Program) -> Self {
        Self {
            program,
            layers: built(&plans(program)),
            shared: Cell::new(false),
            notes: RefCell::default(),
        }
    }

    /// Whether the documentation leaves the order of the sums open: an in-place change of a value that has
    /// left its layer moves its path in autograd's graph, and a view in plain tch may not be one here. The
    /// plain loop then holds only up to rounding.
    pub(crate) fn is_loose(&self) -> bool {
        let layers = || self.layers.iter().map(|body| &body.plan);
        let ways = layers().any(|plan| plan.layer.outputs.len() > 1 || !plan.stashes.is_empty());
        let views = layers().any(|plan| plan.layer.ops.iter().any(|op| op.is_view()));
        self.shared.get() || ((ways || views) && self.program.writes())
    }

    /// All results to compare a pipeline with. An error means that plain tch cannot run the program either.
    pub(crate) fn record(&self) -> Result<Record> {
        let before = self.infer()?;
        let mut steps = Vec::new();
        let mut earlier: Option<Gradients> = None;
        for (number, after) in self.program.steps.iter().enumerate() {
            let values = self.values();
            let mut step = self.step(number == 0)?;
            self.unchanged(&values)?;
            if let Some(earlier) = earlier.take() {
                step.gradients = added(earlier, step.gradients)?;
            }
            step.buffers = self.buffers();
            match after {
                After::Zero => {}
                After::Keep => earlier = Some(copied(&step.gradients)),
                After::Update => self.update(&step.gradients)?,
            }
            steps.push(step);
        }
        let after = self.infer()?;
        Ok(Record {
            before,
            steps,
            after,
        })
    }

    fn values(&self) -> Vec<(String, Tensor)> {
        let copied = |(name, value): (String, Tensor)| (name, value.detach().copy());
        self.parameters().map(copied).collect()
    }

    /// Refuses layers that change parameters themselves: in a pipeline other micro-batches are in flight.
    fn unchanged(&self, values: &[(String, Tensor)]) -> Result<()> {
        for ((name, now), (_, value)) in self.parameters().zip(values) {
            ensure!(now.equal(value), "the forward changes the parameter {name}");
        }
        Ok(())
    }

    /// The outputs of inference, joined as a batch's; `None` if they cannot be joined.
    fn infer(&self) -> Result<Option<Vec<Option<Tensor>>>> {
        let _no_grad = tch::no_grad_guard();
        let values = self.values();
        let mut parts = Vec::new();
        let mut start = 0;
        for (micro, &size) in sizes(self.program).iter().enumerate() {
            let inputs = parts_of(&self.inputs(), start, size)?;
            parts.push(self.forward(inputs, micro, false, None)?);
            start += size;
        }
        self.unchanged(&values)?;
        Ok(joined(&parts))
    }

    /// One step's loss, and the gradients of the inputs.
    fn step(&self, first: bool) -> Result<Step> {
        let (mut losses, mut weights, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for (micro, &size) in sizes(self.program).iter().enumerate() {
            let inputs = self.inputs();
            let parts = parts_of(&inputs, start, size)?;
            let notes = (first && micro == 0).then_some(&self.notes);
            let outputs = self.forward(parts, micro, true, notes)?;
            let target = Given::target(self.program).tensor().narrow(0, start, size);
            let (value, weight) = loss(self.program.loss, &outputs, &target)?;
            let share = size as f64 / self.program.batch.samples as f64;
            let counts = weight.unwrap_or(share);
            value.f_mul_scalar(counts)?.f_backward()?;
            losses.push(value.double_value(&[]));
            weights.push(counts);
            let own = inputs.iter().map(|input| {
                let (gradient, part) = (input.grad(), input.narrow(0, start, size));
                let gradient = gradient.defined().then(|| gradient.narrow(0, start, size));
                (gradient, part.detach().zeros_like())
            });
            gradients.push(own.collect::<Vec<_>>());
            start += size;
        }
        let pairs = losses.iter().zip(&weights);
        let loss = pairs.fold(0.0, |sum, (loss, weight)| sum + loss * weight);
        let all = weights.iter().fold(0.0, |sum, weight| sum + weight);
        let weighted = self.program.loss == Loss::Weighted;
        let mut input_gradients = joined(&with_zeros(gradients)).unwrap_or_default();
        if weighted {
            for gradient in input_gradients.iter_mut().flatten() {
                *gradient = gradient.f_mul_scalar(1.0 / all)?;
            }
        }
        Ok(Step {
            loss: if weighted { loss / all } else { loss },
            gradients: self.summed(weighted.then_some(1.0 / all), first)?,
            buffers: Vec::new(),
            input_gradients,
        })
    }

    /// Fresh copies of the caller's inputs.
    fn inputs(&self) -> Vec<Tensor> {
        let given = Given::inputs(self.program).into_iter();
        let inputs = given.zip(&self.program.batch.inputs);
        let inputs = inputs.map(|(given, input)| {
            let tensor = given.tensor();
            if asks(input) {
                // A new tensor, since the same one may be passed twice.
                return tensor.detach().set_requires_grad(true);
            }
            tensor
        });
        inputs.collect()
    }

    fn forward(
        &self,
        mut values: Vec<Option<Tensor>>,
        micro: usize,
        train: bool,
        notes: Option<&RefCell<Vec<String>>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let skips = RefCell::default();
        for (number, body) in self.layers.iter().enumerate() {
            let pass = Plain {
                train,
                micro,
                layer: number,
                skips: &skips,
                stashed: RefCell::default(),
                notes,
            };
            pass.note(|| format!("layer {number}"));
            values = body.forward(values, &pass)?;
            self.shared.set(self.shared.get() || share(&values));
            values = not_owned(values, body)?;
            let stashed = pass.stashed.into_inner();
            if values.len() > 1 || !stashed.is_empty() {
                values = apart(values)?;
            }
            for (to, name) in self.ways(number) {
                let stash = stashed.iter().find(|stash| stash.name == name);
                let value = stash.map(Stash::way).transpose()?.flatten();
                skips.borrow_mut().insert((to, name), value);
            }
        }
        Ok(values)
    }

    /// The skips that begin at a layer, in the order in which their gradients are added: those that begin
    /// last come first.
    fn ways(&self, from: usize) -> Vec<(usize, &'static str)> {
        let mut ways = Vec::new();
        for (to, body) in self.layers.iter().enumerate() {
            for name in body.plan.pops.iter().rev() {
                if self.layers[from].plan.stashes.contains(name) {
                    ways.push((to, skip(*name)));
                }
            }
        }
        ways
    }

    /// The step's gradients, removed from all places and summed for each parameter.
    fn summed(&self, factor: Option<f64>, first: bool) -> Result<Gradients> {
        let mut sums: Gradients = Vec::new();
        for body in &self.layers {
            for (own, tensor) in body.owned().filter(|(own, _)| own.trainable) {
                let name = full_name(&body.plan, own.name);
                let gradient = taken(tensor, first);
                match sums.iter_mut().find(|(sum, _)| *sum == name) {
                    None => sums.push((name, gradient)),
                    Some((_, sum)) => match (sum.as_ref(), gradient) {
                        (Some(before), Some(new)) => *sum = Some(before.f_add(&new)?),
                        (None, new) => *sum = new,
                        (Some(_), None) => {}
                    },
                }
            }
        }
        if let Some(factor) = factor {
            for sum in sums.iter_mut().filter_map(|(_, sum)| sum.as_mut()) {
                let _ = sum.f_mul_scalar_(factor)?;
            }
        }
        Ok(sums)
    }

    /// Every parameter, once, in the order of the layers.
    fn parameters(&self) -> impl Iterator<Item = (String, Tensor)> {
        let bodies = self.layers.iter();
        bodies.flat_map(|body| {
            let own = body.owned().filter(|(own, _)| own.trainable);
            own.map(|(own, tensor)| (full_name(&body.plan, own.name), tensor.shallow_clone()))
        })
    }

    fn buffers(&self) -> Vec<(String, Tensor)> {
        let bodies = self.layers.iter();
        let all = bodies.flat_map(|body| {
            let own = body.owned().filter(|(own, _)| !own.trainable);
            own.map(|(own, tensor)| (full_name(&body.plan, own.name), tensor.copy()))
        });
        all.collect()
    }

    /// Moves every parameter along its gradient. Tied parameters share memory, so each moves once.
    fn update(&self, gradients: &[(String, Option<Tensor>)]) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (name, gradient) in gradients {
            let own = self.parameters().find(|(own, _)| own == name);
            if let (Some((_, mut tensor)), Some(gradient)) = (own, gradient) {
                let _ = tensor.f_add_(&gradient.f_mul_scalar(RATE)?)?;
            }
        }
        Ok(())
    }
}

/// A micro-batch's part of the inputs, in its own memory: not a view, so that autograd treats an in-place
/// change as it does for a value that a stage receives. Overlapping elements of a leaf have separate
/// gradients, however, and autograd forbids changing them.
fn parts_of(inputs: &[Tensor], start: i64, size: i64) -> Result<Vec<Option<Tensor>>> {
    let part = |input: &Tensor| {
        let part = input.f_narrow(0, start, size)?;
        let overlaps = input.stride().contains(&0);
        Ok(Some(if input.requires_grad() && overlaps {
            part
        } else {
            snapshot(&part)?
        }))
    };
    inputs.iter().map(part).collect()
}

/// Whether an input requires a gradient.
pub(crate) fn asks(input: &Input) -> bool {
    input.gradient && input.holds != Holds::Ids
}

/// A layer tensor's name for the user.
pub(crate) fn full_name(plan: &Plan, own: &str) -> String {
    match plan.tied_to {
        Some(first) if own == "weight" => format!("l{first}.{own}"),
        _ => format!("{}.{own}", plan.name),
    }
}

/// The layers with their tensors. A copy of a tied weight is another leaf with the same memory, so that each
/// place of use has a separate gradient.
fn built(plans: &[Plan]) -> Vec<Body> {
    let mut bodies: Vec<Body> = Vec::new();
    for plan in plans {
        let owner = plan.tied_to.map_or(plan, |first| &plans[first]);
        let shared = plan.tied_to.map(|first| bodies[first].own("weight"));
        bodies.push(Body::new(plan, |own, values| {
            let (weight, bias) = plan.layer.frozen;
            match own.name {
                "weight" => {
                    let values = shared.as_ref().map_or(values, Tensor::detach);
                    values.set_requires_grad(!owner.layer.frozen.0)
                }
                "bias" => values.set_requires_grad(!bias),
                _ => values.set_requires_grad(own.trainable && !weight),
            }
        }));
    }
    bodies
}

/// Sizes of micro-batches: as even as possible, the larger ones first.
fn sizes(program: &Program) -> Vec<i64> {
    let samples = program.batch.samples;
    let count = samples.min(program.settings.micro_batches as i64);
    (0..count)
        .map(|i| samples / count + i64::from(i < samples % count))
        .collect()
}
