//! Local search over orders that do not fit by themselves.
//!
//! A schedule for more memory than there is, with what makes it fit (module `thin`), is changed as in
//! module `local`: of two actions that follow each other on the critical path and on a device, one is
//! moved past the other. What single micro-batches recompute, and offload, is decided anew for each
//! order, and the whole is simulated.

use std::collections::HashSet;

use super::local::{Late, Random, shift, turned};
use super::pipeline::Pipeline;
use super::thin::{Means, thinned};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::{Action, Schedule};
use crate::simulate::{Simulation, simulate};

/// Where it begins: an order, and what makes it fit.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) order: Schedule,
    pub(super) means: Means,
}

/// Changes the order `moves` times, or until the makespan in microseconds is `enough`. *Returns*
/// schedules that are each shorter than the one before, of which a later one need not fit where
/// gradients wait for the stage before.
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
    let Some((_, first)) = search.decoded() else {
        return Vec::new();
    };
    let mut current = first.makespan().get();
    let (mut best, mut found) = (current, Vec::new());
    let mut pairs = search.pairs(&first);
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
        let time = |(_, own): &(CheckedSchedule, Simulation)| own.makespan().get();
        match after.filter(|own| time(own) <= current || time(own) <= late.at(turn)) {
            Some(own) => {
                current = time(&own);
                pairs = search.pairs(&own.1);
                if current < best {
                    best = current;
                    found.push(own.0);
                }
            }
            None => shift(&mut search.lists[device], to, from),
        }
        late.set(turn, current);
    }
    found
}

struct Search<'a> {
    pipeline: &'a Pipeline,
    costs: &'a Costs,
    start: &'a Start,
    lists: Vec<Vec<Action>>,
}

impl Search<'_> {
    /// The present order with what makes it fit; none where nothing does, or devices wait for each
    /// other.
    fn decoded(&self) -> Option<(CheckedSchedule, Simulation)> {
        let Start { order, means } = self.start;
        let (stages, m) = (order.stages(), order.micro_batches());
        let plain = Schedule::new("auto", stages, m, self.lists.clone());
        let schedule = match thinned(self.pipeline, self.costs, &plain, *means) {
            Some(thinned) => thinned.schedule(stages, m),
            None => return None,
        };
        let schedule = schedule.check().ok()?;
        let simulation = simulate(&schedule, self.costs);
        Some((schedule, simulation))
    }

    /// The places of actions that follow another one on the device and on the critical path, or of
    /// all that follow another one where there are none.
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
