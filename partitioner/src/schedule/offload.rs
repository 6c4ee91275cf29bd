//! Activation offload: what is in the host's memory between forward and backward, and its return.
//!
//! With p = 2, m = 3, 1F1B, on the first device:
//! ```text
//! action       0F0   0F1   0B0   0F2   0B1   0B2
//! prefetched         0     .     1     2
//! released           0     1     .     2
//! ```
//! A forward's activations are copied to the host (D2H) as they are made, and the device's
//! copy is released at the end of the device's next action. They are prefetched (H2D) while
//! the action before their R, B or I runs, so that no more than one micro-batch is prefetched
//! at a time. On the last device every forward is followed by its own backward: nothing is
//! offloaded there.

use super::{Action, ActionKind, Schedule};
use crate::ids::{DeviceId, MicroId, StageId};
use std::collections::{BTreeSet, HashSet};

/// Transfers between a device and the host while one action runs, each by stage and micro-batch.
#[doc(alias = "offload")]
#[doc(alias = "prefetch")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadMove {
    /// Activations that are copied back meanwhile; the device's next action needs them.
    pub prefetched: Option<(StageId, MicroId)>,
    /// Activations that the device releases when the action ends.
    pub released: Option<(StageId, MicroId)>,
}

impl Schedule {
    /// Sets the offloads to these activations, by stage and micro-batch, and no others, even for
    /// stages that offload all micro-batches. Empty: the schedule does not decide, and stages that
    /// offload do so for all.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{DeviceId, MicroId, ScheduleKind, Shape, StageId};
    ///
    /// let checked = ScheduleKind::GPipe.generate(Shape::new(1, 4))?;
    /// let schedule = checked.schedule().clone().with_offloads([(StageId(0), MicroId(0))]);
    /// assert_eq!(schedule.to_csv(), "0F0,0OFFLOAD0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n");
    /// let moves = schedule.offload_moves(DeviceId(0));
    /// assert_eq!(moves.iter().filter(|one| one.released.is_some()).count(), 1);
    /// # Ok::<(), gpipe_partitioner::Error>(())
    /// ```
    #[must_use]
    #[doc(alias = "CPU offload")]
    pub fn with_offloads(self, offloads: impl IntoIterator<Item = (StageId, MicroId)>) -> Self {
        Self {
            offloads: offloads.into_iter().collect(),
            ..self
        }
    }

    /// Offloads that the schedule lists, by stage and micro-batch; empty if it does not decide.
    pub fn offloads(&self) -> &BTreeSet<(StageId, MicroId)> {
        &self.offloads
    }

    /// Returns the number of listed offloads of each stage.
    pub fn offload_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.stages()];
        for (stage, _) in &self.offloads {
            if let Some(count) = counts.get_mut(stage.index()) {
                *count += 1;
            }
        }
        counts
    }

    /// Whether a stage that offloads does so for this micro-batch.
    fn may_leave(&self, of: (StageId, MicroId)) -> bool {
        self.offloads.is_empty() || self.offloads.contains(&of)
    }

    /// Returns, for each action of `device`'s list, the transfers between device and host
    /// meanwhile, if every stage offloads as much as possible, or, if the schedule lists offloads
    /// ([`with_offloads`](Self::with_offloads)), those.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{DeviceId, MicroId, ScheduleKind, Shape};
    ///
    /// let checked = ScheduleKind::OneFOneB.generate(Shape::new(2, 3))?;
    /// let prefetched = |device| -> Vec<_> {
    ///     let moves = checked.schedule().offload_moves(DeviceId(device)).into_iter();
    ///     moves.map(|each| each.prefetched.map(|(_, MicroId(micro))| micro)).collect()
    /// };
    /// assert_eq!(prefetched(0), [None, Some(0), None, Some(1), Some(2), None]);
    /// assert_eq!(prefetched(1), [None; 6]);
    /// # Ok::<(), gpipe_partitioner::Error>(())
    /// ```
    pub fn offload_moves(&self, device: DeviceId) -> Vec<OffloadMove> {
        let list = self.actions(device);
        let of = |action: &Action| (action.stage, action.micro);
        let consumed = |at: usize| {
            let action = list.get(at);
            action
                .filter(|next| next.kind.consumes_activations())
                .map(of)
        };
        // Activations that are on the host, or on their way there.
        let mut offloaded = HashSet::new();
        let mut leaving = None;
        let moves = |(at, action): (usize, &Action)| {
            let mut moves = OffloadMove {
                released: leaving.take(),
                ..OffloadMove::default()
            };
            if let Some(next) = consumed(at + 1).filter(|next| offloaded.remove(next)) {
                moves.prefetched = Some(next);
            }
            if action.kind == ActionKind::Forward
                && consumed(at + 1) != Some(of(action))
                && self.may_leave(of(action))
            {
                offloaded.insert(of(action));
                leaving = Some(of(action));
            }
            moves
        };
        list.iter().enumerate().map(moves).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::schedule::Shape;

    fn each(mut test: impl FnMut(&str, &[Action], &[OffloadMove])) {
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
                        test(&case, list, &schedule.offload_moves(device));
                    }
                }
            }
        }
        assert!(cases > 100, "{cases}");
    }

    /// Returns the index of the first action that consumes the activations.
    fn consumed(list: &[Action], of: (StageId, MicroId)) -> Option<usize> {
        list.iter()
            .position(|a| (a.stage, a.micro) == of && a.kind.consumes_activations())
    }

    #[test]
    fn what_is_prefetched_is_consumed_next_and_prefetched_once() {
        each(|case, list, moves| {
            let mut seen = HashSet::new();
            for (at, one) in moves.iter().enumerate() {
                let Some(of) = one.prefetched else { continue };
                assert!(seen.insert(of), "{case}: {of:?} is prefetched twice");
                assert_eq!(consumed(list, of), Some(at + 1), "{case}: {of:?}");
            }
        });
    }

    #[test]
    fn whatever_is_released_is_prefetched_and_the_rest_is_consumed_directly() {
        each(|case, list, moves| {
            if !list.iter().any(|action| action.kind.consumes_activations()) {
                return;
            }
            for (at, forward) in list.iter().enumerate() {
                if forward.kind != ActionKind::Forward {
                    continue;
                }
                let of = (forward.stage, forward.micro);
                let released = moves.iter().position(|one| one.released == Some(of));
                let prefetched = moves.iter().position(|one| one.prefetched == Some(of));
                let next = consumed(list, of).unwrap();
                if next == at + 1 {
                    assert_eq!((released, prefetched), (None, None), "{case}: {forward}");
                } else {
                    assert_eq!(
                        (released, prefetched),
                        (Some(at + 1), Some(next - 1)),
                        "{case}"
                    );
                }
            }
        });
    }

    #[test]
    fn only_what_the_schedule_names_moves() {
        each(|case, list, _| {
            let wanted = |action: &Action| action.micro.index() % 2 == 1;
            let own = list.iter().filter(|action| wanted(action));
            let own: Vec<_> = own.map(|action| (action.stage, action.micro)).collect();
            if own.is_empty() {
                return;
            }
            let stages = 1 + list
                .iter()
                .map(|action| action.stage.index())
                .max()
                .unwrap_or(0);
            let all = Schedule::new("test", stages, 8, vec![list.to_vec()]);
            let moves = all.offload_moves(DeviceId(0));
            let some = all.with_offloads(own).offload_moves(DeviceId(0));
            for (all, some) in moves.iter().zip(some) {
                let odd = |of: Option<(StageId, MicroId)>| of.filter(|of| of.1.index() % 2 == 1);
                assert_eq!(odd(all.prefetched), some.prefetched, "{case}");
                assert_eq!(odd(all.released), some.released, "{case}");
            }
        });
    }

    /// A device never holds offloaded activations of more than the micro-batches of the present
    /// action, the previous one and the next one.
    #[test]
    fn never_more_than_one_is_ahead() {
        each(|case, list, moves| {
            let mut ahead: Vec<(StageId, MicroId)> = Vec::new();
            for (action, one) in list.iter().zip(moves) {
                ahead.retain(|of| *of != (action.stage, action.micro));
                ahead.extend(one.prefetched);
                assert!(ahead.len() <= 1, "{case}: {ahead:?} at {action}");
            }
            assert!(ahead.is_empty(), "{case}");
        });
    }
}
