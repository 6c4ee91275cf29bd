//! Absurd numbers are refused at once, instead of taking minutes or gigabytes.

use gpipe_partitioner::{
    LayerProfile, LayerTimes, Machine, Micros, PlanOptions, Profile, ScheduleKind, Shape, plan,
};

fn layer(name: &str) -> LayerProfile {
    let time = Micros::new(100.0).unwrap();
    LayerProfile::new(name, LayerTimes::new(time, time, time))
}

#[test]
fn schedules_of_huge_shapes_are_refused_with_the_numbers_that_work() {
    for kind in ScheduleKind::ALL {
        let chunks = kind.default_chunks();
        for (p, m) in [(32_768, 64_000), (1_000_000, 1_000_000), (usize::MAX, 2)] {
            let shape = Shape::new(p, m).with_chunks(chunks);
            let error = kind.generate(shape).unwrap_err().to_string();
            assert!(error.contains("it needs at most"), "{error}");
        }
    }
}

#[test]
fn schedules_in_a_v_are_refused_where_making_them_takes_minutes() {
    use ScheduleKind::{DualPipeV, VHalf, VMin, Zbv};
    for kind in [Zbv, VHalf, VMin, DualPipeV] {
        for (p, m) in [(32_768, 64), (8_192, 256), (2_048, 1_024)] {
            let shape = Shape::new(p, m).with_chunks(2);
            let error = kind.generate(shape).unwrap_err().to_string();
            assert!(error.contains("quadratic in the devices"), "{error}");
        }
        kind.generate(Shape::new(64, 128).with_chunks(2)).unwrap();
    }
}

#[test]
fn plans_of_huge_shapes_are_refused() {
    let layers = (0..200).map(|n| layer(&format!("block.{n}"))).collect();
    let profile = Profile::new("cpu", 1, layers).unwrap();
    let mut options = PlanOptions::new(Machine::new(64).unwrap());
    options.micro_batches = Some(65_536);
    let error = plan(&profile, &options).unwrap_err().to_string();
    assert!(error.contains("devices times micro-batches"), "{error}");
}

/// Names are printed on the terminal.
#[test]
fn names_with_control_characters_are_refused() {
    let error = Profile::new("cpu", 1, vec![layer("a\nb")])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("layers[0].name") && error.contains("control characters"),
        "{error}"
    );
}
