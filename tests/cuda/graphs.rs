//! CUDA graphs: replays must give the same numbers as a run without graphs.

mod pair;
mod reasons;
mod slots;

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, PipelineBuilder, Sequential, optim::AdamW, report::GraphUse,
    settings::Precision,
};

use crate::harness::{Test, note};
use crate::rounds;
use crate::simulated::has_simulated_devices;
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, cross_entropy, snapshot};

const GPU: Device = Device::Cuda(0);
/// The first three steps run without graphs.
const STEPS: usize = 7;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("graphs::bits_are_those_without_graphs", same_bits),
        (
            "graphs::bf16_and_fp16_have_the_same_bits_too",
            shorter_types,
        ),
        ("graphs::later_steps_only_replay", replays),
        ("graphs::a_short_last_batch_runs_without", short_batches),
        (
            "graphs::a_stage_that_has_the_host_wait_goes_on_without",
            waits,
        ),
        (
            "graphs::the_host_waits_for_nothing_in_steps_that_replay",
            no_waits,
        ),
        (
            "graphs::a_capture_that_fails_leaves_a_pipeline_that_works",
            failed_capture,
        ),
    ]
}

/// Tests to which no order of things makes a difference.
pub(crate) fn once_tests() -> Vec<Test> {
    [slots::tests(), reasons::tests()].concat()
}

struct Trained {
    losses: Vec<f64>,
    values: Vec<(String, Tensor)>,
    uses: Vec<GraphUse>,
}

fn builder(model: &Model, stages: usize, schedule: ScheduleKind) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&vec![GPU; stages])
        .micro_batches(4)
        .schedule(schedule)
        .deterministic(true)
        .seed(3)
}

fn train(builder: PipelineBuilder, model: &Model, sizes: &[i64]) -> Trained {
    let mut pipe = builder.build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut losses = Vec::new();
    for size in sizes {
        let (x, y) = (model.batch)(*size);
        losses.push(
            pipe.train_step(&x, &y, model.loss)
                .unwrap()
                .read()
                .unwrap()
                .loss,
        );
        losses.push(pipe.clip_grad_norm(1.0).unwrap());
        optimizer.step(&mut pipe).unwrap();
    }
    Trained {
        losses,
        values: snapshot(&mut pipe),
        uses: pipe.cuda_graphs().unwrap(),
    }
}

/// Trains without and with graphs, compares the numbers, and returns the latter training.
fn same(build: impl Fn() -> PipelineBuilder, model: &Model, sizes: &[i64], case: &str) -> Trained {
    let plain = train(build(), model, sizes);
    let graphs = train(build().cuda_graphs(true), model, sizes);
    note(&format!("losses and norms, {case}"), graphs.losses.clone());
    assert_eq!(plain.losses, graphs.losses, "{case}");
    assert_same_bits(&plain.values, &graphs.values, case);
    graphs
}

/// Notes captured and replayed graphs, stage by stage.
fn note_uses(case: &str, uses: &[GraphUse]) {
    let counts = uses.iter().map(|used| vec![used.captured, used.replayed]);
    note(
        &format!("captures and replays, {case}"),
        counts.collect::<Vec<_>>(),
    );
}

fn all_replay(trained: &Trained, case: &str) {
    note_uses(case, &trained.uses);
    for used in &trained.uses {
        assert_eq!(used.eager, None, "{case}");
        assert!(used.replayed > used.captured, "{case}: {used:?}");
    }
}

fn same_bits() {
    // Skips that cross stages, several outputs, and layers that read what the micro-batches before
    // have left in their buffers, too.
    let models = [
        models::mlp(),
        models::transformer(0.0),
        models::tied(),
        models::unet(),
        models::multi_output(),
        models::moving(),
    ];
    let cases = [
        (1, ScheduleKind::GPipe),
        (2, ScheduleKind::OneFOneB),
        (4, ScheduleKind::OneFOneB),
        (2, ScheduleKind::ZbH1),
    ];
    for (number, model) in models.into_iter().enumerate() {
        for (turn, (stages, schedule)) in cases.into_iter().enumerate() {
            if !rounds::has_turn(number + turn) {
                continue;
            }
            let case = format!("{} {schedule} {stages}", model.name);
            let build = || builder(&model, stages, schedule);
            all_replay(&same(build, &model, &[8; STEPS], &case), &case);
        }
    }
}

fn shorter_types() {
    let model = models::transformer(0.0);
    for precision in [Precision::Bf16, Precision::Fp16] {
        let case = precision.to_string();
        let build = || builder(&model, 2, ScheduleKind::OneFOneB).precision(precision);
        all_replay(&same(build, &model, &[8; STEPS], &case), &case);
    }
}

fn replays() {
    let model = models::transformer(0.0);
    let mut pipe = builder(&model, 2, ScheduleKind::OneFOneB)
        .cuda_graphs(true)
        .build()
        .unwrap();
    let (x, y) = (model.batch)(8);
    let mut step = || {
        pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.zero_grad().unwrap();
        let uses = pipe.cuda_graphs().unwrap();
        uses.iter()
            .map(|used| (used.captured, used.replayed))
            .collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(step(), [(0, 0), (0, 0)]);
    }
    // One forward and one backward for each micro-batch that a stage has in flight.
    assert_eq!(step(), [(4, 8), (2, 8)]);
    assert_eq!(step(), [(4, 16), (2, 16)]);
}

fn short_batches() {
    let model = models::mlp();
    let build = || builder(&model, 2, ScheduleKind::OneFOneB);
    let sizes = [8, 8, 8, 8, 5, 8, 7, 8];
    all_replay(
        &same(build, &model, &sizes, "short batches"),
        "short batches",
    );
}

/// Two stages, the first of which runs `extra` on its layer's output.
fn with_extra(extra: fn(&Tensor)) -> Sequential {
    Sequential::new()
        .layer("one", move |p| {
            let linear = nn::linear(p, 8, 8, nn::LinearConfig::default());
            nn::func_t(move |x, _| {
                let out = x.apply(&linear);
                extra(&out);
                out
            })
        })
        .layer("two", |p| nn::linear(p, 8, 5, nn::LinearConfig::default()))
}

/// The losses, and the uses of graphs.
fn steps_of(model: Sequential, graphs: bool) -> (Vec<f64>, Vec<GraphUse>) {
    let mut pipe = Pipeline::builder(model)
        .devices(&[GPU; 2])
        .micro_batches(2)
        .deterministic(true)
        .cuda_graphs(graphs)
        .build()
        .unwrap();
    let x = Tensor::arange(64, (Kind::Float, Device::Cpu)).view([8, 8]) / 64.0;
    let y = Tensor::arange(8, (Kind::Int64, Device::Cpu)).remainder(5);
    let mut optimizer = Optimizer::new(AdamW::default());
    let losses = (0..STEPS).map(|_| {
        let loss = pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .loss;
        optimizer.step(&mut pipe).unwrap();
        loss
    });
    let losses = losses.collect();
    (losses, pipe.cuda_graphs().unwrap())
}

fn waits() {
    let reading = |out: &Tensor| assert!(out.mean(Kind::Float).double_value(&[]).is_finite());
    let (plain, _) = steps_of(with_extra(reading), false);
    let (losses, uses) = steps_of(with_extra(reading), true);
    assert_eq!(plain, losses);
    assert!(uses[0].eager.as_ref().unwrap().contains("host wait"));
    assert_eq!((uses[0].captured, uses[1].eager.as_ref()), (0, None));
}

fn no_waits() {
    let model = models::transformer(0.0);
    let mut pipe = builder(&model, 2, ScheduleKind::OneFOneB)
        .cuda_graphs(true)
        .forbid_host_waits(true)
        .build()
        .unwrap();
    // A kernel's loading at its first use is not part of a step.
    train(builder(&model, 2, ScheduleKind::OneFOneB), &model, &[8]);
    let (x, y) = (model.batch)(8);
    for _ in 0..STEPS {
        pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.zero_grad().unwrap();
    }
    let uses = pipe.cuda_graphs().unwrap();
    note_uses("no waits", &uses);
    assert!(uses.iter().all(|used| used.replayed > 0), "{uses:?}");
}

/// Waits once, in the capture, where the check before cannot notice it.
fn failed_capture() {
    thread_local! {
        static RUNS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
    let late = |out: &Tensor| {
        RUNS.set(RUNS.get() + 1);
        // Two runs per step: the seventh is the capture.
        if RUNS.get() == 7 {
            let _ = out.mean(Kind::Float).double_value(&[]);
        }
    };
    let (plain, _) = steps_of(with_extra(|_| {}), false);
    let (losses, uses) = steps_of(with_extra(late), true);
    assert_eq!(plain, losses);
    let why = uses[0].eager.as_ref().unwrap();
    assert!(why.contains("its capture failed"), "{why}");
    assert_eq!(uses[0].replayed, 0);
    // The allocator has left the graph pool, so memory used by several streams is returned. Otherwise the
    // excess would be much larger than cuBLAS's workspaces for new streams.
    let held = || {
        gpipe::tch::Cuda::synchronize(0);
        gpipe::memory::of_device(GPU).unwrap().current
    };
    let before = held();
    let (large, steps, cublas) = if has_simulated_devices() {
        (1 << 20, 40, 2 << 20)
    } else {
        (16 << 20, 40, 32 << 20)
    };
    let mut pipe = Pipeline::builder(with_extra(|_| {}))
        .devices(&[GPU; 2])
        .micro_batches(2)
        .build()
        .unwrap();
    // With two micro-batches, 8 floats of each sample cross the stage boundary.
    let samples = 2 * large / (8 * 4);
    let x = Tensor::ones([samples, 8], (Kind::Float, Device::Cpu));
    let y = Tensor::zeros([samples], (Kind::Int64, Device::Cpu));
    for _ in 0..steps {
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        pipe.zero_grad().unwrap();
    }
    drop(pipe);
    let after = held();
    assert!(after < before + 4 * cublas, "{before} {after}");
}
