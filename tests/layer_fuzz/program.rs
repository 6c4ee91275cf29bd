//! A random model, its batch and the settings of its pipeline, as plain values.
//!
//! Every value of these types is a model that can be built: operands are numbers that
//! count back from the newest value that fits, dimensions and lengths are taken modulo
//! what there is, and an operation without an operand does nothing. So whatever is left
//! out or made smaller when a failure is shrunk, the rest is still a model.

use gpipe::partitioner::ScheduleKind;

/// One program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) batch: Batch,
    pub(crate) layers: Vec<Layer>,
    pub(crate) loss: Loss,
    /// One entry a step: what follows it.
    pub(crate) steps: Vec<After>,
    pub(crate) settings: Settings,
}

/// What the caller gives to a step.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) samples: i64,
    pub(crate) inputs: Vec<Input>,
    pub(crate) target: How,
    /// Whether everything is in double precision.
    pub(crate) double: bool,
}

/// One tensor of the input.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) holds: Holds,
    pub(crate) how: How,
    pub(crate) gradient: bool,
}

/// What a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Floats,
    Ids,
    /// The first tensor once more.
    Again,
}

/// How a tensor of the caller lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Dense, of its own.
    Own,
    /// Some rows of a larger tensor.
    Rows,
    /// Some columns of a larger tensor.
    Columns,
    Transposed,
    /// One column, expanded.
    Expanded,
}

/// One layer: operations on a list of values, which begins as its inputs.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) ops: Vec<Op>,
    /// Which of the values it returns, counted from the newest; the first of them among
    /// the floating ones.
    pub(crate) outputs: Vec<usize>,
    /// Whether its weight is the same as that of other layers with this flag.
    pub(crate) tied: bool,
    /// Whether its weight, and its bias, are frozen.
    pub(crate) frozen: (bool, bool),
    /// Whether it has a parameter that nothing uses.
    pub(crate) idle: bool,
}

/// An operation; `usize` fields choose operands, dimensions, places and lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    // New values.
    Linear(usize),
    Tanh(usize),
    Sin(usize),
    Relu(usize),
    Halve(usize),
    Softmax(usize),
    Clone(usize),
    Add(usize, usize),
    /// The first times the hyperbolic tangent of the second.
    Times(usize, usize),
    Cat(usize, usize),
    Where(usize, usize),
    MeanOfLast(usize),
    /// The rows whose sum is positive.
    PositiveRows(usize),
    /// The elements that are positive.
    PositiveOnes(usize),
    Embed(usize),
    /// Times 1 + the number of the micro-batch.
    TimesMicro(usize),
    Ids(usize),
    IsPositive(usize),
    FromOther(usize),
    /// The layer's weight itself.
    Weight,
    Absent,
    /// In every other micro-batch.
    SometimesAbsent(usize),
    // Views.
    Same(usize),
    Narrow {
        of: usize,
        dim: usize,
        start: usize,
        len: usize,
    },
    Select {
        of: usize,
        dim: usize,
        index: usize,
    },
    EveryOther {
        of: usize,
        dim: usize,
    },
    /// Every other row, by size and strides.
    Strided(usize),
    Transpose(usize),
    Flatten(usize),
    Pairs(usize),
    Expand(usize),
    Halves {
        of: usize,
        dim: usize,
    },
    Detach(usize),
    // In place.
    DoubleIn(usize),
    ReluIn(usize),
    TanhIn(usize),
    FillIn(usize),
    AddIn {
        to: usize,
        from: usize,
    },
    CopyIn {
        to: usize,
        from: usize,
    },
    MaskIn(usize),
    TimesBiasIn(usize),
    AddBiasIn(usize),
    CopyBiasIn(usize),
    /// Of integers and booleans.
    OtherIn(usize),
    // Buffers.
    /// Moves a running mean, then subtracts it.
    Center(usize),
    /// Subtracts a running mean, then moves it.
    CenterBefore(usize),
    /// Counts forward passes, then multiplies with something made of the count.
    Count(usize),
    /// A step of the power iteration over the weight, then divides by the norm found.
    SpectralNorm(usize),
    // Skips.
    Stash {
        name: usize,
        of: usize,
    },
    Pop {
        name: usize,
    },
}

impl Op {
    /// Whether it makes views.
    pub(crate) fn is_view(self) -> bool {
        matches!(
            self,
            Op::Narrow { .. }
                | Op::Select { .. }
                | Op::EveryOther { .. }
                | Op::Strided(_)
                | Op::Transpose(_)
                | Op::Flatten(_)
                | Op::Pairs(_)
                | Op::Expand(_)
                | Op::Halves { .. }
        )
    }

    /// Whether it writes to a value that was there before.
    pub(crate) fn is_in_place(self) -> bool {
        matches!(
            self,
            Op::DoubleIn(_)
                | Op::ReluIn(_)
                | Op::TanhIn(_)
                | Op::FillIn(_)
                | Op::AddIn { .. }
                | Op::CopyIn { .. }
                | Op::MaskIn(_)
                | Op::TimesBiasIn(_)
                | Op::AddBiasIn(_)
                | Op::CopyBiasIn(_)
                | Op::OtherIn(_)
        )
    }
}

impl Program {
    /// Whether any layer or the loss function writes to a value that was there before.
    pub(crate) fn writes(&self) -> bool {
        let mut ops = self.layers.iter().flat_map(|layer| &layer.ops);
        self.loss == Loss::OutputsInPlace || ops.any(|op| op.is_in_place())
    }

    /// The same model in one stage, with nothing recomputed.
    pub(crate) fn uncut(&self) -> Self {
        let mut program = self.clone();
        program.settings = Settings {
            devices: 1,
            chunks: 1,
            micro_batches: self.settings.micro_batches,
            schedule: Scheduled::Kind(ScheduleKind::GPipe),
            cut: Vec::new(),
            recompute: Recomputing::Never,
            offload: Vec::new(),
        };
        program
    }
}

/// What the loss function does beside its sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Mean,
    /// Returns a weight.
    Weighted,
    /// Doubles the outputs in place.
    OutputsInPlace,
    /// Doubles the target in place.
    TargetInPlace,
}

/// What is done after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Gradients are cleared.
    Zero,
    /// Gradients stay, and the next step adds to them.
    Keep,
    /// Parameters move along their gradients, which are cleared.
    Update,
}

/// How the pipeline is built; numbers are fitted to the program.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) chunks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) schedule: Scheduled,
    /// The stages that have a layer more than the others.
    pub(crate) cut: Vec<usize>,
    pub(crate) recompute: Recomputing,
    /// Stages that keep what their graphs saved elsewhere.
    pub(crate) offload: Vec<usize>,
}

/// The order of a pipeline's actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scheduled {
    Kind(ScheduleKind),
    /// Any legal order. Stages whose flag is set go backward in halves.
    Random {
        choices: Vec<usize>,
        halves: Vec<bool>,
    },
}

/// What is recomputed; flags repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recomputing {
    Never,
    Always,
    ExceptLast,
    Stages(Vec<bool>),
    Layers(Vec<bool>),
}
