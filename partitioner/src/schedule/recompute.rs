//! Recomputes as separate actions.
//!
//! With p = 2, m = 3, 1F1B, recomputing all micro-batches but the last of stage 0:
//! ```text
//! 0F0 0F1 0B0 0F2 0B1 0B2   becomes   0F0 0F1 0R0 0B0 0F2 0R1 0B1 0B2
//! ```
//! A device runs its list in order, so it may reach `0R0` while the gradient for `0B0` is still in
//! transfer: the recompute fills idle time.

use super::{Action, ActionKind, Schedule};
use crate::ids::{MicroId, StageId};
use std::collections::HashSet;

impl Schedule {
    /// Adds an `R` directly before the `B` or `I` of every stage and micro-batch for which
    /// `recomputed` is true, or before the forward of the overlapped pair that the `B` belongs to: a
    /// pair remains one unit, and waits for the gradient only after the recompute.
    ///
    /// An existing `R` stays where it is. Micro-batches in flight and legality do not change; a
    /// schedule without backwards stays as it is.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{DeviceId, ScheduleKind, Shape};
    ///
    /// let checked = ScheduleKind::OneFOneB.generate(Shape::new(2, 3))?;
    /// let schedule = checked.schedule().clone();
    /// let except_last = schedule.with_recomputes(|stage, micro| stage.0 == 0 && micro.0 < 2);
    /// let list: Vec<_> = except_last.actions(DeviceId(0)).iter().map(ToString::to_string).collect();
    /// assert_eq!(list.join(" "), "0F0 0F1 0R0 0B0 0F2 0R1 0B1 0B2");
    /// # Ok::<(), gpipe_partitioner::Error>(())
    /// ```
    #[must_use]
    #[doc(alias = "activation checkpointing")]
    #[doc(alias = "gradient checkpointing")]
    pub fn with_recomputes(self, recomputed: impl Fn(StageId, MicroId) -> bool) -> Self {
        let present = present(&self);
        let before = |action: Action| {
            let (stage, micro) = (action.stage, action.micro);
            let wanted = action.kind.gives_input_gradient()
                && !present.contains(&(stage, micro))
                && recomputed(stage, micro);
            wanted.then(|| action.with(ActionKind::Recompute))
        };
        let lists = self
            .iter()
            .map(|(device, list)| insert(list, self.pairs(device), before));
        let (devices, pairs) = lists.unzip();
        Self { devices, ..self }.with_pairs(pairs)
    }

    /// Returns the number of micro-batches with a separate recompute, by stage.
    pub fn recompute_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.stages];
        for (stage, _) in present(self) {
            if let Some(count) = counts.get_mut(stage.index()) {
                *count += 1;
            }
        }
        counts
    }
}

/// Returns the existing recomputes of the schedule.
fn present(schedule: &Schedule) -> HashSet<(StageId, MicroId)> {
    let all = schedule.iter().flat_map(|(_, list)| list);
    all.filter(|action| action.kind == ActionKind::Recompute)
        .map(|action| (action.stage, action.micro))
        .collect()
}

/// Returns `list` with the recomputes that `before` adds before an action, and the new indices of
/// `pairs`.
fn insert(
    list: &[Action],
    pairs: &[usize],
    before: impl Fn(Action) -> Option<Action>,
) -> (Vec<Action>, Vec<usize>) {
    let mut longer = Vec::with_capacity(list.len());
    let mut places = Vec::with_capacity(list.len());
    let pair = |at: usize| {
        let kind = |at: usize| list.get(at).map(|action| action.kind);
        pairs.binary_search(&at).is_ok()
            && kind(at) == Some(ActionKind::Forward)
            && kind(at + 1) == Some(ActionKind::Backward)
    };
    for (at, &action) in list.iter().enumerate() {
        if pair(at) {
            longer.extend(list.get(at + 1).and_then(|&partner| before(partner)));
        } else if !at.checked_sub(1).is_some_and(pair) {
            longer.extend(before(action));
        }
        places.push(longer.len());
        longer.push(action);
    }
    // An index beyond the list's end is no pair, and must not become one.
    let grown = longer.len() - list.len();
    let moved = |&at: &usize| places.get(at).copied().unwrap_or(at.saturating_add(grown));
    (longer, pairs.iter().map(moved).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::DeviceId;

    fn actions(text: &str) -> Vec<Action> {
        text.split_whitespace()
            .map(|action| action.parse().unwrap())
            .collect()
    }

    /// One stage and three micro-batches.
    fn single(text: &str, pairs: &[usize]) -> Schedule {
        Schedule::new("test", 1, 3, vec![actions(text)]).with_pairs(vec![pairs.to_vec()])
    }

    fn written(schedule: &Schedule) -> String {
        schedule.to_csv().trim_end().replace(',', " ")
    }

    #[test]
    fn a_recompute_stands_directly_before_the_backward() {
        let schedule = single("0F0 0F1 0F2 0B0 0I1 0W1 0B2", &[]);
        let always = schedule.clone().with_recomputes(|_, _| true);
        assert_eq!(written(&always), "0F0 0F1 0F2 0R0 0B0 0R1 0I1 0W1 0R2 0B2");
        let except_last = schedule.with_recomputes(|_, micro| micro.0 < 2);
        assert_eq!(written(&except_last), "0F0 0F1 0F2 0R0 0B0 0R1 0I1 0W1 0B2");
    }

    #[test]
    fn one_that_is_there_stays_where_it_is() {
        let schedule = single("0F0 0R0 0F1 0B0 0B1 0F2 0B2", &[]);
        let all = schedule.with_recomputes(|_, _| true);
        assert_eq!(written(&all), "0F0 0R0 0F1 0B0 0R1 0B1 0F2 0R2 0B2");
        assert_eq!(all.clone().with_recomputes(|_, _| true), all);
    }

    #[test]
    fn a_pair_stays_a_pair() {
        let schedule = single("0F0 0F1 0B0 0F2 0B1 0B2", &[1, 3]);
        let all = schedule.clone().with_recomputes(|_, _| true);
        assert_eq!(all.pairs(DeviceId(0)), [2, 5]);
        assert_eq!(
            written(&all),
            "0F0 0R0 (0F1;0B0)OVERLAP_F_B 0R1 (0F2;0B1)OVERLAP_F_B 0R2 0B2"
        );
        all.check().unwrap();
        let one = schedule.with_recomputes(|_, micro| micro.0 == 1);
        assert_eq!(one.pairs(DeviceId(0)), [1, 4]);
        one.check().unwrap();
    }

    #[test]
    fn inference_recomputes_nothing() {
        let schedule = single("0F0 0F1 0F2", &[]);
        assert_eq!(schedule.clone().with_recomputes(|_, _| true), schedule);
    }

    #[test]
    fn what_is_no_pair_does_not_become_one() {
        let text = "0F0 0F1 0B0 0F2 0B1 0B2";
        for pairs in [
            vec![0],
            vec![2],
            vec![5],
            vec![6],
            vec![7],
            vec![3, 1],
            vec![usize::MAX],
        ] {
            let before = single(text, &pairs).check().unwrap_err();
            let after = single(text, &pairs).with_recomputes(|_, _| true).check();
            let after = after.unwrap_err();
            assert_eq!(
                std::mem::discriminant(&before),
                std::mem::discriminant(&after),
                "{pairs:?}: {after}"
            );
        }
    }
}
