//! Single cases with known answers.

use crate::builtin::ScheduleKind;
use crate::machine::Machine;
use crate::profile::{LayerProfile, LayerTimes, Profile};
use crate::schedule::Shape;
use crate::solve::{Problem, Strategy as Cutting, When};
use crate::units::{Bytes, Micros};

fn uniform_problem(layers: usize, devices: usize, memory: &[Bytes]) -> Problem {
    let time = Micros::new(10.0).unwrap();
    let layer = LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
        Bytes(100),
        Bytes(50),
        Bytes(5),
    );
    let profile = Profile::new("cpu", 1, vec![layer; layers]).unwrap();
    let schedule = ScheduleKind::OneFOneB
        .generate(Shape::new(devices, 8))
        .unwrap();
    let machine = Machine::new(devices).unwrap().with_memory(memory).unwrap();
    Problem::new(&profile, 1, &machine, &schedule)
}

#[test]
fn what_does_not_fit_is_said_with_bytes() {
    let problem = uniform_problem(4, 2, &[Bytes(800)]).with_recompute(When::Never);
    // A layer takes 400 for parameters, gradients and state, and 50 for each in flight: 2 and 1.
    // Layers 1 and 3: 500 and 1350; layers 2 and 2: 1000 and 900.
    assert_eq!(
        problem.solve().unwrap_err().to_string(),
        "no cut fits: at best device 0 needs 1000 B for stage 0 (layers 0..1) \
         and has 800 B; it fits with 200 B more on device 0, 100 B \
         more on device 1"
    );
    let full = problem.solve_by(&Cutting::Manual(vec![1, 3])).unwrap_err();
    assert_eq!(full.shortfall().unwrap().missing(), Bytes(550));
}

#[test]
fn recompute_is_chosen_where_it_is_needed() {
    let problem = uniform_problem(4, 2, &[Bytes(950)]);
    let solution = problem.solve().unwrap();
    assert_eq!(solution.recompute, [true, false]);
    assert_eq!(solution.partition.balance(), [2, 2]);
    assert_eq!(solution.stage_bytes, [Bytes(900), Bytes(900)]);
}

#[test]
fn ties_are_filled_evenly() {
    let memory = [Bytes(u64::MAX)];
    let solution = uniform_problem(12, 4, &memory).solve().unwrap();
    assert_eq!(solution.partition.balance(), [3; 4]);
    let solution = uniform_problem(9, 4, &memory).solve().unwrap();
    assert_eq!(solution.bottleneck.get(), 90.0);
    assert!(solution.partition.balance().iter().all(|&count| count >= 2));
}

/// A layer longer than all others together leaves the other cuts free: they are tried near an
/// even filling first.
#[test]
fn wide_windows_are_searched_near_the_even_filling() {
    let layer = |index: usize| {
        let time = Micros::new(if index == 700 { 1e6 } else { 1.0 }).unwrap();
        LayerProfile::new("layer", LayerTimes::new(time, time, time))
    };
    let profile = Profile::new("cpu", 1, (0..3000).map(layer).collect()).unwrap();
    let schedule = ScheduleKind::OneFOneB
        .generate(Shape::new(1000, 2))
        .unwrap();
    let machine = Machine::new(1000).unwrap();
    let solution = Problem::new(&profile, 1, &machine, &schedule)
        .solve()
        .unwrap();
    assert!(solution.is_optimal());
    assert_eq!(solution.bottleneck.get(), 3e6);
    assert!(solution.partition.balance().iter().all(|&count| count <= 8));
}

#[test]
fn names_are_read_back() {
    for rule in [When::Never, When::Always, When::Auto] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    assert!("sometimes".parse::<When>().is_err());
    for name in Cutting::NAMES {
        let balance: Option<&[usize]> = (name == "manual").then_some(&[1, 2]);
        assert_eq!(Cutting::from_name(name, balance).unwrap().name(), name);
    }
    assert!(Cutting::from_name("manual", None).is_err());
    assert!(Cutting::from_name("uniform", Some(&[1])).is_err());
}

/// Two chunks per device, with limits that only the sum of both exceeds.
#[test]
fn chunks_share_their_device() {
    let time = Micros::new(10.0).unwrap();
    let layer = |bytes: u64| {
        LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
            Bytes(bytes),
            Bytes::ZERO,
            Bytes::ZERO,
        )
    };
    // Parameters of 40, 10, 10, 40, 10, 10 units; stages 0 and 2 are on device 0.
    let layers = [40, 10, 10, 40, 10, 10].map(layer).to_vec();
    let profile = Profile::new("cpu", 1, layers).unwrap();
    let shape = Shape::new(2, 4).with_chunks(2);
    let schedule = ScheduleKind::Interleaved1F1B.generate(shape).unwrap();
    let machine = Machine::new(2)
        .unwrap()
        .with_memory(&[Bytes(4 * 70)])
        .unwrap();
    let solution = Problem::new(&profile, 1, &machine, &schedule)
        .solve()
        .unwrap();
    assert!(solution.is_optimal());
    let bytes = |stage: usize| solution.stage_bytes[stage].0;
    assert!(bytes(0) + bytes(2) <= 280 && bytes(1) + bytes(3) <= 280);
}
