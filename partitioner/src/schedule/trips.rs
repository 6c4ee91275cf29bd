//! What is in the host's memory between forward and backward, and when it comes back.
//!
//! With p = 2, m = 3, 1F1B, on the first device:
//! ```text
//! action    0F0   0F1   0B0   0F2   0B1   0B2
//! comes           0     .     1     2
//! is gone         0     1     .     2
//! ```
//! What a forward leaves is copied to the host as it is made, and gone when the device's
//! next action is over. It comes back while the action before its R, B or I runs, so that
//! never more than one micro-batch is on its way back. On the last device every forward
//! is followed by its own backward: there nothing goes.

use super::{Action, Kind, Schedule};
use crate::ids::{DeviceId, MicroId, StageId};
use std::collections::HashSet;

/// What moves between a device and the host while one action runs, each by its stage
/// and micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trip {
    /// Comes back: the device takes it up next.
    pub comes: Option<(StageId, MicroId)>,
    /// Is gone when the action is over.
    pub gone: Option<(StageId, MicroId)>,
}

impl Schedule {
    /// For each action of `device`'s list what moves meanwhile, were all stages to keep
    /// what they can in the host's memory.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{DeviceId, MicroId, ScheduleKind, Shape};
    ///
    /// let checked = ScheduleKind::OneFOneB.generate(Shape::new(2, 3))?;
    /// let comes = |device| -> Vec<_> {
    ///     let trips = checked.schedule().trips(DeviceId(device)).into_iter();
    ///     trips.map(|trip| trip.comes.map(|(_, MicroId(micro))| micro)).collect()
    /// };
    /// assert_eq!(comes(0), [None, Some(0), None, Some(1), Some(2), None]);
    /// assert_eq!(comes(1), [None; 6]);
    /// # Ok::<(), gpipe_partitioner::Error>(())
    /// ```
    pub fn trips(&self, device: DeviceId) -> Vec<Trip> {
        let list = self.actions(device);
        let of = |action: &Action| (action.stage, action.micro);
        let takes_up = |at: usize| list.get(at).filter(|next| next.kind.takes_up()).map(of);
        // On the host by now, but for what is leaving.
        let mut away = HashSet::new();
        let mut left = None;
        let mut trip = |(at, action): (usize, &Action)| {
            let mut trip = Trip {
                gone: left.take(),
                ..Trip::default()
            };
            if let Some(next) = takes_up(at + 1).filter(|next| away.remove(next)) {
                trip.comes = Some(next);
            }
            if action.kind == Kind::Forward && takes_up(at + 1) != Some(of(action)) {
                away.insert(of(action));
                left = Some(of(action));
            }
            trip
        };
        list.iter().enumerate().map(&mut trip).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{ScheduleKind, Shape};

    fn each(mut test: impl FnMut(&str, &[Action], &[Trip])) {
        let mut cases = 0;
        for kind in ScheduleKind::ALL {
            for (devices, chunks, micro_batches) in [
                (1, 1, 3),
                (2, 1, 4),
                (4, 1, 8),
                (2, 2, 4),
                (3, 2, 6),
                (4, 3, 8),
            ] {
                let shape = Shape::new(devices, micro_batches).with_chunks(chunks);
                let Ok(checked) = kind.generate(shape) else {
                    continue;
                };
                for recompute in [false, true] {
                    let wanted = |stage: StageId, _| recompute && stage.0.is_multiple_of(2);
                    let schedule = checked.schedule().clone().with_recomputes(wanted);
                    for (device, list) in schedule.iter() {
                        cases += 1;
                        let case = format!("{kind} {shape:?} {recompute} {device}");
                        test(&case, list, &schedule.trips(device));
                    }
                }
            }
        }
        assert!(cases > 100, "{cases}");
    }

    /// Where the first action of that kind of each stage and micro-batch is.
    fn taken_up(list: &[Action], of: (StageId, MicroId)) -> Option<usize> {
        list.iter()
            .position(|a| (a.stage, a.micro) == of && a.kind.takes_up())
    }

    #[test]
    fn what_comes_is_taken_up_next_and_comes_once() {
        each(|case, list, trips| {
            let mut seen = HashSet::new();
            for (at, trip) in trips.iter().enumerate() {
                let Some(of) = trip.comes else { continue };
                assert!(seen.insert(of), "{case}: {of:?} comes twice");
                assert_eq!(taken_up(list, of), Some(at + 1), "{case}: {of:?}");
            }
        });
    }

    #[test]
    fn whatever_goes_comes_and_the_rest_is_taken_up_directly() {
        each(|case, list, trips| {
            if !list.iter().any(|action| action.kind.takes_up()) {
                return;
            }
            for (at, forward) in list.iter().enumerate() {
                if forward.kind != Kind::Forward {
                    continue;
                }
                let of = (forward.stage, forward.micro);
                let goes = trips.iter().position(|trip| trip.gone == Some(of));
                let comes = trips.iter().position(|trip| trip.comes == Some(of));
                let next = taken_up(list, of).unwrap();
                if next == at + 1 {
                    assert_eq!((goes, comes), (None, None), "{case}: {forward}");
                } else {
                    assert_eq!((goes, comes), (Some(at + 1), Some(next - 1)), "{case}");
                }
            }
        });
    }

    /// At no time is more of a device's than the micro-batches of the present action, the
    /// one before and the one behind.
    #[test]
    fn never_more_than_one_is_ahead() {
        each(|case, list, trips| {
            let mut ahead: Vec<(StageId, MicroId)> = Vec::new();
            for (action, trip) in list.iter().zip(trips) {
                ahead.retain(|of| *of != (action.stage, action.micro));
                ahead.extend(trip.comes);
                assert!(ahead.len() <= 1, "{case}: {ahead:?} at {action}");
            }
            assert!(ahead.is_empty(), "{case}");
        });
    }
}
