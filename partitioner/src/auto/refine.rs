//! Local search over orders that need recomputes or offload to fit.
//!
//! A schedule for more memory than the cap, with the recomputes and offloads that make it fit (module
//! `thin`), is changed as in module `local`: of two consecutive actions of a device on the critical
//! path, one is moved past the other. Recompute and offload of single micro-batches are decided anew
//! for each order, and the whole is simulated.

use std::collections::HashSet;

use super::local::{Late, Random, Replay, shift, turned};
use super::pipeline::Pipeline;
use super::thin::{Means, Thinned, thinned};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::{Action, ActionKind, Schedule};
use crate::simulate::{Simulation, simulate};

/// Start of the search: an order, and the means that make it fit.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) order: Schedule,
    pub(super) means: Means,
}

/// Changes the order `moves` times, or until the makespan in microseconds is at most `enough`.
/// *Returns* schedules, each shorter than the one before; a later one need not fit if gradients wait
/// for the stage before.
///
/// # Complexity
/// O(moves · actions · log actions).
pub(super) fn refined(
    pipeline: &Pipeline,
    costs: &Costs,
    start: &Start,
    (moves, enough): (usize, f64),
) -> Vec<CheckedSchedule> {
    let mut search = Search {
        pipeline,
        costs,
        start,
        lists: (start.order.iter())
            .map(|(_, list)| list.to_vec())
            .collect(),
    };
    let Some(Decoded {
        makespan: mut current,
        mut pairs,
        ..
    }) = search.decoded()
    else {
        return Vec::new();
    };
    let (mut best, mut found) = (current, Vec::new());
    let (mut late, mut random) = (Late::new(moves, current), Random::default());
    for turn in 0..moves {
        if pairs.is_empty() || best <= enough {
            break;
        }
        let (device, place) = pairs[random.below(pairs.len() as u64) as usize];
        let (from, to) = random.span(place, search.lists[device].len());
        if !turned(&mut search.lists[device], from, to) {
            continue;
        }
        let after = search.decoded();
        match after.filter(|own| own.makespan <= current || own.makespan <= late.at(turn)) {
            Some(own) => {
                (current, pairs) = (own.makespan, own.pairs);
                if current < best {
                    best = current;
                    found.extend(search.checked(own.thinned));
                }
            }
            None => shift(&mut search.lists[device], to, from),
        }
        late.set(turn, current);
    }
    found
}

/// An order with the recomputes and offloads that make it fit.
struct Decoded {
    thinned: Thinned,
    makespan: f64,
    /// Device and index, in the order without recomputes, of each critical action whose predecessor
    /// on the device is critical, too.
    pairs: Vec<(usize, usize)>,
}

struct Search<'a> {
    pipeline: &'a Pipeline,
    costs: &'a Costs,
    start: &'a Start,
    lists: Vec<Vec<Action>>,
}

impl Search<'_> {
    /// Decodes the present order; none if nothing makes it fit, or if devices wait for each other.
    fn decoded(&self) -> Option<Decoded> {
        let Start { order, means } = self.start;
        let (stages, m) = (order.stages(), order.micro_batches());
        let plain = Schedule::new("auto", stages, m, self.lists.clone());
        let thinned = thinned(self.pipeline, self.costs, &plain, *means)?;
        let (makespan, pairs) = if thinned.offloads().is_empty() {
            let mut replay = Replay::new(self.pipeline, thinned.lists());
            let makespan = replay.makespan(thinned.lists())?;
            (makespan, without_recomputes(&thinned, replay.pairs()))
        } else {
            let simulation = simulate(&self.checked(thinned.clone())?, self.costs);
            (simulation.makespan().get(), self.pairs(&simulation))
        };
        Some(Decoded {
            thinned,
            makespan,
            pairs,
        })
    }

    fn checked(&self, thinned: Thinned) -> Option<CheckedSchedule> {
        let order = &self.start.order;
        let schedule = thinned.schedule(order.stages(), order.micro_batches());
        schedule.check().ok()
    }

    /// Returns the actions that follow another one both on the device and on the critical path.
    fn pairs(&self, simulation: &Simulation) -> Vec<(usize, usize)> {
        let path = simulation.critical_path();
        let critical: HashSet<(DeviceId, Action)> = (path.steps.iter())
            .map(|step| (step.span.device, step.span.action))
            .collect();
        let places = |(device, list): (usize, &Vec<Action>)| {
            let on = |action: Action| critical.contains(&(DeviceId(device), action));
            let both = |&place: &usize| on(list[place - 1]) && on(list[place]);
            let places = (1..list.len()).filter(both);
            places.map(|place| (device, place)).collect::<Vec<_>>()
        };
        self.lists.iter().enumerate().flat_map(places).collect()
    }
}

/// Converts places in the lists with recomputes to places in the order.
fn without_recomputes(thinned: &Thinned, pairs: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    let places = thinned.lists().iter().map(|list| {
        let mut place = 0;
        let own = list.iter().map(|action| {
            let here = (action.kind != ActionKind::Recompute).then_some(place);
            place += usize::from(here.is_some());
            here
        });
        own.collect::<Vec<_>>()
    });
    let places: Vec<_> = places.collect();
    let alone = |(device, place): (usize, usize)| {
        let place = places[device][place].filter(|&place| place > 0)?;
        Some((device, place))
    };
    pairs.into_iter().filter_map(alone).collect()
}
