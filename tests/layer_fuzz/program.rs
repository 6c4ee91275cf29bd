//! A random model, its batch and its pipeline's settings, as plain values.
//!
//! Every value of these types is a valid model: operands count back from the newest value that fits,
//! dimensions and lengths are taken modulo the available ones, and an operation without an operand does
//! nothing. So any part can be removed or reduced when a failure is shrunk.

use gpipe::partitioner::ScheduleKind;

/// One program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) batch: Batch,
    pub(crate) layers: Vec<Layer>,
    pub(crate) loss: Loss,
    /// The action after each step.
    pub(crate) steps: Vec<After>,
    pub(crate) settings: Settings,
}

/// The caller's inputs to a step.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) samples: i64,
    pub(crate) inputs: Vec<Input>,
    pub(crate) target: How,
    /// Whether to use double precision.
    pub(crate) double: bool,
}

/// One tensor of the input.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) holds: Holds,
    pub(crate) how: How,
    pub(crate) gradient: bool,
}

/// Content of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Floats,
    Ids,
    /// The first tensor again.
    Again,
}

/// Memory layout of a tensor of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Dense, in its own memory.
    Own,
    /// Some rows of a larger tensor.
    Rows,
    /// Some columns of a larger tensor.
    Columns,
    Transposed,
    /// One column, expanded.
    Expanded,
}

/// One layer: operations on a list of values, initially its inputs.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) ops: Vec<Op>,
    /// The returned values, counted from the newest; the first counts only floating ones.
    pub(crate) outputs: Vec<usize>,
    /// Whether its weight is shared with other layers that have this flag.
    pub(crate) tied: bool,
    /// Whether its weight, and its bias, are frozen.
    pub(crate) frozen: (bool, bool),
    /// Whether it has an unused parameter.
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
    /// Times 1 + the micro-batch's number.
    TimesMicro(usize),
    Ids(usize),
    IsPositive(usize),
    FromOther(usize),
    /// The layer's weight itself.
    Weight,
    Absent,
    /// Absent in every other micro-batch.
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
    /// In-place change of integers and booleans.
    OtherIn(usize),
    // Buffers.
    /// Updates a running mean, then subtracts it.
    Center(usize),
    /// Subtracts a running mean, then updates it.
    CenterBefore(usize),
    /// Counts forward passes, then multiplies by a function of the count.
    Count(usize),
    /// One power iteration on the weight, then a division by the estimated norm.
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
    /// Whether it creates views.
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

    /// Whether it writes to an existing value.
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
    /// Whether any layer or the loss function writes to an existing value.
    pub(crate) fn writes(&self) -> bool {
        let mut ops = self.layers.iter().flat_map(|layer| &layer.ops);
        self.loss == Loss::OutputsInPlace || ops.any(|op| op.is_in_place())
    }

    /// The same model in one stage, without recomputation.
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

/// An additional effect of the loss function.
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

/// The action after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Clears the gradients.
    Zero,
    /// Keeps the gradients, so that the next step adds to them.
    Keep,
    /// Moves parameters along their gradients, and clears these.
    Update,
}

/// The pipeline's settings; numbers are adapted to the program.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) chunks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) schedule: Scheduled,
    /// Stages with an extra layer.
    pub(crate) cut: Vec<usize>,
    pub(crate) recompute: Recomputing,
    /// Stages that offload the saved values of their graphs.
    pub(crate) offload: Vec<usize>,
}

/// The order of a pipeline's actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scheduled {
    Kind(ScheduleKind),
    /// Any legal order. Flagged stages split their backwards.
    Random {
        choices: Vec<usize>,
        halves: Vec<bool>,
    },
}

/// Recomputation; flags repeat cyclically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recomputing {
    Never,
    Always,
    ExceptLast,
    Stages(Vec<bool>),
    Layers(Vec<bool>),
}
