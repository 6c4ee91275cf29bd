//! How much of the devices' time `auto` loses where memory is tight, beside the best built-in schedule
//! that fits: at shares of what 1F1B takes, on shapes such as OptPipe's (arXiv:2510.05186).
//!
//! Lost is all time of the devices in which they do not do what the model asks for: what they idle, and
//! what they recompute. A built-in schedule has one or two chunks, and may recompute whole stages, as few
//! as fit; `auto` has one or two chunks, and may recompute single micro-batches of single stages. In the
//! second table it may also offload them, over a link on which the activations of a chunk take half, once
//! and twice as long as its forward, each way; the built-in schedules may have whole stages offload, too.
//!
//! `cargo bench -p gpipe-partitioner --bench tight_memory`; with `DEEP=1` five times the changes and many
//! times the states of `auto`'s usual effort, which takes many minutes.
#![allow(missing_docs)]

use gpipe_partitioner::{
    ActionKind, Bytes, CheckedSchedule, Costs, DeviceId, EdgeTimes, Effort, Micros, OffloadTimes,
    ScheduleKind, Shape, Simulation, StageId, StageMemory, auto_within, simulate,
};

/// Activations that a micro-batch keeps on a device, in bytes, and which part of them is the input.
const KEPT: u64 = 1000;
const INPUT: u64 = 100;

/// What a stage does with the activations of all micro-batches.
#[derive(Clone, Copy, PartialEq)]
enum Whole {
    Kept,
    Again,
    Away,
}

/// Forward, both halves of the backward and a transfer between devices.
struct Times {
    name: &'static str,
    times: [f64; 4],
}

/// Equal thirds, and of Zero Bubble's appendix (arXiv:2401.10241, table 8).
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

    /// Costs where these stages recompute, or offload with a link, and where the others may for single
    /// micro-batches. `link`: how many times as long as a forward the activations are on their way.
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

    /// What the devices lose of a step of `makespan`, in microseconds of one device.
    fn lost(&self, shape: Shape, makespan: Micros) -> f64 {
        let work: f64 = self.times[..3].iter().sum();
        shape.devices as f64 * (makespan.get() - shape.micro_batches as f64 * work)
    }
}

fn fits(simulation: &Simulation, cap: Bytes) -> bool {
    simulation.peak_bytes().into_iter().all(|peak| peak <= cap)
}

/// The schedule with as few stages as fit recomputing, or offloading: a device's own first or last ones
/// first.
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
        match link {
            None => println!(
                "| times | p × m | memory of 1F1B | built-in | lost | `auto` | share | least |\n\
                 |---|---|---|---|---|---|---|---|"
            ),
            Some(times) => println!(
                "\nA host link on which activations take {times} of their forward:\n\n\
                 | times | p × m | memory of 1F1B | built-in | lost | offloading stages | lost | `auto` | \
                 shares | least |\n|---|---|---|---|---|---|---|---|---|---|"
            ),
        }
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

fn row(times: &Times, (p, m): (usize, usize), (percent, link): (u64, Option<f64>), deep: bool) {
    let cap = Bytes(KEPT * p as u64 * percent / 100);
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
    let found: Vec<_> = found.collect();
    let bound = found.iter().map(|(own, _)| own.lower_bound).min();
    let own = found
        .iter()
        .min_by_key(|(own, _)| own.simulation.makespan());
    let unit = times.times[..3].iter().sum::<f64>();
    let lost = |shape: Shape, time: Micros| times.lost(shape, time) / unit;
    let theirs = |link: Option<f64>| {
        let best = built_in(times, (p, m), (cap, link));
        best.map_or(("none".to_owned(), f64::NAN), |(simulation, shape)| {
            let name = simulation.schedule().schedule().name().to_owned();
            let name = format!("{name} × {}", shape.chunks);
            (name, lost(shape, simulation.makespan()))
        })
    };
    let (what, ours) = own.map_or(("none".to_owned(), f64::NAN), |(found, shape)| {
        let actions = found.schedule.schedule().iter().flat_map(|(_, list)| list);
        let again = actions
            .filter(|action| action.kind == ActionKind::Recompute)
            .count();
        (
            match (link, found.schedule.schedule().offloads().len()) {
                (None, _) => format!(
                    "{:.2} ({again} R)",
                    lost(*shape, found.simulation.makespan())
                ),
                (_, away) => format!(
                    "{:.2} ({again} R, {away} O)",
                    lost(*shape, found.simulation.makespan())
                ),
            },
            lost(*shape, found.simulation.makespan()),
        )
    });
    let least = bound.map_or(f64::NAN, |bound| lost(Shape::new(p, m), bound));
    let (name, kept) = theirs(None);
    print!(
        "| {} | {p} × {m} | {percent} % | {name} | {kept:.2} |",
        times.name
    );
    if link.is_some() {
        let (name, away) = theirs(link);
        print!(
            " {name} | {away:.2} | {what} | {:.2}, {:.2} |",
            ours / kept,
            ours / away
        );
    } else {
        print!(" {what} | {:.2} |", ours / kept);
    }
    println!(" {least:.2} |");
}
