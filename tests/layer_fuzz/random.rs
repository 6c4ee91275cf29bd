//! Random programs. `proptest` generates and shrinks them: earlier alternatives and smaller numbers are the
//! simpler ones.

use gpipe::partitioner::ScheduleKind;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::program::{
    After, Batch, Holds, How, Input, Layer, Loss, Op, Program, Recomputing, Scheduled, Settings,
};

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

/// Values other than floating tensors with a row for each sample.
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
