//! Time that devices lose under `auto` where memory is tight, beside the best built-in schedule that fits: at
//! shares of 1F1B's memory, on shapes such as OptPipe's (arXiv:2510.05186).
//!
//! Lost is all device time not spent on the model's own work: idle time and recomputes. Idle is the former
//! only. The target of a third less lost time is met with both, or with idle time only, or proved impossible,
//! with recomputes counted, by the lower bound. A built-in schedule has one or two chunks, and may recompute
//! whole stages, as few as fit; `auto` has one or two chunks, and may recompute single micro-batches of
//! single stages. In the second table it may also offload them, over a link on which the activations of a
//! chunk take half, once and twice as long as its forward, each way; the built-in schedules may then offload
//! whole stages, too.
//!
//! `cargo bench -p gpipe-partitioner --bench tight_memory`; with `DEEP=1` five times the changes and many
//! times the states of `auto`'s usual effort, which takes many minutes.
#![allow(missing_docs)]

use gpipe_partitioner::{
    ActionKind, Auto, Bytes, CheckedSchedule, Costs, DeviceId, EdgeTimes, Effort, Micros,
    OffloadTimes, ScheduleKind, Shape, Simulation, StageId, StageMemory, auto_within, simulate,
};

/// Bytes of activations that a micro-batch keeps on a device, and of the input among them.
const KEPT: u64 = 1000;
const INPUT: u64 = 100;

/// Treatment of a stage's activations, for all micro-batches: kept, recomputed or offloaded.
#[derive(Clone, Copy, PartialEq)]
enum Whole {
    Kept,
    Again,
    Away,
}

/// Times of forward, both halves of the backward, and a transfer between devices.
struct Times {
    name: &'static str,
    times: [f64; 4],
}

/// Equal thirds, and times from Zero Bubble's appendix (arXiv:2401.10241, table 8).
const ALL: [Times; 2] = [
    Times {
        name: "F = I = W",
        times: [1000.0, 1000.0, 1000.0, 0.0],
    },
    Times {
        name: "Zero Bubble 1.5 B",
        times: [18_522.0, 18_086.0, 9_337.0, 601.0],
    },
];

impl Times {
    fn share(&self, at: usize, shape: Shape) -> Micros {
        Micros::new(self.times[at] / shape.chunks as f64).unwrap_or_default()
    }

    /// Returns the costs with the `whole` stages recomputing, or offloading if there is a link; the other
    /// stages may do so for single micro-batches. `link`: transfer time of activations, in forwards.
    fn costs(&self, shape: Shape, whole: &[Whole], link: Option<f64>) -> Costs {
        let [f, i, w] = [0, 1, 2].map(|at| self.share(at, shape));
        let mut costs = Costs::uniform(shape.stages(), f, i, w);
        let part = |bytes: u64| Bytes(bytes / shape.chunks as u64);
        for stage in (0..shape.stages()).map(StageId) {
            costs = costs.with_time(stage, ActionKind::Recompute, f);
            let mut memory = StageMemory {
                activation: part(KEPT),
                recomputable: part(KEPT - INPUT),
                ..StageMemory::default()
            };
            let way = link.map(|times| {
                let way = EdgeTimes {
                    occupancy: f * times,
                    latency: Micros::ZERO,
                };
                OffloadTimes {
                    to_host: way,
                    to_device: way,
                    pieces: 1,
                }
            });
            if let Some(way) = way {
                memory.offloadable = memory.activation;
                costs = costs.with_single_offload(stage, way);
            }
            if let (Whole::Away, Some(way)) = (whole[stage.index()], way) {
                memory.offloaded = std::mem::take(&mut memory.offloadable);
                memory.recomputable = Bytes::ZERO;
                costs = costs.with_offload(stage, way);
            }
            if whole[stage.index()] == Whole::Again {
                memory.offloadable = Bytes::ZERO;
                memory.activation = part(INPUT);
                memory.recomputed = part(KEPT - INPUT);
                memory.recomputable = Bytes::ZERO;
                costs = (costs.with_time(stage, ActionKind::Backward, f + i + w)).with_time(
                    stage,
                    ActionKind::BackwardInput,
                    f + i,
                );
            }
            costs = costs.with_memory(stage, memory);
        }
        let latency = Micros::new(self.times[3]).unwrap_or_default();
        costs.with_transfer(Micros::ZERO, latency)
    }

    /// Returns the time that the devices lose in a step of `makespan`, in microseconds of one device.
    fn lost(&self, shape: Shape, makespan: Micros) -> f64 {
        let work: f64 = self.times[..3].iter().sum();
        shape.devices as f64 * (makespan.get() - shape.micro_batches as f64 * work)
    }
}

fn fits(simulation: &Simulation, cap: Bytes) -> bool {
    simulation.peak_bytes().into_iter().all(|peak| peak <= cap)
}

/// Returns the schedule with the fewest stages recomputing or offloading that fit: the first or the last ones
/// of a device first.
fn leanest(
    times: &Times,
    shape: Shape,
    schedule: &CheckedSchedule,
    (cap, link): (Bytes, Option<f64>),
) -> Option<Simulation> {
    let mut best: Option<Simulation> = None;
    let means = [Whole::Again, Whole::Away];
    let means = means
        .into_iter()
        .filter(|own| *own == Whole::Again || link.is_some());
    let all = means.flat_map(|own| [false, true].map(|last_first| (own, last_first)));
    for (means, last_first) in all {
        let mut whole = vec![Whole::Kept; shape.stages()];
        let found = loop {
            let simulation = simulate(schedule, &times.costs(shape, &whole, link));
            let over = (simulation.peak_bytes().into_iter()).position(|peak| peak > cap);
            let Some(device) = over else {
                break Some(simulation);
            };
            let mut own = (0..shape.stages()).filter(|&stage| {
                schedule.device_of(StageId(stage)) == DeviceId(device)
                    && whole[stage] == Whole::Kept
            });
            let next = if last_first {
                own.next_back()
            } else {
                own.next()
            };
            match next {
                Some(stage) => whole[stage] = means,
                None => break None,
            }
        };
        best = [best, found]
            .into_iter()
            .flatten()
            .min_by_key(Simulation::makespan);
    }
    best
}

fn built_in(
    times: &Times,
    (p, m): (usize, usize),
    limits: (Bytes, Option<f64>),
) -> Option<(Simulation, Shape)> {
    let kinds = ScheduleKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| kind.trains() && *kind != ScheduleKind::Auto);
    let shapes = kinds.flat_map(|kind| [1, 2].map(|v| (kind, Shape::new(p, m).with_chunks(v))));
    let all = shapes.filter_map(|(kind, shape)| {
        let schedule = kind.generate(shape).ok()?;
        Some((leanest(times, shape, &schedule, limits)?, shape))
    });
    all.min_by_key(|(simulation, _)| simulation.makespan())
}

fn main() {
    let deep = std::env::var_os("DEEP").is_some();
    for link in [None, Some(0.5), Some(1.0), Some(2.0)] {
        let others = match link {
            None => "",
            Some(times) => {
                println!("\nA host link on which activations take {times} of their forward:\n");
                " offloading stages | lost (idle) |"
            }
        };
        println!(
            "| times | p × m | memory of 1F1B | built-in | lost (idle) |{others} `auto` | share | least | a \
             third less |"
        );
        let more = if link.is_some() { "---|---|" } else { "" };
        println!("|---|---|---|---|---|{more}---|---|---|---|");
        for times in &ALL {
            for (p, m) in [(4, 8), (4, 16), (8, 16), (8, 32)] {
                let percents: &[u64] = match link {
                    None => &[50, 60, 70, 80, 90, 100],
                    Some(_) => &[30, 50, 70, 100],
                };
                for &percent in percents {
                    row(times, (p, m), (percent, link), deep);
                }
            }
        }
    }
}

/// Lost and idle time of the devices, in units of a micro-batch's work on a device.
#[derive(Clone, Copy)]
struct Lost {
    all: f64,
    idle: f64,
}

impl Lost {
    fn new(times: &Times, simulation: &Simulation, shape: Shape) -> Self {
        let unit = times.times[..3].iter().sum::<f64>();
        let idle: f64 = simulation.idle().iter().map(|idle| idle.get()).sum();
        Self {
            all: times.lost(shape, simulation.makespan()) / unit,
            idle: idle / unit,
        }
    }
}

/// Says whether a third less than `theirs` is lost, or idled, or whether `least` makes it impossible.
fn verdict(ours: Lost, theirs: Lost, least: f64) -> &'static str {
    let enough = |of: fn(Lost) -> f64| of(ours) <= 2.0 / 3.0 * of(theirs) + 1e-9;
    if enough(|own| own.all) {
        "met"
    } else if least > 2.0 / 3.0 * theirs.all + 1e-9 {
        "impossible"
    } else if enough(|own| own.idle) {
        "idle time only"
    } else {
        "open"
    }
}

fn row(times: &Times, (p, m): (usize, usize), (percent, link): (u64, Option<f64>), deep: bool) {
    let cap = Bytes(KEPT * p as u64 * percent / 100);
    let found = computed(times, (p, m), (cap, link), deep);
    let least = (found.iter().map(|(own, _)| own.lower_bound)).min();
    let least = least.map_or(f64::NAN, |bound| {
        let unit = times.times[..3].iter().sum::<f64>();
        times.lost(Shape::new(p, m), bound) / unit
    });
    let own = (found.iter()).min_by_key(|(own, _)| own.simulation.makespan());
    let theirs = |link: Option<f64>| {
        let (simulation, shape) = built_in(times, (p, m), (cap, link))?;
        let name = format!(
            "{} × {}",
            simulation.schedule().schedule().name(),
            shape.chunks
        );
        Some((name, Lost::new(times, &simulation, shape)))
    };
    let (Some((found, shape)), Some((name, kept))) = (own, theirs(None)) else {
        println!(
            "| {} | {p} × {m} | {percent} % | nothing fits |",
            times.name
        );
        return;
    };
    let ours = Lost::new(times, &found.simulation, *shape);
    let actions = found.schedule.schedule().iter().flat_map(|(_, list)| list);
    let again = actions.filter(|action| action.kind == ActionKind::Recompute);
    let mut what = format!("{} R", again.count());
    let mut share = format!("{:.2}", ours.all / kept.all);
    let mut verdict = verdict(ours, kept, least).to_owned();
    print!(
        "| {} | {p} × {m} | {percent} % | {name} | {:.2} ({:.2}) |",
        times.name, kept.all, kept.idle
    );
    if let Some((name, away)) = link.and_then(|_| theirs(link)) {
        print!(" {name} | {:.2} ({:.2}) |", away.all, away.idle);
        what = format!("{what}, {} O", found.schedule.schedule().offloads().len());
        share = format!("{share}, {:.2}", ours.all / away.all);
        verdict = format!("{verdict}, {}", self::verdict(ours, away, least));
    }
    println!(
        " {:.2} ({:.2}; {what}) | {share} | {least:.2} | {verdict} |",
        ours.all, ours.idle
    );
}

/// Returns the results of `auto` with one and two chunks, if any.
fn computed(
    times: &Times,
    (p, m): (usize, usize),
    (cap, link): (Bytes, Option<f64>),
    deep: bool,
) -> Vec<(Auto, Shape)> {
    let caps = vec![Some(cap); p];
    let found = [1, 2].into_iter().filter_map(|v| {
        let shape = Shape::new(p, m).with_chunks(v);
        let mut effort = Effort::usual(shape);
        if deep {
            effort = Effort {
                states: 2000,
                moves: 100_000,
            };
        }
        let costs = times.costs(shape, &vec![Whole::Kept; shape.stages()], link);
        let found = auto_within(shape, &costs, &caps, None, effort).ok()?;
        assert!(fits(&found.simulation, cap) && found.gap() >= 0.0);
        Some((found, shape))
    });
    found.collect()
}
