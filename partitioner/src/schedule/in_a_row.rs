//! Several steps in a row, without a barrier between them.

use super::{Action, Schedule};
use crate::ids::MicroId;

impl Schedule {
    /// Returns `steps` steps in a row without a barrier: every device runs its list `steps` times.
    /// Micro-batch i of step k has the number k·m + i.
    ///
    /// A stage's first forward of a step follows its last backward of the step before, so it can
    /// update its weights in between, independently of other devices: Zero Bubble's post-validation
    /// (Qi et al. 2024, section 4).
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, simulate};
    ///
    /// let step = ScheduleKind::ZbH2.generate(Shape::new(4, 8))?;
    /// let run = step.schedule().in_a_row(20).check()?;
    /// let unit = Micros::new(1.0)?;
    /// let costs = Costs::uniform(4, unit, unit, unit);
    /// // Alone, a step has a bubble; in the steady state of a run it has none.
    /// assert!(simulate(&step, &costs).timeline.bubble_fraction() > 0.1);
    /// assert_eq!(simulate(&run, &costs).timeline.steady_bubble(20), Some(0.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[doc(alias = "post-validation")]
    pub fn in_a_row(&self, steps: usize) -> Self {
        let later = |step: usize, action: Action| {
            let micro = MicroId(step * self.micro_batches + action.micro.index());
            Action { micro, ..action }
        };
        let devices = self.devices.iter().map(|list| {
            let all = (0..steps).flat_map(|step| list.iter().map(move |own| later(step, *own)));
            all.collect()
        });
        let devices: Vec<Vec<Action>> = devices.collect();
        let pairs = self.pairs.iter().zip(&self.devices).map(|(pairs, list)| {
            let places = |step| pairs.iter().map(move |place| step * list.len() + place);
            (0..steps).flat_map(places).collect()
        });
        let later = |step: usize| {
            let micro = move |micro: MicroId| MicroId(step * self.micro_batches + micro.index());
            self.offloads
                .iter()
                .map(move |&(stage, own)| (stage, micro(own)))
        };
        Self {
            offloads: (0..steps).flat_map(later).collect(),
            name: self.name.clone(),
            stages: self.stages,
            micro_batches: self.micro_batches * steps,
            devices,
            pairs: pairs.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{Costs, Micros, ScheduleKind, Shape, simulate};

    proptest! {
        /// A legal schedule is legal several times in a row, and no step takes longer than alone.
        #[test]
        fn steps_in_a_row_are_legal_and_take_no_longer(
            kind in prop::sample::select(&ScheduleKind::ALL),
            devices in 1..=4_usize,
            chunks in 1..=2_usize,
            micro_batches in 1..=9_usize,
            steps in 1..=5_usize,
            times in prop::array::uniform3(1..=9_u32),
        ) {
            let shape = Shape { devices, chunks, micro_batches };
            let Ok(step) = kind.generate(shape) else { return Ok(()) };
            let run = step.schedule().in_a_row(steps).check();
            let run = run.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(run.schedule().micro_batches(), steps * micro_batches);
            let [forward, input, weight] =
                times.map(|time| Micros::new(f64::from(time)).unwrap());
            let costs = Costs::uniform(shape.stages(), forward, input, weight);
            let alone = simulate(&step, &costs).timeline;
            let together = simulate(&run, &costs).timeline;
            prop_assert!(together.makespan() <= alone.makespan() * steps as f64);
            if let Some(bubble) = together.steady_bubble(steps) {
                prop_assert!((0.0..=1.0).contains(&bubble));
            }
        }
    }
}
