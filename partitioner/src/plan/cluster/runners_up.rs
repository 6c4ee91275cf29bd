//! Runners-up: the best of every other schedule and layout, and the cards without a pipeline.

use std::collections::{HashMap, HashSet};

use super::choices::Choice;
use super::search::ClusterSearch;
use super::trial::ALL_ACTIONS;
use crate::builtin::ScheduleKind;
use crate::machine::Neighbours;
use crate::plan::Alternative;
use crate::plan::candidate::PlanCandidate;
use crate::plan::why::Contender;
use crate::units::Micros;

/// Most other numbers of replicas that are listed beside the best.
const OTHERS: usize = 8;
/// Most choices without a pipeline that are tried beside the plan.
const PLAIN: usize = 8;

/// Summary of a choice that was tried and fits.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    choice: Choice,
    pub(super) step: Micros,
    bubble: f64,
    own: Contender,
    balance: Vec<usize>,
}

impl Tried {
    pub(super) fn new(choice: Choice, found: &PlanCandidate) -> Self {
        let details = found.details();
        Self {
            choice,
            step: found.step,
            bubble: details.bubble,
            own: found.contender(details, None),
            balance: found.solution.partition.balance(),
        }
    }
}

/// Result of the cards without a pipeline.
pub(super) enum Plain {
    Fits(Choice, Box<PlanCandidate>),
    /// No card has enough memory.
    Misfit(Choice),
}

impl ClusterSearch<'_> {
    /// Returns the fastest choice without a pipeline, if asked for and if the best is not one.
    pub(super) fn plain(&self, best: &Choice) -> Option<Plain> {
        if best.is_plain() {
            return None;
        }
        let mut fastest: Option<(Choice, PlanCandidate)> = None;
        for choice in self.plain.iter().take(PLAIN) {
            let trial = self.setting(choice).run(choice, None, ALL_ACTIONS);
            let Some(own) = trial.found else {
                continue;
            };
            if fastest
                .as_ref()
                .is_none_or(|(_, other)| own.step < other.step)
            {
                fastest = Some((*choice, own));
            }
        }
        let found = fastest.map(|(choice, own)| Plain::Fits(choice, Box::new(own)));
        found.or_else(|| self.plain.first().copied().map(Plain::Misfit))
    }

    /// Returns the best of every other schedule, number of replicas and order of neighbours.
    pub(super) fn alternatives(&mut self, best: &Choice, held: &Contender) -> Vec<Alternative> {
        self.tried.sort_by_key(|own| own.step);
        let layout = |choice: &Choice| &self.choices.layouts[choice.layout];
        let kind = |choice: &Choice| (choice.kind, choice.shape.chunks);
        let spread = |choice: &Choice| {
            let own = layout(choice);
            (own.replicas, own.devices, own.neighbours, own.cards())
        };
        let mut kinds = HashSet::from([kind(best)]);
        let mut spreads = HashSet::from([spread(best)]);
        let mut others = Vec::new();
        for own in &self.tried {
            let new_kind = kinds.insert(kind(&own.choice));
            let new_spread = spreads.len() <= OTHERS && spreads.insert(spread(&own.choice));
            if new_kind || new_spread {
                others.push(self.alternative(own, held));
            }
        }
        let mut beaten: HashMap<(ScheduleKind, usize), (Choice, f64)> = HashMap::new();
        for &(choice, bound) in &self.beaten {
            let own = beaten.entry(kind(&choice)).or_insert((choice, bound));
            if bound < own.1 {
                *own = (choice, bound);
            }
        }
        let mut beaten: Vec<_> = beaten
            .into_iter()
            .filter(|(key, _)| !kinds.contains(key))
            .collect();
        beaten.sort_by(|a, b| (a.1.1).total_cmp(&b.1.1).then(a.0.cmp(&b.0)));
        let beaten = beaten.iter().map(|(_, (choice, bound))| {
            let bound = Micros::saturating(*bound);
            let reason = format!("not tried: no cut of it is below {bound}");
            self.bare(choice, reason)
        });
        others.extend(beaten);
        others
    }

    fn alternative(&self, own: &Tried, held: &Contender) -> Alternative {
        Alternative {
            balance: own.balance.clone(),
            recomputing: own.own.recomputing,
            step: Some(own.step),
            bubble_fraction: Some(own.bubble),
            ..self.bare(&own.choice, own.own.loses_to(held))
        }
    }

    fn bare(&self, choice: &Choice, reason: String) -> Alternative {
        let layout = &self.choices.layouts[choice.layout];
        Alternative {
            schedule: choice.kind,
            chunks: choice.shape.chunks,
            replicas: layout.replicas,
            devices: layout.devices,
            neighbours: match layout.devices {
                1 => Neighbours::default(),
                _ => layout.neighbours,
            },
            micro_batches: choice.shape.micro_batches * layout.replicas,
            balance: Vec::new(),
            recomputing: 0,
            step: None,
            bubble_fraction: None,
            peak_bytes: Vec::new(),
            reason,
        }
    }

    /// Inserts the choice without a pipeline in order, unless that is the plan.
    pub(super) fn add_plain(
        &self,
        alternatives: &mut Vec<Alternative>,
        plain: Plain,
        (best, held): (&Choice, &Contender),
    ) {
        let own = match plain {
            Plain::Fits(..) if best.is_plain() => return,
            Plain::Fits(choice, own) => self.alternative(&Tried::new(choice, &own), held),
            Plain::Misfit(choice) => {
                let reason = "does not fit: no device holds the whole model".to_owned();
                self.bare(&choice, reason)
            }
        };
        let is_same = |other: &Alternative| {
            let key = |own: &Alternative| (own.schedule, own.devices, own.chunks);
            key(other) == key(&own)
        };
        alternatives.retain(|other| !is_same(other));
        let sooner = |other: &Alternative| match (other.step, own.step) {
            (Some(other), Some(own)) => other <= own,
            (other, _) => other.is_some(),
        };
        let place = alternatives
            .iter()
            .take_while(|other| sooner(other))
            .count();
        alternatives.insert(place, own);
    }
}
