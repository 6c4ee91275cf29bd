//! Recomputes single micro-batches of a schedule until it fits the memory.
//!
//! Of those that a device holds when an action does not fit, the one goes first whose backward is
//! furthest away (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966):
//! it makes room for the longest. Its recompute stands right before its backward, where it is done
//! while the device waits for the gradient, if it does.

use std::collections::{BTreeMap, HashMap};

use super::pipeline::Pipeline;
use super::state::Move;
use crate::ids::{MicroId, StageId};
use crate::schedule::{Action, ActionKind, Schedule};

/// Whether any stage has activations that an action of its own may recompute.
pub(super) fn is_possible(pipeline: &Pipeline) -> bool {
    pipeline.stages.iter().any(|stage| stage.bytes.may_drop())
}

/// The actions of each device with as many recomputes as memory asks for; none where that is not
/// enough, where no memory asks for any, or where actions are paired.
///
/// # Complexity
/// O(actions · log actions).
pub(super) fn thinned(pipeline: &Pipeline, schedule: &Schedule) -> Option<Vec<Vec<Action>>> {
    let mut is_changed = false;
    let lists = schedule.iter().map(|(device, list)| {
        if !schedule.pairs(device).is_empty() {
            return None;
        }
        let thinned = Device::new(pipeline, device.index(), list).thinned(list)?;
        is_changed |= thinned.len() > list.len();
        Some(thinned)
    });
    let lists: Option<Vec<_>> = lists.collect();
    lists.filter(|_| is_changed)
}

/// A device on its way through its list.
struct Device<'a> {
    pipeline: &'a Pipeline,
    cap: u64,
    bytes: u64,
    /// Where in the list the gradient of the inputs is made.
    backward: HashMap<(StageId, MicroId), usize>,
    /// What may still be dropped, by the place of its backward.
    held: BTreeMap<usize, Action>,
    dropped: Vec<bool>,
    made: Vec<bool>,
}

impl<'a> Device<'a> {
    fn new(pipeline: &'a Pipeline, device: usize, list: &[Action]) -> Self {
        let own = &pipeline.devices[device];
        let gradients = list.iter().enumerate();
        let gradients = gradients.filter(|(_, action)| action.kind.gives_input_gradient());
        Self {
            pipeline,
            cap: own.cap.unwrap_or(u64::MAX),
            bytes: own.at_first,
            backward: (gradients.map(|(at, action)| ((action.stage, action.micro), at))).collect(),
            held: BTreeMap::new(),
            dropped: vec![false; list.len()],
            made: vec![false; pipeline.stages.len()],
        }
    }

    fn thinned(mut self, list: &[Action]) -> Option<Vec<Action>> {
        let mut longer = Vec::with_capacity(list.len());
        for (at, &action) in list.iter().enumerate() {
            self.held.remove(&at);
            if self.dropped[at] {
                self.take(action, Move::Recompute)?;
                longer.push(action.with(ActionKind::Recompute));
            }
            match action.kind {
                ActionKind::Forward => self.forward(action)?,
                kind => self.take(action, Move::of(kind))?,
            }
            longer.push(action);
        }
        Some(longer)
    }

    /// A forward that keeps its activations, or drops them at once where it is the one to go.
    fn forward(&mut self, action: Action) -> Option<()> {
        let own = &self.pipeline.stages[action.stage.index()].bytes;
        let backward = self.backward.get(&(action.stage, action.micro)).copied();
        let Some(place) = backward.filter(|_| own.may_drop()) else {
            return self.take(action, Move::Forward);
        };
        let step = own.step(Move::Forward, false);
        while !self.fits(step.during, step.after) {
            match self.held.last_key_value() {
                Some((&other, _)) if other > place => self.drop_last(),
                _ => {
                    self.dropped[place] = true;
                    return self.take(action, Move::Dropping);
                }
            }
        }
        self.held.insert(place, action);
        self.take(action, Move::Forward)
    }

    /// Does an action, for which others go where it does not fit; none where that is not enough.
    fn take(&mut self, action: Action, what: Move) -> Option<()> {
        let stage = action.stage.index();
        let first = action.kind.accumulates()
            && what != Move::Recompute
            && !std::mem::replace(&mut self.made[stage], true);
        let step = self.pipeline.stages[stage].bytes.step(what, first);
        while !self.fits(step.during, step.after) {
            self.held.last_key_value()?;
            self.drop_last();
        }
        self.bytes = self.bytes.saturating_add_signed(step.after);
        Some(())
    }

    fn fits(&self, during: u64, after: i64) -> bool {
        self.bytes + during <= self.cap && self.bytes.saturating_add_signed(after) <= self.cap
    }

    fn drop_last(&mut self) {
        if let Some((place, action)) = self.held.pop_last() {
            self.dropped[place] = true;
            let own = &self.pipeline.stages[action.stage.index()].bytes;
            self.bytes -= own.step(Move::Recompute, false).after.unsigned_abs();
        }
    }
}
