//! Outputs, losses and gradients are those of eager PyTorch.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Kind, Tensor};

use crate::fixture::{ALL, Fixture, assert_as_told, assert_near};
use crate::support::{gradients, single_threaded};

/// Parameters with several places of use: each accumulates its own gradient over the
/// micro-batches, where eager adds them micro-batch by micro-batch.
const OTHER_ORDER: [(&str, &str); 1] = [("decoder", "embed.weight")];

fn draws(name: &str) -> bool {
    name == "dropout"
}

#[test]
fn losses_and_gradients_are_those_of_eager() {
    single_threaded();
    for name in ALL.into_iter().filter(|name| !draws(name)) {
        let fixture = Fixture::open(name);
        for (stages, schedule) in [
            (1, ScheduleKind::GPipe),
            (2, ScheduleKind::OneFOneB),
            (3, ScheduleKind::ZbH1),
            (4, ScheduleKind::GPipe),
            (2, ScheduleKind::Zbv),
        ] {
            let what = format!("{name}, {stages} devices, {schedule}");
            let mut pipe = fixture.builder(stages).schedule(schedule).build().unwrap();
            let loss = fixture.step(&mut pipe);
            let told = fixture.told("loss").double_value(&[0]);
            assert!(
                (loss - told).abs() <= 1e-6 * told,
                "{what}: {loss}, not {told}"
            );
            let (own, told) = (gradients(&mut pipe), fixture.all("grad."));
            let names = |all: &[(String, Tensor)]| {
                let names: Vec<_> = all.iter().map(|(name, _)| name.clone()).collect();
                names
            };
            assert_eq!(names(&own), names(&told), "{what}");
            for ((parameter, own), (_, told)) in own.iter().zip(&told) {
                let what = format!("{what}: the gradient of {parameter}");
                if OTHER_ORDER.contains(&(name, parameter)) {
                    assert_near(own, told, &what);
                } else {
                    assert_as_told(own, told, &what);
                }
            }
        }
    }
}

#[test]
fn one_file_is_evaluated_too() {
    single_threaded();
    for name in ALL {
        let fixture = Fixture::open(name);
        for stages in [1, 3] {
            let mut pipe = fixture.builder(stages).micro_batches(1).build().unwrap();
            let out = pipe.forward_values(fixture.inputs()).unwrap();
            let what = format!("{name}, {stages} stages: the output in evaluation");
            assert_as_told(out.one().unwrap(), fixture.told("eval"), &what);
        }
    }
}

#[test]
fn batch_norm_counts_a_mini_batch_once() {
    single_threaded();
    for name in ["resnet", "convnext", "unet"] {
        let fixture = Fixture::open(name);
        // The statistics of one micro-batch are those of the mini-batch.
        let mut pipe = fixture.builder(2).micro_batches(1).build().unwrap();
        fixture.step(&mut pipe);
        let mut counters = 0;
        for (buffer, own) in pipe.buffers().unwrap() {
            if own.kind() == Kind::Int64 {
                counters += 1;
                assert_eq!(own.int64_value(&[]), 1, "{name}: {buffer}");
                continue;
            }
            let told = fixture.told(&format!("buffer.{buffer}"));
            assert_near(&own, told, &format!("{name}: {buffer}"));
        }
        assert!(counters > 0, "{name}");
        // Several micro-batches count as one step, and so do the same once more.
        let mut pipe = fixture.builder(2).build().unwrap();
        fixture.step(&mut pipe);
        fixture.step(&mut pipe);
        let buffers = pipe.buffers().unwrap();
        let counter = buffers.iter().find(|(_, own)| own.kind() == Kind::Int64);
        assert_eq!(counter.unwrap().1.int64_value(&[]), 2, "{name}");
    }
}
