//! Short trainings that reach the calls to be left out.

mod callers;
mod clocks;
mod failing;
mod processes;

use gpipe::data::{Dataset, Made};
use gpipe::partitioner::{Bytes, ScheduleKind};
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{Optimizer, Pipeline, PipelineBuilder, optim::AdamW};

use crate::harness::Test;
use crate::simulated;
use crate::support::models::{self, Model};
use crate::support::snapshot;

const GPUS: [Device; 3] = [Device::Cuda(0), Device::Cuda(1), Device::Cuda(2)];

/// Prefix of a run's numbers.
pub(super) const NUMBERS: &str = "numbers: ";

/// The runs, each in its own process.
pub(crate) const PARTS: [Test; 12] = [
    ("mutations::between_devices", between_devices),
    ("mutations::with_the_host", with_the_host),
    ("mutations::offloaded", offloaded),
    ("mutations::loaded", loaded),
    ("mutations::captured", captured),
    ("mutations::captured_beside", captured_beside),
    ("mutations::callers_streams", callers::streams),
    ("mutations::by_way_of_the_host", callers::by_way_of_the_host),
    ("mutations::timed", clocks::timed),
    ("mutations::graphs_dropped", graphs_dropped),
    ("mutations::stalled", failing::stalled),
    ("mutations::over_processes", processes::over_processes),
];

fn builder(model: &Model, devices: &[Device]) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(devices)
        .micro_batches(4)
        .schedule(ScheduleKind::OneFOneB)
        .deterministic(true)
        .seed(3)
}

/// Trains, and prints the numbers. The caller computes each batch in its own stream and frees it at once; it
/// also uses and frees the results.
fn train(mut pipe: Pipeline, mut optimizer: Optimizer, model: &Model, steps: usize) {
    let batch = || {
        let (x, y) = (model.batch)(8);
        let x = if x.is_floating_point() {
            x * 1.0
        } else {
            x + 0
        };
        (x, y + 0)
    };
    let mut reports = Vec::new();
    for _ in 0..steps {
        let (x, y) = batch();
        reports.push(pipe.train_step(&x, &y, model.loss).unwrap());
        drop((x, y));
        pipe.clip_gradients(1.0).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
    let outputs: Vec<Tensor> = (0..3)
        .map(|_| pipe.forward(&batch().0).unwrap() + 1.0)
        .collect();
    let losses: Vec<f64> = reports
        .iter()
        .map(|report| report.read().unwrap().loss)
        .collect();
    print(&losses, &outputs);
    let values = snapshot(&mut pipe);
    print(
        &[],
        &values
            .into_iter()
            .map(|(_, value)| value)
            .collect::<Vec<_>>(),
    );
}

fn print(numbers: &[f64], tensors: &[Tensor]) {
    let bits: Vec<u64> = numbers.iter().map(|number| number.to_bits()).collect();
    let sums: Vec<u64> = tensors
        .iter()
        .map(|tensor| tensor.abs().sum(Kind::Double).double_value(&[]).to_bits())
        .collect();
    println!("{NUMBERS}{bits:?} {sums:?}");
}

fn between_devices() {
    let model = models::transformer(0.1);
    let pipe = builder(&model, &GPUS).build().unwrap();
    train(pipe, Optimizer::new(AdamW::default()), &model, 3);
    let (x, y) = (model.batch)(8);
    let mut pipe = builder(&model, &GPUS)
        .forbid_host_waits(true)
        .build()
        .unwrap();
    pipe.train_step(&x, &y, model.loss).unwrap();
    // The caller's tensors are on a device without a stage.
    let model = models::tied();
    let pipe = builder(&model, &GPUS[..2]).build().unwrap();
    let mut there = model;
    there.batch = |size| {
        let (x, y) = (models::tied().batch)(size);
        (x.to_device(GPUS[2]), y.to_device(GPUS[2]))
    };
    train(pipe, Optimizer::new(AdamW::default()), &there, 2);
}

fn with_the_host() {
    let model = models::mlp();
    let devices = [GPUS[0], Device::Cpu, GPUS[0]];
    let pipe = builder(&model, &devices).build().unwrap();
    train(pipe, Optimizer::new(AdamW::default()), &model, 3);
    let pipe = builder(&model, &[Device::Cpu, GPUS[0]]).build().unwrap();
    let mut there = model;
    there.batch = |size| {
        let (x, y) = (models::mlp().batch)(size);
        (x.to_device(GPUS[1]), y.to_device(GPUS[1]))
    };
    train(pipe, Optimizer::new(AdamW::default()), &there, 2);
}

fn offloaded() {
    let model = models::transformer(0.1);
    for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
        let pipe = builder(&model, &GPUS[..2])
            .schedule(schedule)
            .offload(&[0, 1])
            .offload_at_least(Bytes(1))
            .build()
            .unwrap();
        // Each parameter is a separate window.
        let optimizer = Optimizer::new(AdamW::default())
            .offload(true)
            .offload_window(Bytes(1));
        train(pipe, optimizer, &model, 3);
    }
    failing::undone_and_saved(&model);
}

fn loaded() {
    let model = models::mlp();
    let items = Made::new(32, |_| {
        let (x, y) = (models::mlp().batch)(1);
        Ok((x.squeeze_dim(0), y.squeeze_dim(0)))
    });
    // In a stream of the caller: libtorch's default stream is the same on all threads.
    simulated::sim_enter_stream(0, simulated::sim_new_stream(0));
    let batches = Dataset::new(items).batch(8).workers(2).to(GPUS[0]);
    let mut pipe = builder(&model, &[GPUS[0]; 2]).build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut losses = Vec::new();
    for batch in batches.load().unwrap() {
        let (x, y) = batch.unwrap();
        // Used only by the caller.
        let scaled = &x * 1.0;
        drop(x);
        let report = pipe.train_step(&scaled, &y, model.loss).unwrap();
        drop((scaled, y));
        optimizer.step(&mut pipe).unwrap();
        losses.push(report);
    }
    let losses = losses.iter().map(|report| report.read().unwrap().loss);
    print(&losses.collect::<Vec<_>>(), &[]);
}

fn captured() {
    let model = models::mlp();
    let pipe = builder(&model, &[GPUS[0]; 4])
        .cuda_graphs(true)
        .build()
        .unwrap();
    train(pipe, Optimizer::new(AdamW::default()), &model, 6);
}

/// Two pipelines on the same devices, each captured while the other trains.
fn captured_beside() {
    let train = || {
        let model = models::mlp();
        for _ in 0..4 {
            let devices = [GPUS[0], GPUS[1], GPUS[0]];
            let mut pipe = builder(&model, &devices).cuda_graphs(true).build().unwrap();
            let (x, y) = (model.batch)(8);
            for _ in 0..5 {
                pipe.train_step(&x, &y, model.loss).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(train);
        train();
    });
}

/// Graphs are dropped while their last replays are still running.
fn graphs_dropped() {
    let model = models::mlp();
    let mut pipe = builder(&model, &[GPUS[0]; 2])
        .cuda_graphs(true)
        .build()
        .unwrap();
    let (x, y) = (model.batch)(8);
    let mut losses = Vec::new();
    for step in 0..9 {
        losses.push(pipe.train_step(&x, &y, model.loss).unwrap());
        if step == 5 {
            pipe.freeze(|name| name.ends_with("bias")).unwrap();
        }
    }
    let losses = losses.iter().map(|report| report.read().unwrap().loss);
    print(&losses.collect::<Vec<_>>(), &[]);
}
