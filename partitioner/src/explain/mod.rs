//! Explains why a measured step took longer (or shorter) than predicted.
//!
//! The schedule is replayed with more and more measured quantities:
//!
//! 1. as predicted;
//! 2. with the measured time of each action, but without warm-up;
//! 3. with all measured times;
//! 4. with overlapped pairs one after the other, as an engine runs them;
//! 5. with the measured transfers;
//! 6. the measured timeline itself.
//!
//! Each replay changes the step's length by the cost of one [`Cause`]: the causes add up to the whole
//! difference, to the nanosecond.
//!
//! ```
//! use gpipe_partitioner::{Costs, ActionKind, Micros, ScheduleKind, Shape, StageId, simulate};
//! use gpipe_partitioner::explain::{Cause, explain};
//!
//! let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 4))?;
//! let millisecond = Micros::new(1000.0)?;
//! let costs = Costs::uniform(2, millisecond, millisecond, millisecond);
//! let prediction = simulate(&schedule, &costs);
//! // For want of a measurement: stage 1's backward takes a tenth longer.
//! let slower = costs.with_time(StageId(1), ActionKind::Backward, Micros::new(2200.0)?);
//! let measured = simulate(&schedule, &slower).timeline;
//!
//! let explanation = explain(&prediction, &measured)?;
//! assert_eq!(explanation.largest().cause, Cause::SlowStage);
//! assert_eq!(
//!     explanation.sentence("Step 3"),
//!     "Step 3 took 15.80 ms, 5.3 % longer than predicted (15.00 ms). Most of the difference is \
//!      a slow stage (+800.0 µs): stage 1's backward took 2.20 ms on average where 2.00 ms was \
//!      predicted, 10 % longer."
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cause;
mod contention;
mod delta;
mod devices;
mod durations;
mod error;
mod replays;
mod sentence;
mod stages;

pub use cause::{Cause, Difference};
pub use delta::Delta;
pub use devices::DeviceRow;
pub use error::ExplainError;
pub(crate) use sentence::noun;
pub use stages::StageRow;

use crate::cost::EdgeTimes;
use crate::ids::StageId;
use crate::simulate::Simulation;
use crate::timeline::Timeline;
use durations::Durations;
use replays::{Makespans, Replays};

/// Difference between a step's measured timeline and its prediction, by cause, by stage and by
/// device.
#[derive(Clone, Debug)]
pub struct Explanation {
    measured: Timeline,
    predicted: Timeline,
    differences: Vec<Difference>,
    stages: Vec<StageRow>,
    devices: Vec<DeviceRow>,
    edges: Vec<EdgeRow>,
    /// Effect of other programs on the step.
    others: Option<String>,
}

/// Transfer times from a stage to the next, predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EdgeRow {
    from: StageId,
    predicted: EdgeTimes,
    measured: EdgeTimes,
}

/// Explains the difference between a measured step and its prediction. Transfers count as predicted;
/// their excess counts as [`Cause::Engine`].
///
/// # Errors
/// [`ExplainError`] if the measured timeline is not one whole step of the predicted schedule.
///
/// # Complexity
/// At most 54 replays of the schedule, each linear in the number of its actions.
pub fn explain(prediction: &Simulation, measured: &Timeline) -> Result<Explanation, ExplainError> {
    explain_with_transfers(prediction, measured, |edge| prediction.costs().edge(edge))
}

/// Same as [`explain`] with measured transfers: `transfers` returns those of the edge from a stage to
/// the next one.
///
/// # Errors
/// Those of [`explain`].
pub fn explain_with_transfers(
    prediction: &Simulation,
    measured: &Timeline,
    transfers: impl Fn(StageId) -> EdgeTimes,
) -> Result<Explanation, ExplainError> {
    let edges = edges(prediction, transfers);
    let with_edge = |costs: crate::Costs, edge: &EdgeRow| costs.with_edge(edge.from, edge.measured);
    let costs = edges.iter().fold(prediction.costs().clone(), with_edge);
    let replays = Replays::new(prediction, &costs);
    let cold = Durations::measured(replays.schedule, measured)?;
    let warm = cold.warm(replays.schedule.schedule());
    let makespans = replays.makespans(&cold, &warm, prediction.makespan(), measured.makespan());
    Ok(Explanation {
        differences: cause::differences(&makespans, replays.apart.is_some()),
        stages: stages::rows(&replays, &cold, &warm, &makespans),
        devices: devices::rows(&replays, measured, &prediction.timeline),
        measured: measured.clone(),
        predicted: prediction.timeline.clone(),
        edges,
        others: None,
    })
}

/// The edges between stages of different devices.
fn edges(prediction: &Simulation, transfers: impl Fn(StageId) -> EdgeTimes) -> Vec<EdgeRow> {
    let schedule = prediction.schedule();
    let device = |stage: usize| schedule.device_of(StageId(stage));
    (1..schedule.schedule().stages())
        .filter(|&to| device(to - 1) != device(to))
        .map(|to| EdgeRow {
            from: StageId(to - 1),
            predicted: prediction.costs().edge(StageId(to - 1)),
            measured: transfers(StageId(to - 1)),
        })
        .collect()
}

impl Explanation {
    /// Adds a sentence about other programs that made the step longer. It then replaces the causes in
    /// [`Explanation::sentence`] for a step that took longer than predicted.
    #[must_use]
    pub fn with_others(mut self, others: impl Into<String>) -> Self {
        self.others = Some(others.into());
        self
    }

    /// The measured timeline.
    pub fn measured(&self) -> &Timeline {
        &self.measured
    }

    /// The predicted timeline.
    pub fn predicted(&self) -> &Timeline {
        &self.predicted
    }

    /// Returns by how much the step took longer than predicted.
    pub fn difference(&self) -> Delta {
        Delta::between(self.predicted.makespan(), self.measured.makespan())
    }

    /// Costs of the causes, in the order of attribution: they add up to [`Explanation::difference`].
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// The cause that contributes most in the direction of the whole difference; if that is zero, the
    /// largest in either direction.
    pub fn largest(&self) -> Difference {
        cause::largest(&self.differences, self.difference())
    }

    /// Each kind of work of each stage.
    pub fn stages(&self) -> &[StageRow] {
        &self.stages
    }

    /// Each device's time.
    pub fn devices(&self) -> &[DeviceRow] {
        &self.devices
    }
}
