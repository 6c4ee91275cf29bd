//! Schedules written by PyTorch's pipelining run unchanged, with the gradients of ours.
//! `partitioner/tests/pytorch_csv/make.py` wrote them.

use std::path::PathBuf;

use crate::support::*;
use gpipe::partitioner::{ActionKind, CheckedSchedule, Schedule, ScheduleKind};
use gpipe::tch::Tensor;
use gpipe::{Optimizer, Pipeline, PipelineBuilder, optim::AdamW};

/// File, PyTorch's name for it, ours, devices, micro-batches.
const CASES: [(&str, ScheduleKind, usize, usize); 8] = [
    ("InterleavedZeroBubble", ScheduleKind::InterleavedZb, 2, 4),
    ("InterleavedZeroBubble", ScheduleKind::InterleavedZb, 4, 8),
    ("ZBVZeroBubble", ScheduleKind::Zbv, 2, 4),
    ("ZBVZeroBubble", ScheduleKind::Zbv, 4, 8),
    ("Interleaved1F1B", ScheduleKind::Interleaved1F1B, 2, 4),
    ("Interleaved1F1B", ScheduleKind::Interleaved1F1B, 4, 8),
    ("DualPipeV", ScheduleKind::DualPipeV, 2, 4),
    ("LoopedBFS", ScheduleKind::LoopedBfs, 4, 4),
];

fn read(name: &str, devices: usize, micro: usize, format: &str) -> CheckedSchedule {
    let file = format!("{name}-p{devices}-m{micro}-{format}.csv");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("partitioner/tests/pytorch_csv")
        .join(file);
    let text = std::fs::read_to_string(path).unwrap();
    Schedule::from_csv(name, &text).unwrap().check().unwrap()
}

fn builder(devices: usize, micro: usize) -> PipelineBuilder {
    Pipeline::builder(sequential(&mlp()))
        .devices(&cpus(devices))
        .micro_batches(micro)
        .threads_per_stage(1)
        .seed(3)
}

/// Loss, gradients and input gradient of a step, then the weights after two updates.
fn results(mut pipe: Pipeline) -> (u64, Vec<(String, Tensor)>) {
    let (x, y) = mlp_batch(16);
    let x = x.set_requires_grad(true);
    let mut report = pipe.train_step(&x, &y, cross_entropy).unwrap();
    let mut all: Vec<_> = gradients(&mut pipe)
        .into_iter()
        .map(|(name, grad)| (format!("gradient of {name}"), grad.copy()))
        .collect();
    let input = report.input_gradient.take().unwrap().into_one().unwrap();
    all.push(("gradient of the input".to_owned(), input));
    let mut optimizer = Optimizer::new(AdamW::default());
    for _ in 0..2 {
        optimizer.step(&mut pipe).unwrap();
        pipe.train_step(&x, &y, cross_entropy).unwrap();
    }
    all.extend(snapshot(&mut pipe));
    (report.read().unwrap().loss.to_bits(), all)
}

#[test]
fn schedules_written_by_pytorch_give_our_schedules_gradients() {
    for (name, ours, devices, micro) in CASES {
        let own = results(builder(devices, micro).schedule(ours).build().unwrap());
        for format in ["compute_only", "compute_comms"] {
            let what = format!("{name}, {devices} devices, {micro} micro-batches, {format}");
            let schedule = read(name, devices, micro, format);
            let pipe = builder(devices, micro).custom_schedule(schedule);
            let theirs = results(pipe.build().unwrap());
            assert_eq!(theirs.0, own.0, "{what}: loss");
            assert_same_bits(&theirs.1, &own.1, &what);
        }
    }
}

/// The cases cover split backwards, and two stages per device.
#[test]
fn the_zero_bubble_files_split_their_backwards() {
    for (name, _, devices, micro) in &CASES[..4] {
        let schedule = read(name, *devices, *micro, "compute_only");
        let plain = schedule.schedule();
        assert_eq!(plain.stages(), 2 * devices);
        let halves = plain
            .iter()
            .flat_map(|(_, list)| list)
            .filter(|action| action.kind == ActionKind::BackwardWeight)
            .count();
        assert!(halves > 0, "{name}");
    }
}
