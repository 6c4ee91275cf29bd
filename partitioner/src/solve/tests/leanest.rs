//! Among the cuts with the smallest bottleneck, the solver takes one with the least traffic.

use proptest::prelude::*;

use super::by_hand::{caps, every_cut};
use crate::builtin::ScheduleKind;
use crate::cost::Link;
use crate::machine::Machine;
use crate::profile::{LayerProfile, LayerTimes, Profile};
use crate::schedule::Shape;
use crate::solve::{Problem, Transfer, When};
use crate::units::{Bytes, Micros};

/// Returns chains of a few integral microseconds, so that many cuts cost the same.
fn problem() -> impl Strategy<Value = Problem> {
    use ScheduleKind::{ForwardOnly, GPipe, OneFOneB, ZbH1, Zbv};
    let layer =
        (0_u32..4, 0_u64..6, 0_u64..30, 0_u64..30).prop_map(|(time, output, held, kept)| {
            let time = Micros::new(f64::from(time)).unwrap();
            LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
                Bytes(held),
                Bytes(kept),
                Bytes(output),
            )
        });
    let shape = prop_oneof![
        4 => (prop::sample::select(vec![GPipe, OneFOneB, ForwardOnly, ZbH1]), 2_usize..5)
            .prop_map(|(kind, p)| (kind, Shape::new(p, 4))),
        1 => Just((Zbv, Shape::new(2, 4).with_chunks(2))),
    ];
    // One, two or four microseconds per byte.
    let link = prop::option::of(prop::sample::select(vec![250_000_u64, 500_000, 1_000_000]));
    let speed = prop::sample::select(vec![0.5, 1.0, 1.0, 2.0]);
    let memory = prop::option::of(prop::collection::vec(100_u64..900, 4));
    (
        prop::collection::vec(layer, 5..9),
        shape,
        link,
        prop::collection::vec(speed, 4),
        memory,
        prop::sample::select(vec![When::Never, When::Always, When::Auto]),
        prop::sample::select(vec![Transfer::Waited, Transfer::Overlapped]),
    )
        .prop_map(
            |(layers, (kind, shape), link, speeds, memory, recompute, transfer)| {
                let p = shape.devices;
                // Without memory limits for several stages per device: their search is bounded.
                let memory = memory.filter(|_| shape.chunks == 1);
                let memory: Vec<Bytes> = match memory {
                    Some(own) => own[..p].iter().copied().map(Bytes).collect(),
                    None => vec![Bytes(1 << 40)],
                };
                let machine = Machine::new(p).unwrap().with_memory(&memory).unwrap();
                let machine = machine.with_speeds(&speeds[..p]).unwrap();
                let machine = match link {
                    Some(speed) => {
                        machine.with_link(Link::new(Bytes(speed), Micros::ZERO).unwrap())
                    }
                    None => machine,
                };
                let profile = Profile::new("cpu", 1, layers).unwrap();
                let schedule = kind.generate(shape).unwrap();
                Problem::new(&profile, 1, &machine, &schedule)
                    .with_recompute(recompute)
                    .with_transfer(transfer)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Time first: the optimum is independent of bytes. Then bytes: no cut with that time has
    /// fewer.
    #[test]
    fn the_fewest_bytes_travel_of_all_cuts_with_the_smallest_bottleneck(problem in problem()) {
        let caps = caps(&problem);
        // Integral and half microseconds are exact in either sum.
        let mut best = (f64::INFINITY, u64::MAX);
        every_cut(&problem, &mut |whole| {
            let fits = whole.used.iter().zip(&caps).all(|(used, cap)| used <= cap);
            let own = (whole.bottleneck, whole.traffic);
            if fits && own < best {
                best = own;
            }
        });
        if let Ok(solution) = problem.solve() {
            prop_assert_eq!((solution.bottleneck.get(), solution.traffic.0), best);
            // The same result again, also from the search without reasons.
            prop_assert_eq!(Some(solution), problem.solution());
        } else {
            prop_assert_eq!(best.0, f64::INFINITY);
        }
    }
}

fn chain(outputs: &[u64]) -> Profile {
    let time = Micros::new(1.0).unwrap();
    let layer = |&output: &u64| {
        LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
            Bytes(8),
            Bytes(8),
            Bytes(output),
        )
    };
    Profile::new("cpu", 1, outputs.iter().map(layer).collect()).unwrap()
}

/// The last layer takes as long as the four before it, which may be cut anywhere.
#[test]
fn a_cut_moves_to_where_less_travels() {
    let mut layers = chain(&[9, 9, 2, 9, 1]).layers().to_vec();
    let time = Micros::new(4.0).unwrap();
    layers[4].times = LayerTimes::new(time, time, time);
    let profile = Profile::new("cpu", 1, layers).unwrap();
    let schedule = ScheduleKind::GPipe.generate(Shape::new(3, 4)).unwrap();
    let machine = Machine::new(3).unwrap();
    let solution = Problem::new(&profile, 1, &machine, &schedule)
        .solve()
        .unwrap();
    assert_eq!(solution.bottleneck.get(), 12.0);
    assert_eq!(solution.partition.balance(), [3, 1, 1]);
    assert_eq!(solution.traffic, Bytes(11));
}

/// No traffic within a device: in a V of four stages on two devices the middle cut is free.
#[test]
fn what_stays_on_a_device_is_no_traffic() {
    let schedule = ScheduleKind::Zbv.generate(Shape::new(2, 4).with_chunks(2));
    let machine = Machine::new(2).unwrap();
    let problem = Problem::new(&chain(&[3, 100, 5, 1]), 1, &machine, &schedule.unwrap());
    assert_eq!(problem.solve().unwrap().traffic, Bytes(8));
}

/// 1,000 layers over 64 stages with memory so short that some recompute: about as many starts to
/// compare as ever occur in use.
#[test]
fn a_large_chain_with_limits_is_cut_with_less_traffic_than_an_even_filling() {
    let outputs: Vec<u64> = (0..1000).map(|layer| 10 + layer * 7919 % 97).collect();
    let profile = chain(&outputs);
    let schedule = ScheduleKind::OneFOneB
        .generate(Shape::new(64, 128))
        .unwrap();
    let machine = Machine::new(64).unwrap();
    let machine = machine.with_memory(&[Bytes(6000)]).unwrap();
    let problem =
        Problem::new(&profile, 1, &machine, &schedule).with_transfer(Transfer::Overlapped);
    let solution = problem.solve().unwrap();
    assert!(solution.is_optimal());
    assert!(solution.recompute.contains(&true));
    let even: u64 = (1..64).map(|cut| outputs[cut * 1000 / 64 - 1]).sum();
    assert!(solution.traffic.0 < even, "{} of {even}", solution.traffic);
}
