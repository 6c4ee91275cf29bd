//! A layer that runs a part of a program.

use std::collections::HashMap;

use anyhow::Context as _;
use gpipe_partitioner::words::count;
use tch::{Kind, Tensor, nn};

use super::compile::{Compiler, Operand, Step, Work};
use super::grouped::grouped_mm;
use super::inputs::Check;
use super::parts::Part;
use super::program::{Modes, Program, Role, ValueId};
use super::weights::Weights;
use gpipe_torch::{Autocast, Context, Layer, Number, Values};

/// A part of a program with its variables, on its device.
#[derive(Debug)]
pub(super) struct Stretch {
    steps: Vec<Step>,
    /// Number of values.
    slots: usize,
    /// Slots of the inputs, and whether an input is a number sent as a tensor.
    inputs: Vec<(usize, bool)>,
    /// Numbers that are sizes of inputs: input, dimension, slot.
    bound: Vec<(usize, usize, usize)>,
    outputs: Vec<(Operand, bool)>,
    is_last: bool,
    /// Only in the first layer.
    check: Option<Check>,
    /// The reason why it cannot be trained.
    no_training: Option<String>,
}

/// Contents of a slot.
#[derive(Debug, Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    Tensor(Tensor),
    Number(Number),
}

/// Values during a run.
pub(super) struct Run {
    slots: Vec<Slot>,
}

impl Stretch {
    /// Builds the layer: reads its weights, and looks up its operators.
    pub(super) fn new(
        program: &Program,
        weights: &Weights,
        part: &Part,
        check: Option<Check>,
        path: &nn::Path<'_>,
    ) -> anyhow::Result<Self> {
        let variables = variables(program, weights, part, path)?;
        let mut compiler = Compiler::new(program, part, variables, path.device());
        let slot = |compiler: &mut Compiler<'_>, id: ValueId| {
            (compiler.slot(id), program.values[id.0].is_number)
        };
        let inputs: Vec<_> = (part.inputs.iter())
            .map(|id| slot(&mut compiler, *id))
            .collect();
        let bound = part.bound.iter();
        let bound = bound
            .map(|own| (own.input, own.dimension, compiler.slot(own.number)))
            .collect();
        let steps = compiler.steps(part)?;
        let outputs = part.outputs.iter();
        let outputs = outputs
            .map(|id| (compiler.operand(*id), program.values[id.0].is_number))
            .collect();
        Ok(Self {
            steps,
            slots: compiler.slots(),
            inputs,
            bound,
            outputs,
            is_last: part.is_last,
            check,
            no_training: super::modes::eval_only(program),
        })
    }

    fn enter(&self, inputs: Values) -> anyhow::Result<Run> {
        anyhow::ensure!(
            inputs.len() == self.inputs.len(),
            "it takes {}, but got {}",
            count(self.inputs.len(), "tensor"),
            inputs.len()
        );
        if let Some(check) = &self.check {
            check.check(&inputs)?;
        }
        let mut slots: Vec<Slot> = (0..self.slots).map(|_| Slot::Empty).collect();
        for (input, dimension, slot) in &self.bound {
            let sizes = inputs.get(*input).map(Tensor::size).unwrap_or_default();
            let size = sizes.get(*dimension);
            let size =
                size.ok_or_else(|| anyhow::anyhow!("an input has no dimension {dimension}"))?;
            slots[*slot] = Slot::Number(Number::Int(*size));
        }
        for (value, (slot, is_number)) in inputs.into_iter().zip(&self.inputs) {
            slots[*slot] = match value {
                Some(value) if *is_number => Slot::Number(Number::Int(value.f_int64_value(&[0])?)),
                Some(value) => Slot::Tensor(value),
                None => Slot::Empty,
            };
        }
        Ok(Run { slots })
    }

    fn leave(&self, run: &Run, ctx: &Context) -> anyhow::Result<Values> {
        let one = |(operand, is_number): &(Operand, bool)| -> anyhow::Result<Option<Tensor>> {
            if !is_number {
                let value = run.maybe(operand);
                // A loss; evaluation concatenates the losses of all micro-batches.
                let alone = value.filter(|own| !ctx.train() && self.is_last && own.dim() == 0);
                return Ok(match alone {
                    Some(number) => Some(number.f_reshape([1])?),
                    None => value.map(Tensor::shallow_clone),
                });
            }
            let Number::Int(number) = run.number(operand)? else {
                anyhow::bail!("a number that is no integer crosses a cut");
            };
            Ok(Some(
                Tensor::f_from_slice(&[number])?.f_to_device(ctx.device())?,
            ))
        };
        self.outputs.iter().map(one).collect()
    }
}

impl Layer for Stretch {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        if let Some(why) = self.no_training.as_ref().filter(|_| ctx.train()) {
            anyhow::bail!("{why}");
        }
        let mut run = self.enter(inputs)?;
        let mut switched = None;
        for step in &self.steps {
            if switched
                .as_ref()
                .is_none_or(|(modes, _)| *modes != step.modes)
            {
                // Restore the previous modes first.
                drop(switched.take());
                switched = Some((step.modes, Switched::to(step.modes, ctx)?));
            }
            run.step(step, ctx).with_context(|| step.place.clone())?;
            for slot in &step.last_uses {
                run.slots[*slot] = Slot::Empty;
            }
        }
        drop(switched);
        self.leave(&run, ctx)
    }

    fn graph_safe(&self) -> bool {
        // Batch norms and counters change buffers, and an expert's rows are counted on the host.
        let effects = |step: &Step| {
            matches!(
                step.work,
                Work::BatchNorm { .. } | Work::Counts { .. } | Work::GroupedMm { .. }
            )
        };
        let travels = |own: &(Operand, bool)| own.1;
        !self.steps.iter().any(effects)
            && !self.inputs.iter().any(|own| own.1)
            && !self.outputs.iter().any(travels)
    }
}

/// The gradient mode and autocast of a node, restored on drop.
struct Switched {
    _autocast: Option<Autocast>,
    _no_grad: Option<tch::NoGradGuard>,
}

impl Switched {
    fn to(modes: Modes, ctx: &Context) -> anyhow::Result<Self> {
        // Autocast to single precision switches autocast off.
        let open = |kind: Kind| Autocast::open(ctx.device(), kind);
        Ok(Self {
            _autocast: modes.autocast.map(open).transpose()?,
            _no_grad: modes.no_grad.then(tch::no_grad_guard),
        })
    }
}

impl Run {
    fn step(&mut self, step: &Step, ctx: &Context) -> anyhow::Result<()> {
        match &step.work {
            Work::Operator(call) => {
                let tensors = call.tensors.iter().map(|own| self.tensor(own));
                let tensors = tensors.collect::<anyhow::Result<Vec<_>>>()?;
                let numbers = call.numbers.iter().map(|own| self.number(own));
                let numbers = numbers.collect::<anyhow::Result<Vec<_>>>()?;
                let made = call.run(ctx.train(), &tensors, &numbers)?;
                for (slot, made) in call.outputs.iter().zip(made) {
                    self.slots[*slot] = made.map_or(Slot::Empty, Slot::Tensor);
                }
            }
            Work::BatchNorm {
                layer,
                input,
                output,
            } => {
                let input = Values::from(self.tensor(input)?);
                let normal = layer.forward(input, ctx)?.into_one()?;
                self.slots[*output] = Slot::Tensor(normal);
            }
            Work::Counts { steps, output } => {
                steps.count(ctx);
                if let Some(output) = output {
                    self.slots[*output] = Slot::Tensor(steps.counted());
                }
            }
            Work::Size {
                tensor,
                dimension,
                output,
            } => {
                let sizes = self.tensor(tensor)?.size();
                let from_behind = if *dimension < 0 {
                    sizes.len() as i64
                } else {
                    0
                };
                let at = usize::try_from(dimension + from_behind).unwrap_or(usize::MAX);
                let size = sizes.get(at);
                let size = size.ok_or_else(|| {
                    anyhow::anyhow!("a tensor of shape {sizes:?} has no dimension {dimension}")
                })?;
                self.slots[*output] = Slot::Number(Number::Int(*size));
            }
            Work::Elements { tensor, output } => {
                let count = self.tensor(tensor)?.numel() as i64;
                self.slots[*output] = Slot::Number(Number::Int(count));
            }
            Work::Scalar {
                what,
                operands,
                output,
            } => {
                let numbers = operands.iter().map(|own| self.number(own));
                let numbers = numbers.collect::<anyhow::Result<Vec<_>>>()?;
                let number = what.apply(&numbers).map_err(anyhow::Error::msg)?;
                self.slots[*output] = Slot::Number(number);
            }
            Work::GroupedMm { operands, output } => {
                let [input, weight, ends] = operands;
                let (input, weight) = (self.tensor(input)?, self.tensor(weight)?);
                let made = grouped_mm(input, weight, self.tensor(ends)?)?;
                self.slots[*output] = Slot::Tensor(made);
            }
        }
        Ok(())
    }

    fn maybe<'a>(&'a self, operand: &'a Operand) -> Option<&'a Tensor> {
        match operand {
            Operand::Own(tensor) => Some(tensor),
            Operand::Slot(slot) => match &self.slots[*slot] {
                Slot::Tensor(tensor) => Some(tensor),
                _ => None,
            },
            Operand::Number(_) => None,
        }
    }

    fn tensor<'a>(&'a self, operand: &'a Operand) -> anyhow::Result<&'a Tensor> {
        let tensor = self.maybe(operand);
        tensor.ok_or_else(|| anyhow::anyhow!("a tensor that it takes is absent"))
    }

    fn number(&self, operand: &Operand) -> anyhow::Result<Number> {
        match operand {
            Operand::Number(number) => Ok(*number),
            Operand::Slot(slot) => match &self.slots[*slot] {
                Slot::Number(number) => Ok(*number),
                _ => anyhow::bail!("a number that it takes is absent"),
            },
            Operand::Own(_) => anyhow::bail!("a tensor stands where a number should"),
        }
    }
}

/// Returns the tensors of a layer's variables, by their index in the program.
fn variables(
    program: &Program,
    weights: &Weights,
    part: &Part,
    path: &nn::Path<'_>,
) -> anyhow::Result<HashMap<usize, (Tensor, String)>> {
    let mut all = HashMap::new();
    let mut made: HashMap<&str, Tensor> = HashMap::new();
    for own in &part.variables {
        let variable = &program.variables[own.variable];
        let here = own.name.as_deref().and_then(|name| made.get(name));
        let tensor = match (&own.name, here) {
            (_, Some(tensor)) => tensor.shallow_clone(),
            (None, None) => weights.load(&variable.name, path)?,
            (Some(name), None) => {
                let tensor = weights.load(&variable.name, path)?;
                let trained = weights.get(&variable.name)?.requires_grad;
                let tensor = add(
                    path,
                    name,
                    tensor,
                    variable.role == Role::Parameter,
                    trained,
                )?;
                made.insert(name, tensor.shallow_clone());
                tensor
            }
        };
        let name = own.name.clone().unwrap_or_else(|| variable.name.clone());
        all.insert(own.variable, (tensor, name));
    }
    Ok(all)
}

/// Registers a variable under its full name.
fn add(
    path: &nn::Path<'_>,
    name: &str,
    tensor: Tensor,
    is_parameter: bool,
    trained: bool,
) -> anyhow::Result<Tensor> {
    let (parents, last) = name.rsplit_once('.').unwrap_or(("", name));
    let parents = parents.split('.').filter(|own| !own.is_empty());
    let path = parents.fold(path.clone(), |path, own| path.sub(own));
    let tensor = path.add(last, tensor, is_parameter);
    if is_parameter && !trained {
        let _ = tensor.f_set_requires_grad(false)?;
    }
    Ok(tensor)
}
