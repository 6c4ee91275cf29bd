//! Generation of every schedule by its kind, including `auto`.

use crate::auto::auto;
use crate::builtin::{ScheduleError, ScheduleKind};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::schedule::Shape;
use crate::units::Micros;

impl ScheduleKind {
    /// Generates the schedule for p devices, v chunks per device and m micro-batches; `auto` for
    /// equal times of all passes and no caps.
    ///
    /// # Errors
    /// [`ScheduleError::Unsupported`] with the numbers that work.
    ///
    /// # Complexity
    /// Linear in the number of actions; for V schedules, whose greedy placement looks at all
    /// devices, O(p (p + m)) and worse, so they are refused beyond sizes that take seconds.
    pub fn generate(self, shape: Shape) -> Result<CheckedSchedule, ScheduleError> {
        if self != Self::Auto {
            return self.list(shape);
        }
        self.check_shape(shape)?;
        let unit = Micros::new(1.0).unwrap_or_default();
        let costs = Costs::uniform(shape.stages(), unit, unit, unit);
        Ok(auto(shape, &costs, &[], None)?.schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_no_schedule_has_are_refused() {
        for kind in ScheduleKind::ALL {
            for shape in [
                Shape::new(0, 1),
                Shape::new(1, 0),
                Shape::new(1, 1).with_chunks(0),
            ] {
                assert!(kind.generate(shape).is_err());
            }
            for huge in [1 << 30, usize::MAX] {
                assert!(kind.generate(Shape::new(huge, 1)).is_err());
                assert!(kind.generate(Shape::new(1, huge)).is_err());
                assert!(kind.generate(Shape::new(2, 2).with_chunks(huge)).is_err());
            }
        }
    }
}
