//! A random model, its batch and the settings of its pipeline, as plain values.
//!
//! Every value of these types is a model that can be built: operands are numbers that
//! count back from the newest value that fits, dimensions and lengths are taken modulo
//! what there is, and an operation without an operand does nothing. So whatever is left
//! out or made smaller when a failure is shrunk, the rest is still a model.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

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

/// Any program.
pub(crate) fn programs() -> impl Strategy<Value = Program> {
    (
        batches(),
        vec(layers(), 1..=6),
        prop_oneof![
            6 => Just(Loss::Mean),
            1 => Just(Loss::Weighted),
            1 => Just(Loss::OutputsInPlace),
            1 => Just(Loss::TargetInPlace),
        ],
        vec(select(vec![After::Zero, After::Keep, After::Update]), 1..=3),
        settings(),
    )
        .prop_map(|(batch, layers, loss, steps, settings)| Program {
            batch,
            layers,
            loss,
            steps,
            settings,
        })
}

fn batches() -> impl Strategy<Value = Batch> {
    let more = (
        select(vec![Holds::Floats, Holds::Ids, Holds::Again]),
        hows(),
        prop::bool::weighted(0.3),
    );
    let first = (Just(Holds::Floats), hows(), prop::bool::weighted(0.3));
    let input = |(holds, how, gradient)| Input {
        holds,
        how,
        gradient,
    };
    (
        1..=7_i64,
        first.prop_map(input),
        vec(more.prop_map(input), 0..=1),
        hows(),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(samples, first, more, target, double)| Batch {
            samples,
            inputs: std::iter::once(first).chain(more).collect(),
            target,
            double,
        })
}

fn hows() -> impl Strategy<Value = How> {
    prop_oneof![
        4 => Just(How::Own),
        1 => Just(How::Rows),
        2 => Just(How::Columns),
        1 => Just(How::Transposed),
        1 => Just(How::Expanded),
    ]
}

fn layers() -> impl Strategy<Value = Layer> {
    (
        (prop::bool::weighted(0.5), vec(ops(), 1..=5)),
        (operand(), vec(operand(), 0..=2)),
        prop::bool::weighted(0.2),
        (prop::bool::weighted(0.1), prop::bool::weighted(0.1)),
        prop::bool::weighted(0.1),
    )
        .prop_map(|((linear, ops), (first, more), tied, frozen, idle)| Layer {
            ops: linear
                .then_some(Op::Linear(0))
                .into_iter()
                .chain(ops)
                .collect(),
            outputs: std::iter::once(first).chain(more).collect(),
            tied,
            frozen,
            idle,
        })
}

fn operand() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0_usize), 2 => Just(1_usize), 2 => 0..5_usize]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => fresh(),
        2 => odd(),
        4 => views(),
        4 => in_place(),
        1 => buffers(),
        2 => skips(),
    ]
}

fn fresh() -> impl Strategy<Value = Op> {
    let two = || (operand(), operand());
    prop_oneof![
        8 => operand().prop_map(Op::Linear),
        1 => operand().prop_map(Op::Tanh),
        1 => operand().prop_map(Op::Sin),
        1 => operand().prop_map(Op::Relu),
        1 => operand().prop_map(Op::Halve),
        1 => operand().prop_map(Op::Softmax),
        1 => operand().prop_map(Op::Clone),
        1 => operand().prop_map(Op::MeanOfLast),
        2 => two().prop_map(|(a, b)| Op::Add(a, b)),
        2 => two().prop_map(|(a, b)| Op::Times(a, b)),
        1 => two().prop_map(|(a, b)| Op::Cat(a, b)),
        1 => two().prop_map(|(a, b)| Op::Where(a, b)),
    ]
}

/// Values that are no floating tensors with a row for each sample.
fn odd() -> impl Strategy<Value = Op> {
    prop_oneof![
        operand().prop_map(Op::PositiveRows),
        operand().prop_map(Op::PositiveOnes),
        operand().prop_map(Op::Embed),
        operand().prop_map(Op::TimesMicro),
        operand().prop_map(Op::Ids),
        operand().prop_map(Op::IsPositive),
        operand().prop_map(Op::FromOther),
        Just(Op::Weight),
        Just(Op::Absent),
        operand().prop_map(Op::SometimesAbsent),
    ]
}

fn views() -> impl Strategy<Value = Op> {
    let place = || (operand(), 0..3_usize, 0..3_usize);
    prop_oneof![
        2 => operand().prop_map(Op::Same),
        3 => (place(), 0..3_usize)
            .prop_map(|((of, dim, start), len)| Op::Narrow { of, dim, start, len }),
        2 => place().prop_map(|(of, dim, index)| Op::Select { of, dim, index }),
        1 => (operand(), 0..3_usize).prop_map(|(of, dim)| Op::EveryOther { of, dim }),
        1 => operand().prop_map(Op::Strided),
        1 => operand().prop_map(Op::Transpose),
        1 => operand().prop_map(Op::Flatten),
        1 => operand().prop_map(Op::Pairs),
        1 => operand().prop_map(Op::Expand),
        1 => (operand(), 0..3_usize).prop_map(|(of, dim)| Op::Halves { of, dim }),
        1 => operand().prop_map(Op::Detach),
    ]
}

fn in_place() -> impl Strategy<Value = Op> {
    let two = || (operand(), operand());
    prop_oneof![
        3 => operand().prop_map(Op::DoubleIn),
        1 => operand().prop_map(Op::ReluIn),
        1 => operand().prop_map(Op::TanhIn),
        1 => operand().prop_map(Op::FillIn),
        2 => two().prop_map(|(to, from)| Op::AddIn { to, from }),
        2 => two().prop_map(|(to, from)| Op::CopyIn { to, from }),
        1 => operand().prop_map(Op::MaskIn),
        1 => operand().prop_map(Op::TimesBiasIn),
        1 => operand().prop_map(Op::AddBiasIn),
        1 => operand().prop_map(Op::CopyBiasIn),
        1 => operand().prop_map(Op::OtherIn),
    ]
}

fn buffers() -> impl Strategy<Value = Op> {
    prop_oneof![
        operand().prop_map(Op::Center),
        operand().prop_map(Op::CenterBefore),
        operand().prop_map(Op::Count),
        operand().prop_map(Op::SpectralNorm),
    ]
}

fn skips() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..2_usize, operand()).prop_map(|(name, of)| Op::Stash { name, of }),
        (0..2_usize).prop_map(|name| Op::Pop { name }),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let schedules: Vec<_> = ScheduleKind::ALL
        .into_iter()
        .filter(|kind| *kind != ScheduleKind::ForwardOnly)
        .collect();
    let flags = || vec(any::<bool>(), 1..=6);
    let scheduled = prop_oneof![
        4 => select(schedules).prop_map(Scheduled::Kind),
        1 => (vec(0..100_usize, 1..=40), flags())
            .prop_map(|(choices, halves)| Scheduled::Random { choices, halves }),
    ];
    let recompute = prop_oneof![
        3 => Just(Recomputing::Never),
        2 => Just(Recomputing::Always),
        1 => Just(Recomputing::ExceptLast),
        1 => flags().prop_map(Recomputing::Stages),
        2 => flags().prop_map(Recomputing::Layers),
    ];
    (
        1..=4_usize,
        1..=3_usize,
        1..=5_usize,
        scheduled,
        vec(0..6_usize, 0..=5),
        recompute,
        prop_oneof![5 => Just(Vec::new()), 1 => vec(0..4_usize, 1..=2)],
    )
        .prop_map(
            |(devices, chunks, micro_batches, schedule, cut, recompute, offload)| Settings {
                devices,
                chunks,
                micro_batches,
                schedule,
                cut,
                recompute,
                offload,
            },
        )
}
