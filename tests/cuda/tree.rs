//! Gradients summed in a tree, with CUDA graphs and without.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Tensor};
use gpipe::{Pipeline, PipelineBuilder};

use crate::harness::Test;
use crate::rounds;
use crate::simulated::has_simulated_devices;
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, gradients};

const GPU: Device = Device::Cuda(0);
const LEAVES: [usize; 3] = [2, 4, 16];
/// The first three steps run without graphs.
const STEPS: usize = 6;
/// Two leaves of four have one micro-batch, two have two.
const MICRO_BATCHES: usize = 6;

pub(crate) fn tests() -> Vec<Test> {
    vec![("tree::sums_are_the_same_with_graphs", same_sums)]
}

fn builder(model: &Model, devices: &[Device], leaves: usize) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(devices)
        .micro_batches(MICRO_BATCHES)
        .tree(leaves)
        .deterministic(true)
        .threads_per_stage(1)
        .seed(3)
}

/// A step's gradients after some like it, on the host; and whether graphs were replayed.
fn summed(builder: PipelineBuilder, model: &Model) -> (Vec<(String, Tensor)>, bool) {
    let mut pipe = builder.build().unwrap();
    let (x, y) = (model.batch)(12);
    for _ in 1..STEPS {
        pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.zero_grad().unwrap();
    }
    pipe.train_step(&x, &y, model.loss).unwrap();
    let uses = pipe.cuda_graphs().unwrap();
    let replays = !uses.is_empty() && uses.iter().all(|used| used.replayed > used.captured);
    let here = |(name, gradient): (String, Tensor)| (name, gradient.to_device(Device::Cpu));
    let gradients = gradients(&mut pipe).into_iter().map(here);
    (gradients.collect(), replays)
}

fn same_sums() {
    let cases = [
        (1, ScheduleKind::GPipe),
        (2, ScheduleKind::OneFOneB),
        (2, ScheduleKind::ZbH1),
    ];
    let mut turn = 0;
    for model in [models::mlp(), models::tied()] {
        for leaves in LEAVES {
            let (serial, _) = summed(builder(&model, &[GPU], 1), &model);
            let (plain, _) = summed(builder(&model, &[GPU], leaves), &model);
            let pairs = serial.iter().zip(&plain);
            let other = pairs.filter(|((_, serial), (_, tree))| !serial.equal(tree));
            assert!(other.count() > 0, "{}: k={leaves} adds as k=1", model.name);
            if has_simulated_devices() {
                // Simulated devices compute with the CPU's kernels.
                let (host, _) = summed(builder(&model, &[Device::Cpu], leaves), &model);
                assert_same_bits(&plain, &host, &format!("{}: k={leaves}", model.name));
            }
            for (stages, schedule) in cases {
                turn += 1;
                if !rounds::has_turn(turn) {
                    continue;
                }
                let case = format!("{}: k={leaves} p={stages} {schedule}", model.name);
                let build = || builder(&model, &vec![GPU; stages], leaves).schedule(schedule);
                let (without, _) = summed(build(), &model);
                assert_same_bits(&without, &plain, &case);
                let (graphs, replays) = summed(build().cuda_graphs(true), &model);
                assert!(replays, "{case}: no replays");
                assert_same_bits(&graphs, &plain, &format!("{case}, graphs"));
            }
        }
    }
}
