//! Short trainings that reach the calls which are left out.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use gpipe::checkpoint::{Checkpointer, Extras};
use gpipe::data::{Dataset, Made};
use gpipe::partitioner::{Action, ActionKind, Bytes, DeviceId, ScheduleKind};
use gpipe::streams::Recorder;
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::{
    AdamW, LossScale, Optimizer, Pipeline, PipelineBuilder, Precision, Recompute, Sequential,
};

use crate::harness::Test;
use crate::simulated;
use crate::support::models::{self, Model};
use crate::support::snapshot;

const GPUS: [Device; 3] = [Device::Cuda(0), Device::Cuda(1), Device::Cuda(2)];

/// What is before the numbers of a run.
pub(super) const NUMBERS: &str = "numbers: ";

/// The runs, each in a process of its own.
pub(crate) const PARTS: [Test; 12] = [
    ("mutations::between_devices", between_devices),
    ("mutations::with_the_host", with_the_host),
    ("mutations::offloaded", offloaded),
    ("mutations::loaded", loaded),
    ("mutations::captured", captured),
    ("mutations::captured_beside", captured_beside),
    ("mutations::callers_streams", callers_streams),
    ("mutations::by_way_of_the_host", by_way_of_the_host),
    ("mutations::timed", timed),
    ("mutations::graphs_dropped", graphs_dropped),
    ("mutations::lost", lost),
    ("mutations::recorded", recorded),
];

fn builder(model: &Model, devices: &[Device]) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(devices)
        .micro_batches(4)
        .schedule(ScheduleKind::OneFOneB)
        .deterministic(true)
        .seed(3)
}

/// Trains, and prints the numbers. The caller makes each batch by work in its own stream, and
/// gives it up at once; it uses what it gets, and gives that up, too.
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
    // The caller's own tensors are on a device of none of the stages.
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
        // Each parameter is a window of its own.
        let optimizer = Optimizer::new(AdamW::default())
            .offload(true)
            .offload_window(Bytes(1));
        train(pipe, optimizer, &model, 3);
    }
    undone_and_saved(&model);
}

/// A step fails while copies are under way; then the host reads what is offloaded.
fn undone_and_saved(model: &Model) {
    let mut pipe = builder(model, &GPUS[..2])
        .offload(&[0, 1])
        .offload_at_least(Bytes(1))
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default()).offload(true);
    let (x, y) = (model.batch)(8);
    let fails = |_: &Tensor, _: &Tensor| -> anyhow::Result<Tensor> { anyhow::bail!("as asked") };
    let why = pipe.train_step(&x, &y, fails).unwrap_err().to_string();
    assert!(why.contains("as asked"), "{why}");
    pipe.train_step(&x, &y, model.loss).unwrap();
    optimizer.step(&mut pipe).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
    let saved = checkpointer.save(&mut pipe, &optimizer, Extras::default());
    saved.unwrap();
    checkpointer.finish().unwrap();
}

/// The recorder has rule 4 for each stream alone: it does not count what the main stream, of
/// which the allocator knows, has waited for.
fn recorded() {
    let model = models::mlp();
    let recorder = Recorder::new(&[Some(0), Some(1)]);
    let mut pipe = builder(&model, &[Device::Cpu; 2])
        .recompute(Recompute::Always)
        .offload(&[0, 1])
        .offload_at_least(Bytes(1))
        .record_streams(&recorder)
        .build()
        .unwrap();
    let (x, y) = (model.batch)(8);
    let report = pipe.train_step(&x, &y, model.loss).unwrap();
    print(&[report.read().unwrap().loss], &[]);
    recorder.check().unwrap();
}

fn loaded() {
    let model = models::mlp();
    let items = Made::new(32, |_| {
        let (x, y) = (models::mlp().batch)(1);
        Ok((x.squeeze_dim(0), y.squeeze_dim(0)))
    });
    // In a stream of the caller's own: libtorch's default stream is the same on all threads.
    simulated::sim_enter_stream(0, simulated::sim_new_stream(0));
    let batches = Dataset::new(items).batch(8).workers(2).to(GPUS[0]);
    let mut pipe = builder(&model, &[GPUS[0]; 2]).build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut losses = Vec::new();
    for batch in batches.load().unwrap() {
        let (x, y) = batch.unwrap();
        // Used by the caller alone.
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

/// Two pipelines on the same devices, each captured while the other one trains.
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

/// A caller with two streams on each device.
struct Caller([[i64; 2]; 2]);

impl Caller {
    fn new() -> Self {
        Self([0, 1].map(|device| [(); 2].map(|()| simulated::sim_new_stream(device))))
    }

    fn enter(&self, which: usize) {
        for (device, streams) in self.0.iter().enumerate() {
            simulated::sim_enter_stream(device as i32, streams[which]);
        }
    }
}

/// The caller changes its streams between what it does. It waits for nothing, since no tensor
/// of its own goes from one of its streams to another.
fn callers_streams() {
    let caller = Caller::new();
    uses_outputs(&caller);
    changes_between_steps(&caller);
}

/// What comes out of a step is used, and given back, while the caller is about something else.
fn uses_outputs(caller: &Caller) {
    let model = models::mlp();
    let mut pipe = builder(&model, &GPUS[..2])
        .micro_batches(1)
        .build()
        .unwrap();
    let x = (model.batch)(8).0;
    let mut used = Vec::new();
    for _ in 0..3 {
        caller.enter(0);
        let outputs = pipe.forward(&x).unwrap();
        caller.enter(1);
        drop(pipe.forward(&x).unwrap());
        caller.enter(0);
        used.push(&outputs * 2.0);
        caller.enter(1);
        drop(outputs);
        drop(pipe.forward(&x).unwrap());
    }
    caller.enter(0);
    print(&[], &used);
}

/// The loss scale, and whether a step counts, are on the devices from a step to its update and
/// to the next step.
fn changes_between_steps(caller: &Caller) {
    let model = models::transformer(0.1);
    let mut pipe = builder(&model, &GPUS[..2])
        .precision(Precision::Fp16)
        .loss_scale(LossScale {
            initial: 256.0,
            growth_interval: 2,
        })
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (model.batch)(8);
    let mut reports = Vec::new();
    for step in 0..4 {
        caller.enter(step % 2);
        reports.push(pipe.train_step(&x, &y, model.loss).unwrap());
        caller.enter(1 - step % 2);
        optimizer.step(&mut pipe).unwrap();
        caller.enter(step % 2);
        // More than all the memory that was given back meanwhile.
        let more = |number: usize| Tensor::ones([1], (Kind::Float, GPUS[number % 2]));
        drop((0..1024).map(more).collect::<Vec<_>>());
    }
    let losses = reports.iter().map(|report| report.read().unwrap().loss);
    print(&losses.collect::<Vec<_>>(), &[]);
}

/// What the caller makes on one device reaches another one by way of page-locked memory, in a
/// layer: a step begins behind all that the caller's streams have.
fn by_way_of_the_host() {
    let on_its_way = Arc::new(Mutex::new(Tensor::new()));
    let own = Arc::clone(&on_its_way);
    let reads = move |x: &Tensor| {
        let host = own.lock().unwrap();
        x + host.to_device_(x.device(), Kind::Float, true, false)
    };
    let model = Sequential::new()
        .layer("reads", move |_| nn::func(reads.clone()))
        .layer("two", |p| {
            nn::linear(p, 64, 64, nn::LinearConfig::default())
        });
    let mut pipe = Pipeline::builder(model)
        .devices(&GPUS[..2])
        .micro_batches(2)
        .deterministic(true)
        .build()
        .unwrap();
    let x = Tensor::ones([4, 64], (Kind::Float, Device::Cpu));
    let there = Tensor::ones([64], (Kind::Float, GPUS[1])) * 3.0;
    *on_its_way.lock().unwrap() = there.to_device_(Device::Cpu, Kind::Float, true, false);
    let outputs = pipe.forward(&x).unwrap();
    print(&[], &[outputs]);
}

/// A device of its own clock, which is slower than its host: its actions do not overlap.
fn timed() {
    let linear = |p: &nn::Path<'_>| nn::linear(p, 512, 512, nn::LinearConfig::default());
    let model = || Sequential::new().layer("one", linear).layer("two", linear);
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let x = Tensor::ones([2048, 512], (Kind::Float, Device::Cpu));
    // The loss is there before the first device is done.
    let devices = [GPUS[0], Device::Cpu];
    let mut pipe = Pipeline::builder(model())
        .devices(&devices)
        .micro_batches(4)
        .build()
        .unwrap();
    for _ in 0..3 {
        let report = pipe.train_step(&x, &x, loss).unwrap();
        let timeline = &report.read().unwrap().timeline;
        let mut spans: Vec<_> = timeline.spans().iter().collect();
        spans.retain(|span| span.device == DeviceId(0));
        spans.sort_by(|one, other| one.start.get().total_cmp(&other.start.get()));
        for pair in spans.windows(2) {
            assert!(pair[1].start.get() >= pair[0].end.get() - 1.0, "{pair:?}");
        }
    }
    one_axis(model(), &x, loss);
}

/// Two devices are on one axis of time, however busy one of them was when the pipeline was
/// built: by it, the first one goes back behind the second.
fn one_axis(model: Sequential, x: &Tensor, loss: fn(&Tensor, &Tensor) -> Tensor) {
    let large = Tensor::ones([1024; 2], (Kind::Float, GPUS[0]));
    let work = || (0..8).for_each(|_| drop(large.matmul(&large)));
    work();
    gpipe::tch::Cuda::synchronize(0);
    let begin = Instant::now();
    work();
    gpipe::tch::Cuda::synchronize(0);
    let lasted = begin.elapsed().as_secs_f64() * 1e6;
    work();
    let mut pipe = Pipeline::builder(model)
        .devices(&GPUS[..2])
        .micro_batches(4)
        .build()
        .unwrap();
    let x = x.narrow(0, 0, 64);
    let report = pipe.train_step(&x, &x, loss).unwrap();
    let timeline = &report.read().unwrap().timeline;
    let backward = |device: usize, micro: usize| {
        let spans = timeline.spans().iter();
        let wanted = Action::new(device, ActionKind::Backward, micro);
        let found = spans.filter(|span| span.action == wanted).next();
        found.unwrap()
    };
    for micro in 0..4 {
        let (first, second) = (backward(0, micro), backward(1, micro));
        let late = second.end.get() - first.start.get();
        assert!(late < lasted / 4.0, "{late} of {lasted}: {timeline:?}");
    }
}

/// Graphs are thrown away while their last replays are on the device.
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

/// A device that is lost is called so.
fn lost() {
    let model = models::mlp();
    let mut pipe = builder(&model, &GPUS[..2]).build().unwrap();
    let (x, y) = (model.batch)(8);
    pipe.train_step(&x, &y, model.loss).unwrap();
    simulated::fail("kernel", 3);
    let failed = (0..3).find_map(|_| {
        let report = pipe.train_step(&x, &y, model.loss).err();
        report.or_else(|| pipe.clip_gradients(1.0).ok()?.read().err())
    });
    println!("{}", failed.unwrap());
    let error = pipe.forward(&x).unwrap_err().to_string();
    assert!(error.contains("answers nothing any more"), "{error}");
}
