//! A small version of each model learns, bit for bit the same for any cut and any order of its gradients.

use gpipe::partitioner::ScheduleKind::{self, OneFOneB, ZbH1};
use gpipe::tch::{Device, Tensor};
use gpipe::{Optimizer, Pipeline, optim::AdamW};

use super::small;

const STEPS: usize = 5;

/// Losses of a few steps on one batch, then all parameters and buffers.
fn train(name: &str, devices: usize, schedule: ScheduleKind) -> (Vec<f64>, Vec<(String, Tensor)>) {
    let spec = small(name);
    let mut pipe = Pipeline::builder(spec.build())
        .devices(&vec![Device::Cpu; devices])
        .micro_batches(2)
        .schedule(schedule)
        .threads_per_stage(1)
        .seed(3)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW {
        lr: 0.01,
        ..AdamW::default()
    });
    let (input, target) = spec.sample(4, 1).unwrap();
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (x, y) = (input.shallow_clone(), target.shallow_clone());
        losses.push(
            pipe.train_step(x, y, spec.loss())
                .unwrap()
                .read()
                .unwrap()
                .loss,
        );
        optimizer.step(&mut pipe).unwrap();
    }
    let parameters = pipe.parameters().unwrap();
    let mut all: Vec<_> = parameters
        .into_iter()
        .chain(pipe.buffers().unwrap())
        .map(|(name, tensor)| (name, tensor.detach().copy()))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    (losses, all)
}

#[track_caller]
fn learns_alike_everywhere(name: &str) {
    let (losses, values) = train(name, 1, OneFOneB);
    assert!(losses[STEPS - 1] < losses[0], "{name}: {losses:?}");
    for schedule in [OneFOneB, ZbH1] {
        let (cut_losses, cut_values) = train(name, 3, schedule);
        assert_eq!(losses, cut_losses, "{name}, {schedule}");
        assert_eq!(values.len(), cut_values.len(), "{name}, {schedule}");
        for ((own, value), (other, cut)) in values.iter().zip(&cut_values) {
            assert_eq!(own, other);
            assert!(value.equal(cut), "{name}, {schedule}: {own} differs");
        }
    }
}

macro_rules! learns_alike_everywhere {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            learns_alike_everywhere($name);
        })*
    };
}

learns_alike_everywhere! {
    mlp: "mlp",
    gpt: "gpt",
    llama: "llama",
    transformer: "transformer",
    lstm: "lstm",
    vgg16: "vgg16",
    resnet: "resnet101",
    unet: "unet",
    amoebanet: "amoebanet-d",
}

#[test]
fn a_sample_is_the_same_for_the_same_seed() {
    let spec = small("unet");
    let (first, _) = spec.sample(2, 5).unwrap();
    let (again, _) = spec.sample(2, 5).unwrap();
    let (other, _) = spec.sample(2, 6).unwrap();
    let tensor = |values: &gpipe::Values| values.one().unwrap().shallow_clone();
    assert!(tensor(&first).equal(&tensor(&again)));
    assert!(!tensor(&first).equal(&tensor(&other)));
}
