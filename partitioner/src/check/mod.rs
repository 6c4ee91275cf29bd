//! Legality: a schedule becomes a [`CheckedSchedule`], or an error says why not.
//!
//! Legal means: every stage and micro-batch has exactly one F and, when training, either one B or
//! one I and one W, and at most one R; a stage's actions are all on one device; and everything
//! completes when each device runs its list in order, where
//! - F(s, i) waits for F(s−1, i),
//! - B(s, i) and I(s, i) wait for F(s, i) and for B or I(s+1, i),
//! - W(s, i) waits for I(s, i), and R(s, i) lies between F(s, i) and B or I(s, i).
//!
//! A schedule without any backward is legal too: it is inference.

mod csv;
mod deadlock;
mod error;
mod memory;

pub use csv::CsvFormat;
pub use error::{Blocked, CheckError};

use crate::ids::{DeviceId, MicroId, StageId};
use crate::schedule::{Action, ActionKind, Schedule};
pub use crate::schedule::{MAX_CELLS, MAX_STAGES};
use crate::walk::{NOBODY, walk};
use memory::InFlight;
use std::sync::Arc;

/// A schedule proved legal: it can be simulated and run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CheckedSchedule {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    schedule: Schedule,
    owner: Vec<u32>,
    training: bool,
    in_order: bool,
    in_flight: InFlight,
}

impl CheckedSchedule {
    /// The schedule itself.
    pub fn schedule(&self) -> &Schedule {
        &self.inner.schedule
    }

    /// The device that runs `stage`.
    ///
    /// # Panics
    /// When the schedule has no such stage.
    #[doc(alias = "rank")]
    pub fn device_of(&self, stage: StageId) -> DeviceId {
        DeviceId(self.inner.owner[stage.index()] as usize)
    }

    /// The stages that `device` runs, in increasing order.
    pub fn stages_on(&self, device: DeviceId) -> Vec<StageId> {
        let on = |stage: &StageId| self.device_of(*stage) == device;
        (0..self.inner.owner.len())
            .map(StageId)
            .filter(on)
            .collect()
    }

    /// The most micro-batches whose activations `stage` holds at once: one counts from the start of
    /// its F to the end of its B, or of its W if the backward is split (only then is the input of W
    /// freed). In inference none is held beyond its F: 1.
    ///
    /// # Panics
    /// When the schedule has no such stage.
    #[doc(alias = "in-flight")]
    #[doc(alias = "warm-up")]
    pub fn peak_in_flight(&self, stage: StageId) -> usize {
        self.inner.in_flight.stages[stage.index()]
    }

    /// Same as `peak_in_flight`, for all stages of `device` together, in device-micro-batches: a
    /// micro-batch on one of v stages counts 1/v. 0 for a device without stages.
    pub fn peak_in_flight_on(&self, device: DeviceId) -> f64 {
        let peak = self.inner.in_flight.devices.get(device.index());
        peak.copied().unwrap_or_default()
    }

    /// Whether each stage adds its gradients (B or W) in increasing micro-batch order, so that sums
    /// do not depend on the schedule.
    pub fn accumulates_in_order(&self) -> bool {
        self.inner.in_order
    }

    /// Whether there is a backward; without one the schedule is inference.
    pub fn is_training(&self) -> bool {
        self.inner.training
    }

    /// The device of each stage, as indices.
    pub(crate) fn owner(&self) -> &[u32] {
        &self.inner.owner
    }
}

impl Schedule {
    /// Checks that the schedule completes, by running it symbolically.
    ///
    /// # Errors
    /// The first rule that is broken, see [`CheckError`].
    ///
    /// # Complexity
    /// Linear in the number of actions.
    pub fn check(self) -> Result<CheckedSchedule, CheckError> {
        check(self)
    }
}

fn check(schedule: Schedule) -> Result<CheckedSchedule, CheckError> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    if stages == 0 || micro_batches == 0 {
        return Err(CheckError::Empty {
            stages,
            micro_batches,
        });
    }
    let cells = stages.checked_mul(micro_batches);
    if stages > MAX_STAGES || cells.is_none_or(|cells| cells > MAX_CELLS) {
        return Err(CheckError::TooLarge {
            stages,
            micro_batches,
        });
    }
    let training = schedule
        .iter()
        .any(|(_, list)| list.iter().any(|a| a.kind != ActionKind::Forward));
    let owner = complete(&schedule, training)?;
    pairs_are_pairs(&schedule)?;
    offloads_are_there(&schedule, training)?;
    let mut in_order = InOrder::new(stages);
    let mut in_flight = memory::Counter::new(&schedule, &owner, training);
    walk(&schedule, &owner, |device, _, action| {
        in_order.see(action);
        in_flight.see(device, action);
    })
    .map_err(|stuck| deadlock::explain(&schedule, &owner, &stuck))?;
    let inner = Inner {
        in_flight: in_flight.finish(),
        in_order: in_order.yes,
        schedule,
        owner,
        training,
    };
    Ok(CheckedSchedule {
        inner: Arc::new(inner),
    })
}

/// Checks that every (stage, micro-batch) has its required actions, once; returns the device of
/// each stage.
fn complete(schedule: &Schedule, training: bool) -> Result<Vec<u32>, CheckError> {
    let m = schedule.micro_batches();
    let mut seen = vec![0u8; schedule.stages() * m];
    let mut owner = vec![NOBODY; schedule.stages()];
    for (device, list) in schedule.iter() {
        for (position, &action) in list.iter().enumerate() {
            let (stage, micro) = (action.stage.index(), action.micro.index());
            if stage >= schedule.stages() || micro >= m {
                return Err(CheckError::OutOfRange {
                    device,
                    position,
                    action,
                    stages: schedule.stages(),
                    micro_batches: m,
                });
            }
            // A u32 holds every device that has an action of a legal stage, but not every index of
            // a list.
            let here = u32::try_from(device.index()).unwrap_or(NOBODY - 1);
            match owner[stage] {
                NOBODY => owner[stage] = here,
                first if first != here => {
                    return Err(CheckError::StageOnTwoDevices {
                        stage: action.stage,
                        first: DeviceId(first as usize),
                        second: device,
                        position,
                        action,
                    });
                }
                _ => {}
            }
            see(&mut seen[stage * m + micro], device, position, action)?;
        }
    }
    none_missing(&seen, m, training, &owner)?;
    Ok(owner)
}

/// Checks that every overlapped pair is a forward and the joint backward after it.
fn pairs_are_pairs(schedule: &Schedule) -> Result<(), CheckError> {
    for (device, list) in schedule.iter() {
        let pairs = schedule.pairs(device);
        let kind = |position: usize| list.get(position).map(|action| action.kind);
        let is_pair = |&position: &usize| {
            kind(position) == Some(ActionKind::Forward)
                && kind(position + 1) == Some(ActionKind::Backward)
        };
        let sorted = pairs.windows(2).all(|two| two[0] < two[1]);
        let wrong = pairs
            .iter()
            .copied()
            .find(|position| !sorted || !is_pair(position));
        if let Some(position) = wrong {
            return Err(CheckError::NotAPair { device, position });
        }
    }
    Ok(())
}

/// Checks that every offload belongs to a forward.
fn offloads_are_there(schedule: &Schedule, is_training: bool) -> Result<(), CheckError> {
    let here = |stage: StageId, micro: MicroId| {
        stage.index() < schedule.stages() && micro.index() < schedule.micro_batches()
    };
    let mut all = schedule.offloads().iter();
    match all.find(|&&(stage, micro)| !is_training || !here(stage, micro)) {
        Some(&(stage, micro)) => Err(CheckError::NothingToOffload {
            stage,
            micro,
            is_training,
        }),
        None => Ok(()),
    }
}

/// The bit of a kind within a (stage, micro-batch).
const fn bit(kind: ActionKind) -> u8 {
    1 << kind as u8
}

/// Notes `action` in its cell. Refuses a duplicate, a second backward of another sort, and a
/// recompute after its backward.
fn see(cell: &mut u8, device: DeviceId, position: usize, action: Action) -> Result<(), CheckError> {
    let has = |kind| *cell & bit(kind) != 0;
    if has(action.kind) {
        return Err(CheckError::Doubled {
            device,
            position,
            action,
        });
    }
    let halves = has(ActionKind::BackwardInput) || has(ActionKind::BackwardWeight);
    let mixed = match action.kind {
        ActionKind::Backward => halves,
        ActionKind::BackwardInput | ActionKind::BackwardWeight => has(ActionKind::Backward),
        ActionKind::Forward | ActionKind::Recompute => false,
    };
    if mixed {
        return Err(CheckError::TwoBackwards {
            device,
            position,
            action,
        });
    }
    let gradient = has(ActionKind::Backward) || has(ActionKind::BackwardInput);
    if action.kind == ActionKind::Recompute && gradient {
        return Err(CheckError::LateRecompute {
            device,
            position,
            action,
        });
    }
    *cell |= bit(action.kind);
    Ok(())
}

/// Checks that every cell has its F and, in training, its backward.
fn none_missing(seen: &[u8], m: usize, training: bool, owner: &[u32]) -> Result<(), CheckError> {
    const WHOLE: u8 = bit(ActionKind::Backward);
    const SPLIT: u8 = bit(ActionKind::BackwardInput) | bit(ActionKind::BackwardWeight);
    for (index, &cell) in seen.iter().enumerate() {
        let missing = if cell & bit(ActionKind::Forward) == 0 {
            ActionKind::Forward
        } else if !training || cell & WHOLE != 0 || cell & SPLIT == SPLIT {
            continue;
        } else if cell & bit(ActionKind::BackwardInput) != 0 {
            ActionKind::BackwardWeight
        } else if cell & bit(ActionKind::BackwardWeight) != 0 {
            ActionKind::BackwardInput
        } else {
            ActionKind::Backward
        };
        let device = match owner[index / m] {
            NOBODY => None,
            device => Some(DeviceId(device as usize)),
        };
        let action = Action::new(index / m, missing, index % m);
        return Err(CheckError::Missing { action, device });
    }
    Ok(())
}

/// Whether gradients are added in increasing micro-batch order.
struct InOrder {
    next: Vec<usize>,
    yes: bool,
}

impl InOrder {
    fn new(stages: usize) -> Self {
        Self {
            next: vec![0; stages],
            yes: true,
        }
    }

    fn see(&mut self, action: Action) {
        if action.kind.accumulates() {
            let next = &mut self.next[action.stage.index()];
            self.yes &= action.micro.index() >= *next;
            *next = action.micro.index();
        }
    }
}

#[cfg(test)]
mod tests;
