//! Bits do not depend on the cut, the schedule or recomputation: draws and batch norm included.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::{AdamW, Optimizer, Pipeline, Precision, Recompute};

use crate::fixture::{ALL, Fixture};
use crate::support::{assert_same_bits, single_threaded, snapshot};

/// Losses and weights after two updates.
fn numbers(fixture: &Fixture, mut pipe: Pipeline) -> (Vec<f64>, Vec<(String, Tensor)>) {
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut losses = Vec::new();
    for _ in 0..2 {
        losses.push(fixture.step(&mut pipe));
        optimizer.step(&mut pipe).unwrap();
    }
    (losses, snapshot(&mut pipe))
}

#[test]
fn bits_do_not_depend_on_cut_schedule_or_recomputation() {
    single_threaded();
    for name in ALL {
        let fixture = Fixture::open(name);
        let plain = numbers(&fixture, fixture.builder(1).build().unwrap());
        for (stages, schedule, recompute) in [
            (2, ScheduleKind::GPipe, Recompute::Always),
            (3, ScheduleKind::OneFOneB, Recompute::Never),
            (4, ScheduleKind::ZbH1, Recompute::Always),
            (2, ScheduleKind::Zbv, Recompute::Never),
        ] {
            let what = format!("{name}, {stages} devices, {schedule}, {recompute}");
            let pipe = fixture
                .builder(stages)
                .schedule(schedule)
                .recompute(recompute);
            let own = numbers(&fixture, pipe.build().unwrap());
            assert_eq!(own.0, plain.0, "{what}: losses");
            assert_same_bits(&own.1, &plain.1, &what);
        }
    }
}

#[test]
fn dropout_draws_anew_in_every_micro_batch_and_step() {
    single_threaded();
    let fixture = Fixture::open("dropout");
    let mut pipe = fixture.builder(2).build().unwrap();
    let (first, second) = (fixture.step(&mut pipe), fixture.step(&mut pipe));
    assert_ne!(first, second);
}

#[test]
fn computes_in_bfloat16() {
    single_threaded();
    for name in ["decoder", "resnet"] {
        let fixture = Fixture::open(name);
        let losses = [1, 3].map(|stages| {
            let pipe = fixture.builder(stages).precision(Precision::Bf16);
            fixture.step(&mut pipe.build().unwrap())
        });
        assert_eq!(losses[0], losses[1], "{name}");
        let told = fixture.told("loss").double_value(&[0]);
        assert!(
            (losses[0] - told).abs() < 0.05 * told,
            "{name}: {losses:?}, {told}"
        );
    }
}
