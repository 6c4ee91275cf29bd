//! Replicas of a pipeline have the bits of one pipeline, on one GPU and on two.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Device;
use gpipe::{Optimizer, Pipeline, optim::AdamW, settings::Precision};

use crate::harness::Test;
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, snapshot};

const GPU: Device = Device::Cuda(0);
const LEAVES: usize = 4;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("replicas::they_sum_to_the_bits_of_one_pipeline", || {
            same_as_one(Precision::F32);
        }),
        ("replicas::fp16_skips_the_same_steps", || {
            same_as_one(Precision::Fp16);
        }),
    ]
}

/// Losses of some steps, norms of their gradients, and the final state.
fn trained(
    model: &Model,
    (replicas, devices): (usize, &[Device]),
    (sharded, offload): (bool, bool),
    schedule: ScheduleKind,
    precision: Precision,
) -> (Vec<u64>, Vec<(String, gpipe::tch::Tensor)>) {
    let mut pipe = Pipeline::builder(model.sequential())
        .devices(devices)
        .replicas(replicas)
        .shard_optimizer(sharded)
        .tree(LEAVES)
        .micro_batches(6)
        .schedule(schedule)
        .precision(precision)
        .deterministic(true)
        .threads_per_stage(1)
        .seed(3)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default()).offload(offload);
    let mut numbers = Vec::new();
    let (x, y) = (model.batch)(12);
    for _ in 0..4 {
        let report = pipe.train_step(&x, &y, model.loss).unwrap();
        let norm = pipe.clip_gradients(0.5).unwrap();
        optimizer.step(&mut pipe).unwrap();
        numbers.push(report.read().unwrap().loss.to_bits());
        // For a skipped step, one pipeline has the norm on its device, while replicas, whose host undoes the
        // step, have none.
        if !report.read().unwrap().skipped() {
            numbers.push(norm.read().unwrap().to_bits());
        }
    }
    let _ = pipe.forward(&x).unwrap();
    let here = |(name, value): (String, gpipe::tch::Tensor)| (name, value.to_device(Device::Cpu));
    (numbers, snapshot(&mut pipe).into_iter().map(here).collect())
}

fn same_as_one(precision: Precision) {
    let other = match gpipe::device::cuda_available().unwrap() {
        0 | 1 => GPU,
        _ => Device::Cuda(1),
    };
    let places = [vec![GPU; 4], vec![GPU, other, other, GPU]];
    for model in [models::mlp(), models::tied()] {
        let schedule = ScheduleKind::GPipe;
        let (numbers, values) = trained(&model, (1, &[GPU]), (false, false), schedule, precision);
        let schedules = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1];
        let offload = [false, true];
        for ((devices, schedule), offload) in places.iter().zip(schedules).zip(offload) {
            for sharding in [(false, false), (true, offload)] {
                let case = format!("{}: {devices:?} {schedule} {sharding:?}", model.name);
                let own = trained(&model, (2, devices), sharding, schedule, precision);
                assert_eq!(own.0, numbers, "{case}");
                assert_same_bits(&own.1, &values, &case);
            }
        }
    }
}
