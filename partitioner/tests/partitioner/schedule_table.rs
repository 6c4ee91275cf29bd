//! Known bubbles and memory of the built-in schedules, over every shape that they are meant for: p
//! up to 16, m up to 64.
//!
//! Unit of time: a chunk's pass. A device's micro-batch takes v of each of its passes, so a bubble
//! of `x` device passes is `v * x` here, and integers stay exact.

use gpipe_partitioner::{
    CheckedSchedule, Costs, DeviceId, Micros, ScheduleKind, Shape, Timeline, simulate,
};

/// Forward, input and weight time of a chunk.
type Times = (u32, u32, u32);

/// Arbitrary times, for schedules whose bubble has a formula.
const ANY: [Times; 5] = [(1, 1, 1), (1, 2, 3), (5, 1, 1), (3, 1, 7), (2, 9, 4)];

const EQUAL: [Times; 1] = [(1, 1, 1)];

struct Case {
    shape: Shape,
    times: Times,
    schedule: CheckedSchedule,
    timeline: Timeline,
}

impl Case {
    /// The makespan minus the work of a device, in chunk passes.
    fn bubble(&self) -> f64 {
        let (f, i, w) = self.times;
        let work = self.shape.micro_batches * self.shape.chunks * (f + i + w) as usize;
        self.timeline.makespan().get() - work as f64
    }

    /// Chunks in flight on `rank`.
    fn peak(&self, rank: usize) -> usize {
        let peak = self.schedule.peak_in_flight_on(DeviceId(rank)) * self.shape.chunks as f64;
        assert!((peak - peak.round()).abs() < 1e-9);
        peak.round() as usize
    }

    fn devices(&self) -> std::ops::Range<usize> {
        0..self.shape.devices
    }

    /// Chunks in flight on the device with the most.
    fn highest_peak(&self) -> usize {
        self.devices().map(|rank| self.peak(rank)).max().unwrap()
    }

    /// Longest idle time of a device between its own first start and its own last end.
    fn idle_within(&self) -> f64 {
        let idle = |rank| self.timeline.idle_within(DeviceId(rank)).get();
        self.devices().map(idle).fold(0.0, f64::max)
    }
}

/// Checks `claim` for every shape with m ≥ `least(p)`.
fn sweep(
    kind: ScheduleKind,
    chunks: &[usize],
    times: &[Times],
    least: impl Fn(usize) -> usize,
    claim: impl Fn(&Case),
) {
    for (p, &v) in (1..=16).flat_map(|p| chunks.iter().map(move |v| (p, v))) {
        for m in least(p)..=64 {
            let shape = Shape::new(p, m).with_chunks(v);
            let schedule = kind.generate(shape).unwrap();
            assert!(schedule.accumulates_in_order(), "{kind} {shape:?}");
            for &times in times {
                let micros = |t| Micros::new(f64::from(t)).unwrap();
                let [f, i, w] = [times.0, times.1, times.2].map(micros);
                let timeline = simulate(&schedule, &Costs::uniform(p * v, f, i, w)).timeline;
                claim(&Case {
                    shape,
                    times,
                    schedule: schedule.clone(),
                    timeline,
                });
            }
        }
    }
}

fn assert_bubble(case: &Case, expected: usize) {
    assert_eq!(
        case.bubble(),
        expected as f64,
        "{:?} {:?}",
        case.shape,
        case.times
    );
}

#[test]
fn gpipe() {
    sweep(
        ScheduleKind::GPipe,
        &[1],
        &ANY,
        |_| 1,
        |case| {
            let (f, i, w) = case.times;
            assert_bubble(case, (case.shape.devices - 1) * (f + i + w) as usize);
            assert!(
                case.devices()
                    .all(|rank| case.peak(rank) == case.shape.micro_batches)
            );
        },
    );
}

#[test]
fn one_f_one_b() {
    sweep(
        ScheduleKind::OneFOneB,
        &[1],
        &ANY,
        |_| 1,
        |case| {
            let (f, i, w) = case.times;
            assert_bubble(case, (case.shape.devices - 1) * (f + i + w) as usize);
            for rank in case.devices() {
                let expected = case.shape.micro_batches.min(case.shape.devices - rank);
                assert_eq!(case.peak(rank), expected);
            }
        },
    );
}

#[test]
fn interleaved_1f1b() {
    sweep(
        ScheduleKind::Interleaved1F1B,
        &[1, 2, 3, 4],
        &ANY,
        |p| p,
        |case| {
            let (f, i, w) = case.times;
            let Shape {
                devices: p,
                chunks: v,
                micro_batches: m,
            } = case.shape;
            assert_bubble(case, (p - 1) * (f + i + w) as usize);
            // Groups of p if m is a multiple of p, else of as many as necessary.
            let group = m.div_ceil(m / p);
            for rank in case.devices() {
                let expected = (v - 1) * group + 2 * (p - 1 - rank) + 1;
                assert_eq!(
                    case.peak(rank),
                    expected.min(v * m),
                    "{:?} {rank}",
                    case.shape
                );
            }
        },
    );
}

#[test]
fn looped_bfs() {
    sweep(
        ScheduleKind::LoopedBfs,
        &[1, 2, 3, 4],
        &ANY,
        |p| p,
        |case| {
            let (f, i, w) = case.times;
            assert_bubble(case, (case.shape.devices - 1) * (f + i + w) as usize);
            let all = case.shape.micro_batches * case.shape.chunks;
            assert!(case.devices().all(|rank| case.peak(rank) == all));
        },
    );
}

#[test]
fn zb_h1() {
    sweep(
        ScheduleKind::ZbH1,
        &[1],
        &ANY,
        |p| p,
        |case| {
            let (f, i, w) = case.times;
            assert_bubble(
                case,
                (case.shape.devices - 1) * (f + i - w.min(f).min(i)) as usize,
            );
            assert!(
                case.devices()
                    .all(|rank| case.peak(rank) == case.shape.devices)
            );
        },
    );
}

#[test]
fn zb_h2() {
    sweep(
        ScheduleKind::ZbH2,
        &[1],
        &EQUAL,
        |p| 2 * p - 1,
        |case| {
            assert_eq!(case.idle_within(), 0.0, "{:?}", case.shape);
            assert!(
                case.devices()
                    .all(|rank| case.peak(rank) == 2 * case.shape.devices - 1)
            );
        },
    );
}

#[test]
fn interleaved_zb() {
    sweep(
        ScheduleKind::InterleavedZb,
        &[1, 2, 3, 4],
        &ANY,
        |p| p,
        |case| {
            let (f, i, w) = case.times;
            let Shape {
                devices: p,
                chunks: v,
                micro_batches: m,
            } = case.shape;
            assert_bubble(case, (p - 1) * (f + i - w.min(f).min(i)) as usize);
            let group = m.div_ceil(m / p);
            assert!(
                case.devices()
                    .all(|rank| case.peak(rank) == (v - 1) * group + p)
            );
        },
    );
}

#[test]
fn zbv() {
    sweep(
        ScheduleKind::Zbv,
        &[2],
        &EQUAL,
        |p| 2 * p - 1,
        |case| {
            let p = case.shape.devices;
            assert_eq!(case.idle_within(), 0.0, "{:?}", case.shape);
            assert_bubble(case, p - 1);
            assert!(case.devices().all(|rank| case.peak(rank) == 2 * p));
        },
    );
}

#[test]
fn v_half() {
    sweep(
        ScheduleKind::VHalf,
        &[2],
        &EQUAL,
        |p| p,
        |case| {
            let p = case.shape.devices;
            let peak = case.highest_peak();
            assert!(peak <= 2 * (p / 2 + 1), "{:?} {peak}", case.shape);
            if p == 4 || p == 8 {
                assert_bubble(case, if p == 4 { 5 } else { 17 });
                assert_eq!(peak, 2 * (p / 2 + 1));
            }
            assert!(
                case.bubble() <= (3 * p) as f64,
                "{:?} {}",
                case.shape,
                case.bubble()
            );
        },
    );
}

#[test]
fn v_min() {
    sweep(
        ScheduleKind::VMin,
        &[2],
        &EQUAL,
        |p| p,
        |case| {
            let p = case.shape.devices;
            let peak = case.highest_peak();
            assert!(peak <= 2 * ((p + 4) / 3), "{:?} {peak}", case.shape);
            if p == 4 || p == 8 {
                assert_bubble(case, if p == 4 { 11 } else { 27 });
                assert_eq!(peak, 2 * ((p + 4) / 3));
            }
            assert!(
                case.bubble() <= (4 * p) as f64,
                "{:?} {}",
                case.shape,
                case.bubble()
            );
        },
    );
}

#[test]
fn dualpipe_v() {
    sweep(
        ScheduleKind::DualPipeV,
        &[2],
        &EQUAL,
        |p| 2 * p,
        |case| {
            let p = case.shape.devices;
            assert_bubble(case, 2 * (p - 1));
            assert_eq!(case.highest_peak(), 2 * p + 1);
        },
    );
}

#[test]
fn forward_only() {
    let unit = Micros::new(1.0).unwrap();
    for (p, v) in (1..=16).flat_map(|p| (1..=3).map(move |v| (p, v))) {
        for m in (p..=64).step_by(p) {
            let shape = Shape::new(p, m).with_chunks(v);
            let schedule = ScheduleKind::ForwardOnly.generate(shape).unwrap();
            let timeline = simulate(&schedule, &Costs::uniform(p * v, unit, unit, unit)).timeline;
            assert_eq!(timeline.makespan().get(), (m * v + p - 1) as f64);
            assert!(!schedule.is_training());
        }
    }
}

/// Every schedule × p in 1..=8 × m in 1..=16 × v in 1..=3 passes the check, or is refused because
/// of its number of chunks only.
#[test]
fn small_shapes_check_or_are_refused() {
    for kind in ScheduleKind::ALL {
        for (p, v) in (1..=8).flat_map(|p| (1..=3).map(move |v| (p, v))) {
            let generate = |m| kind.generate(Shape::new(p, m).with_chunks(v));
            for m in 1..=16 {
                match generate(m) {
                    Ok(schedule) => assert!(schedule.accumulates_in_order()),
                    Err(error) => assert!(error.to_string().contains("per device"), "{error}"),
                }
                assert_eq!(
                    generate(m).is_ok(),
                    generate(1).is_ok(),
                    "{kind}: any m or none"
                );
            }
        }
    }
}

#[test]
fn the_table_says_which_schedules_train_and_with_how_many_chunks() {
    for kind in ScheduleKind::ALL {
        let shape = Shape::new(2, 4).with_chunks(kind.default_chunks());
        let schedule = kind.generate(shape).unwrap();
        assert_eq!(schedule.is_training(), kind.trains(), "{kind}");
    }
}
