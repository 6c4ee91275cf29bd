//! Compiles the nodes of a layer to executable steps: resolves names and looks up operators.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use anyhow::Context as _;
use tch::{Device, Kind, Tensor, nn};

use super::counter::StepCounter;
use super::modes;
use super::parts::{self, Part};
use super::program::{Argument, Modes, Node, Origin, Program, Role, Scalar, ValueId, What};
use super::trusted::Trusted;
use gpipe_torch::layers::BatchNorm;
use gpipe_torch::{Given, Number, Operator};

/// An operand of a step.
#[derive(Debug)]
pub(super) enum Operand {
    Slot(usize),
    /// A variable of the layer.
    Own(Tensor),
    Number(Number),
}

/// An executable node.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) work: Work,
    pub(super) modes: Modes,
    /// Description and place of the node, for errors.
    pub(super) place: String,
    /// Slots not used by any later step or output.
    pub(super) last_uses: Vec<usize>,
}

#[derive(Debug)]
pub(super) enum Work {
    Operator(Call),
    /// Batch norm that updates its statistics once per mini-batch.
    BatchNorm {
        layer: BatchNorm,
        input: Operand,
        output: usize,
    },
    /// A buffer that counts steps.
    Counts {
        steps: Rc<StepCounter>,
        output: Option<usize>,
    },
    Size {
        tensor: Operand,
        dimension: i64,
        output: usize,
    },
    Elements {
        tensor: Operand,
        output: usize,
    },
    Scalar {
        what: Scalar,
        operands: Vec<Operand>,
        output: usize,
    },
    /// Operands: input, weight, ends.
    GroupedMm {
        operands: [Operand; 3],
        output: usize,
    },
}

/// A call of an operator.
#[derive(Debug)]
pub(super) struct Call {
    train: Result<Operator, String>,
    /// The operator for evaluation, if it differs.
    eval: Option<Result<Operator, String>>,
    /// Checks that libtorch does not make itself.
    trusted: Option<Trusted>,
    pub(super) tensors: Vec<Operand>,
    pub(super) numbers: Vec<Operand>,
    pub(super) outputs: Vec<usize>,
}

impl Call {
    fn operator(&self, train: bool) -> anyhow::Result<&Operator> {
        let own = match &self.eval {
            Some(eval) if !train => eval,
            _ => &self.train,
        };
        own.as_ref().map_err(|why| anyhow::anyhow!("{why}"))
    }

    /// Runs the operator.
    pub(super) fn run(
        &self,
        train: bool,
        tensors: &[&Tensor],
        numbers: &[Number],
    ) -> anyhow::Result<Vec<Option<Tensor>>> {
        if let Some(own) = &self.trusted {
            own.check(tensors)?;
        }
        let operator = self.operator(train)?;
        Ok(operator.run(tensors, numbers, self.outputs.len())?)
    }
}

/// State of compiling a layer.
pub(super) struct Compiler<'a> {
    program: &'a Program,
    variables: HashMap<usize, (Tensor, String)>,
    device: Device,
    slots: HashMap<ValueId, usize>,
    keep: Vec<ValueId>,
    /// Whether a copy may replace a view.
    may_copy: bool,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(
        program: &'a Program,
        part: &Part,
        variables: HashMap<usize, (Tensor, String)>,
        device: Device,
    ) -> Self {
        Self {
            program,
            variables,
            device,
            slots: HashMap::new(),
            keep: part.outputs.clone(),
            may_copy: program.changes_variables_alone(),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slot(&mut self, value: ValueId) -> usize {
        let next = self.slots.len();
        *self.slots.entry(value).or_insert(next)
    }

    pub(super) fn operand(&mut self, value: ValueId) -> Operand {
        if let Origin::Variable(number) = self.program.values[value.0].origin
            && let Some((tensor, _)) = self.variables.get(&number)
        {
            return Operand::Own(tensor.shallow_clone());
        }
        Operand::Slot(self.slot(value))
    }

    /// Compiles the steps of a layer.
    ///
    /// # Errors
    /// libtorch lacks an operator or an argument; the error gives its place.
    pub(super) fn steps(&mut self, part: &Part) -> anyhow::Result<Vec<Step>> {
        let mut steps = Vec::new();
        for number in &part.nodes {
            let node = &self.program.nodes[*number];
            let work = self.work(node).with_context(|| node.place())?;
            steps.push(Step {
                work,
                modes: node.modes,
                place: format!("{} (`{}`)", node.place(), node.shown()),
                last_uses: Vec::new(),
            });
        }
        self.find_last_uses(part, &mut steps);
        Ok(steps)
    }

    fn find_last_uses(&self, part: &Part, steps: &mut [Step]) {
        let mut seen: HashSet<ValueId> = self.keep.iter().copied().collect();
        for (step, number) in steps.iter_mut().zip(&part.nodes).rev() {
            let node = &self.program.nodes[*number];
            for value in node.inputs().chain(node.outputs.iter().copied()) {
                if seen.insert(value) {
                    step.last_uses.extend(self.slots.get(&value));
                }
            }
        }
    }

    fn work(&mut self, node: &Node) -> anyhow::Result<Work> {
        match &node.what {
            What::Operator { name, overload } => self.operator(node, name, overload),
            What::Scalar(what) => {
                let operands = node.arguments.iter().map(|(_, own)| self.scalar(own));
                let operands = operands.collect::<anyhow::Result<_>>()?;
                Ok(Work::Scalar {
                    what: *what,
                    operands,
                    output: self.only_output(node)?,
                })
            }
            What::Size => {
                let Some(Argument::Int(dimension)) = node.arguments.get(1).map(|(_, own)| own)
                else {
                    anyhow::bail!("the size of no fixed dimension");
                };
                Ok(Work::Size {
                    tensor: self.first(node)?,
                    dimension: *dimension,
                    output: self.only_output(node)?,
                })
            }
            What::GroupedMm => {
                let mut values = node.inputs();
                let mut next = || values.next().context("it takes three tensors");
                let values = [next()?, next()?, next()?];
                Ok(Work::GroupedMm {
                    operands: values.map(|own| self.operand(own)),
                    output: self.only_output(node)?,
                })
            }
            What::Count => Ok(Work::Elements {
                tensor: self.first(node)?,
                output: self.only_output(node)?,
            }),
        }
    }

    fn first(&mut self, node: &Node) -> anyhow::Result<Operand> {
        match node.arguments.first() {
            Some((_, Argument::Value(value))) => Ok(self.operand(*value)),
            _ => anyhow::bail!("it is given no tensor"),
        }
    }

    fn only_output(&mut self, node: &Node) -> anyhow::Result<usize> {
        let [output] = node.outputs[..] else {
            anyhow::bail!("it has {} outputs instead of one", node.outputs.len());
        };
        Ok(self.slot(output))
    }

    fn scalar(&mut self, argument: &Argument) -> anyhow::Result<Operand> {
        Ok(match argument {
            Argument::Value(value) => self.operand(*value),
            Argument::Int(number) => Operand::Number(Number::Int(*number)),
            Argument::Float(number) => Operand::Number(Number::Float(*number)),
            Argument::Bool(flag) => Operand::Number(Number::Bool(*flag)),
            other => anyhow::bail!("arithmetic with {other:?}"),
        })
    }

    fn operator(&mut self, node: &Node, name: &str, overload: &str) -> anyhow::Result<Work> {
        if let Some(own) = self.batch_norm(node)? {
            return Ok(own);
        }
        if let Some(own) = self.counts(node) {
            return Ok(own);
        }
        let written = self.written(node)?;
        let train = match modes::no_training_on_gpus(node).filter(|_| self.device.is_cuda()) {
            Some(why) => Err(why),
            None => Ok(self.open(node, name, overload, None)?),
        };
        let other = modes::in_evaluation(node);
        let eval = match (modes::no_evaluation(node).or(written), other) {
            (Some(why), _) => Some(Err(why)),
            (None, Some(other)) => Some(Ok(self.open(node, name, overload, Some(&other))?)),
            (None, None) => None,
        };
        let (mut tensors, mut numbers) = (Vec::new(), Vec::new());
        for value in node.inputs() {
            let operand = self.operand(value);
            if self.program.values[value.0].is_number {
                numbers.push(operand);
            } else {
                tensors.push(operand);
            }
        }
        Ok(Work::Operator(Call {
            train,
            eval,
            trusted: Trusted::of(node)?,
            tensors,
            numbers,
            outputs: node.outputs.iter().map(|own| self.slot(*own)).collect(),
        }))
    }

    /// Returns the variable that an argument refers to.
    fn variable(&self, node: &Node, name: &str) -> Option<(Tensor, &str, Role)> {
        let Some(Argument::Value(value)) = node.argument(name) else {
            return None;
        };
        let Origin::Variable(number) = self.program.values[value.0].origin else {
            return None;
        };
        let (tensor, own) = self.variables.get(&number)?;
        let role = self.program.variables[number].role;
        Some((tensor.shallow_clone(), own, role))
    }

    /// Compiles a batch norm that trains with running statistics to the library's own layer.
    fn batch_norm(&mut self, node: &Node) -> anyhow::Result<Option<Work>> {
        let trains = node.argument("training") == Some(&Argument::Bool(true));
        if node.operator() != "batch_norm" || !trains {
            return Ok(None);
        }
        let running = (self.variable(node, "running_mean"))
            .zip(self.variable(node, "running_var"))
            .map(|((mean, name, _), (variance, ..))| (mean, variance, name.to_owned()));
        let Some((mean, variance, name)) = running else {
            let has_none = matches!(node.argument("running_mean"), None | Some(Argument::None));
            anyhow::ensure!(
                has_none,
                "its running statistics are no buffers of the model"
            );
            return Ok(None);
        };
        let number = |name: &str| match node.argument(name) {
            Some(Argument::Float(number)) => Ok(*number),
            other => anyhow::bail!("its {name} is {other:?}: only a fixed number is taken"),
        };
        let config = nn::BatchNormConfig {
            eps: number("eps")?,
            momentum: number("momentum")?,
            ..Default::default()
        };
        let optional = |name: &str| match node.argument(name) {
            None | Some(Argument::None) => Ok(None),
            _ => match self.variable(node, name) {
                Some((tensor, ..)) => Ok(Some(tensor)),
                None => anyhow::bail!("its {name} is no parameter of the model"),
            },
        };
        let affine = (optional("weight")?, optional("bias")?);
        Ok(Some(Work::BatchNorm {
            layer: BatchNorm::around(affine, (mean, variance), name, config),
            input: self.first(node)?,
            output: self.only_output(node)?,
        }))
    }

    /// Compiles a buffer that grows by a constant at every step, such as `num_batches_tracked`.
    fn counts(&mut self, node: &Node) -> Option<Work> {
        let Some(Argument::Int(by)) = node.argument("other") else {
            return None;
        };
        let (buffer, name, role) = self.variable(node, "self")?;
        let counts = node.operator() == "add_" && role == Role::Buffer;
        if !counts || buffer.kind() != Kind::Int64 || buffer.numel() != 1 {
            return None;
        }
        let steps = Rc::new(StepCounter::new(buffer, *by, name.to_owned()));
        let output = node.outputs.first().map(|own| self.slot(*own));
        Some(Work::Counts { steps, output })
    }

    /// Explains that a node cannot run in evaluation because it changes a buffer.
    fn written(&self, node: &Node) -> anyhow::Result<Option<String>> {
        let Some((name, Argument::Value(value))) = node.arguments.first() else {
            return Ok(None);
        };
        let Origin::Variable(number) = self.program.values[value.0].origin else {
            return Ok(None);
        };
        if !node.operator().ends_with('_') || !parts::changes(self.program, number) {
            return Ok(None);
        }
        let variable = &self.program.variables[number];
        anyhow::ensure!(
            variable.role == Role::Buffer,
            "it changes `{}` in place ({name}), which is no persistent buffer: register it as one",
            variable.name
        );
        Ok(Some(format!(
            "it changes the buffer `{}` in evaluation too: export a second file after \
             `model.eval()` for it",
            variable.name
        )))
    }

    /// Looks up the operator and binds its constant arguments.
    fn open(
        &self,
        node: &Node,
        name: &str,
        overload: &str,
        other: Option<&(&str, Argument)>,
    ) -> anyhow::Result<Operator> {
        // Kernels of another device may produce outputs in another memory format, for which a view of
        // the exporting device is impossible: a `contiguous` before it had no effect there, and is not
        // in the file.
        let reshapes = self.may_copy && name == "aten::view" && overload.is_empty();
        let mut operator = Operator::open(if reshapes { "aten::reshape" } else { name }, overload)?;
        for (name, argument) in &node.arguments {
            let argument = match other {
                Some((own, other)) if own == name => other,
                _ => argument,
            };
            let name = if reshapes && name == "size" {
                "shape"
            } else {
                name
            };
            self.give(&mut operator, name, argument)?;
        }
        operator.ready()?;
        Ok(operator)
    }

    fn give(&self, operator: &mut Operator, name: &str, argument: &Argument) -> anyhow::Result<()> {
        let (flags, sizes): (Vec<bool>, Vec<Option<i64>>);
        let given = match argument {
            Argument::None => Given::None,
            Argument::Value(value) if self.program.values[value.0].is_number => Given::Number,
            Argument::Value(_) => Given::Tensor,
            Argument::Values(values) => {
                flags = values.iter().map(Option::is_some).collect();
                Given::Tensors(&flags)
            }
            Argument::Int(number) => Given::Int(*number),
            Argument::Float(number) => Given::Float(*number),
            Argument::Bool(flag) => Given::Bool(*flag),
            Argument::Text(text) => Given::Text(text),
            Argument::Ints(numbers) => Given::Ints(numbers),
            Argument::Floats(numbers) => Given::Floats(numbers),
            Argument::Bools(own) => Given::Bools(own),
            Argument::Sizes(own) => {
                sizes = own.iter().map(|size| size.ok()).collect();
                Given::Numbers(&sizes)
            }
            Argument::Device => Given::Device(self.device),
        };
        Ok(operator.set(name, given)?)
    }
}
