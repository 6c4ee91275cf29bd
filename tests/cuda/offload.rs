//! Activations and optimizer states offloaded to host memory.

mod pieces;

use gpipe::memory::{of_device, reset_device_peak};
use gpipe::partitioner::{Bytes, MicroId, ScheduleKind, Shape, StageId};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, PipelineBuilder, Sequential,
    checkpoint::{Checkpoint, Checkpointer, Extras},
    optim::{AdamW, Sgd},
    settings::Recompute,
};

use crate::harness::{Test, note};
use crate::rounds;
use crate::simulated::has_simulated_devices;
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, cross_entropy, snapshot};

const GPU: Device = Device::Cuda(0);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("offload::no_number_changes", same_bits),
        ("offload::the_host_waits_for_nothing", no_waits),
    ]
}

pub(crate) fn memory_tests() -> Vec<Test> {
    vec![
        ("offload::what_is_away_is_not_on_the_device", less_memory),
        ("offload::an_optimizer_may_begin_and_cease_to", on_and_off),
    ]
}

/// Tensors that leave, by the number of copies: only simulated devices count them.
pub(crate) fn counted_tests() -> Vec<Test> {
    pieces::tests()
}

fn builder(model: &Model, schedule: ScheduleKind, recompute: &Recompute) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&[GPU; 2])
        .schedule(schedule)
        .micro_batches(4)
        .recompute(recompute.clone())
        .offload_at_least(Bytes(1))
        .deterministic(true)
        .seed(5)
}

fn same_bits() {
    let schedules = [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
    ];
    let models = [
        models::mlp(),
        models::unet(),
        models::transformer(0.2),
        models::moving(),
    ];
    for (number, model) in models.into_iter().enumerate() {
        for (turn, schedule) in schedules.into_iter().enumerate() {
            if !rounds::has_turn(number + turn) {
                continue;
            }
            for recompute in [Recompute::Never, Recompute::ExceptLast] {
                let train = |offload: bool| {
                    let stages: &[usize] = if offload { &[0, 1] } else { &[] };
                    let mut pipe = builder(&model, schedule, &recompute)
                        .offload(stages)
                        .build()
                        .unwrap();
                    let mut optimizer = Optimizer::new(AdamW::default()).offload(offload);
                    if turn % 2 == 0 {
                        // Each parameter has a window: memory is used again while others are on
                        // their way.
                        optimizer = optimizer.offload_window(Bytes(1));
                    }
                    let (x, y) = (model.batch)(8);
                    for _ in 0..3 {
                        pipe.train_step(&x, &y, model.loss).unwrap();
                        optimizer.step(&mut pipe).unwrap();
                    }
                    snapshot(&mut pipe)
                };
                let case = format!("{} {schedule} {recompute}", model.name);
                assert_same_bits(&train(false), &train(true), &case);
            }
        }
    }
}

fn no_waits() {
    let model = models::transformer(0.1);
    let (x, y) = (model.batch)(8);
    let build = |forbid| {
        builder(&model, ScheduleKind::GPipe, &Recompute::Never)
            .offload(&[0, 1])
            .forbid_host_waits(forbid)
            .build()
            .unwrap()
    };
    build(false).train_step(&x, &y, model.loss).unwrap();
    let mut pipe = build(true);
    let mut optimizer = Optimizer::new(AdamW::default()).offload(true);
    for _ in 0..3 {
        pipe.train_step(&x, &y, model.loss).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
}

const LAYERS: usize = 8;

/// Width of a layer, and samples per micro-batch. A layer's output then has the minimum size for offloading.
fn side() -> i64 {
    if has_simulated_devices() { 256 } else { 1024 }
}

fn wide() -> Sequential {
    let layers = (0..LAYERS).fold(Sequential::new(), |model, number| {
        model.layer(format!("wide.{number}"), |p| {
            let linear = nn::linear(p, side(), side(), nn::LinearConfig::default());
            nn::func(move |x: &Tensor| x.apply(&linear).gelu("none"))
        })
    });
    layers.layer("head", |p| {
        nn::linear(p, side(), 4, nn::LinearConfig::default())
    })
}

/// Activations offloaded to host memory.
#[derive(Clone, Copy, PartialEq)]
enum Away {
    None,
    /// Activations of half of the micro-batches, by the schedule.
    Half,
    /// All activations, and the optimizer's states.
    All,
}

/// The peak of a step and the use after it, without memory that outlives the pipeline: cuBLAS's workspace for
/// every stream, which libtorch keeps.
fn memory(offload: Away) -> (u64, u64) {
    let stages: &[usize] = if offload == Away::All { &[0] } else { &[] };
    let schedule = ScheduleKind::GPipe.generate(Shape::new(1, 16)).unwrap();
    let half = (0..8).map(|micro| (StageId(0), MicroId(micro)));
    let half = half.filter(|_| offload == Away::Half);
    let schedule = schedule.schedule().clone().with_offloads(half);
    let mut pipe = Pipeline::builder(wide())
        .devices(&[GPU])
        .custom_schedule(schedule.check().unwrap())
        .offload(stages)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default()).offload(offload == Away::All);
    let samples = 16 * side();
    let x = Tensor::ones([samples, side()], (Kind::Float, Device::Cpu));
    let y = Tensor::zeros([samples], (Kind::Int64, Device::Cpu));
    for _ in 0..2 {
        reset_device_peak(GPU).unwrap();
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
    let memory = of_device(GPU).unwrap();
    drop((pipe, optimizer, x, y));
    gpipe::tch::Cuda::synchronize(0);
    let stays = of_device(GPU).unwrap().current;
    (memory.peak - stays, memory.current - stays)
}

fn less_memory() {
    let ((peak, after), (least, away)) = (memory(Away::None), memory(Away::All));
    note("peak and held bytes", vec![peak, after]);
    note("peak and held bytes with offload", vec![least, away]);
    // Two tensors per layer (of 4 MiB on a GPU): activations of a micro-batch, and the moments of the
    // weights.
    let two = (LAYERS as u64) * 2 * 4 * (side() * side()) as u64;
    // Activations of all 16 micro-batches, against three.
    assert!(least + 10 * two < peak, "{least} {peak}");
    // The schedule offloads the first half: of 16 there remain 8 and those in transit.
    let (some, _) = memory(Away::Half);
    note("peak bytes with half offloaded", vec![some]);
    assert!(
        least + two < some && some + 5 * two < peak,
        "{least} {some} {peak}"
    );
    assert!(away + two * 9 / 10 < after, "{away} {after}");
}

/// Weights in one way, biases in another; from one pair of steps to the next with offload or
/// without, in the same training or one that goes on from its checkpoint.
fn on_and_off() {
    let model = models::mlp();
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::default()
    };
    let build = || {
        let pipe = builder(&model, ScheduleKind::OneFOneB, &Recompute::Never);
        let optimizer = Optimizer::new(AdamW::default());
        let optimizer = optimizer.group(|name| name.ends_with("bias"), momentum);
        (pipe.build().unwrap(), optimizer)
    };
    let train = |offload: [bool; 3], resume: bool| {
        let (mut pipe, mut optimizer) = build();
        let (x, y) = (model.batch)(8);
        for offload in offload {
            if resume {
                let folder = tempfile::tempdir().unwrap();
                let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
                let saved = checkpointer.save(&mut pipe, &optimizer, Extras::new(0));
                saved.unwrap();
                checkpointer.finish().unwrap();
                (pipe, optimizer) = build();
                let checkpoint = Checkpoint::newest(folder.path()).unwrap();
                checkpoint.restore(&mut pipe, &mut optimizer).unwrap();
            }
            optimizer = optimizer.offload(offload);
            for _ in 0..2 {
                pipe.train_step(&x, &y, model.loss).unwrap();
                optimizer.step(&mut pipe).unwrap();
            }
        }
        snapshot(&mut pipe)
    };
    let plain = train([false; 3], false);
    for offload in [[true, false, true], [false, true, true]] {
        for resume in [false, true] {
            let case = format!("{offload:?}, resume {resume}");
            assert_same_bits(&plain, &train(offload, resume), &case);
        }
    }
}
