//! Detects that the balance limits a step, from the times of its own stages.

use gpipe_partitioner::{CheckedSchedule, DeviceId, StageId, Timeline, simulate};

use super::error::TrainError;
use gpipe_torch::StepReport;

/// Smaller idle shares of a step due to the balance are negligible.
const IDLE: f64 = 0.1;

/// A step with this many times the usual idle share is an outlier.
const ALIKE: f64 = 2.0;

/// An uneven balance that costs time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Uneven {
    /// Lower bound of the devices' idle share that it causes.
    idle: f64,
    who: String,
}

impl Uneven {
    /// Describes it, if the idle share is similar in other steps: a single disturbed step tells nothing
    /// of the balance. `bubble` is the simulated idle share of most steps, of which the balance's share
    /// is a part.
    pub(super) fn words(&self, bubble: f64) -> Option<String> {
        (self.idle <= ALIKE * bubble).then(|| {
            format!(
                "{}: by the medians of their times, devices are idle for at least {:.0} % of a step",
                self.who,
                100.0 * self.idle.min(bubble)
            )
        })
    }
}

/// Checks a step that was executed with this schedule.
pub(super) fn uneven_step(
    report: &StepReport,
    schedule: &CheckedSchedule,
    balance: &[usize],
) -> Result<Option<Uneven>, TrainError> {
    let numbers = report.read()?;
    let timeline = report.of_first_replica(&numbers.timeline);
    let costs = timeline.stage_costs(schedule.schedule().stages());
    Ok(uneven(&simulate(schedule, &costs).timeline, balance))
}

/// Finds devices with so unequal work that a step waits for one of them, if another balance could give
/// it less; `predicted` has each stage's median times, and `balance` the layers of each stage.
pub(super) fn uneven(predicted: &Timeline, balance: &[usize]) -> Option<Uneven> {
    let devices = predicted.devices();
    let busy = |device: &usize| predicted.busy(DeviceId(*device));
    let most = (0..devices).rev().max_by_key(busy)?;
    let least = (0..devices).min_by_key(busy)?;
    let work: f64 = (0..devices).map(|device| busy(&device).get()).sum();
    let idle = 1.0 - work / (busy(&most).get() * devices as f64);
    let stages = |device: usize| -> Vec<StageId> {
        let spans = predicted.spans_on(DeviceId(device)).iter();
        let mut stages: Vec<StageId> = spans.map(|span| span.action.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        stages
    };
    // A stage has at least one layer.
    let mut others = stages(most).into_iter();
    let divisible = others.any(|stage| balance.get(stage.index()).is_some_and(|own| *own > 1));
    let limits = idle > IDLE && 2.0 * idle >= predicted.bubble_fraction();
    if !limits || !divisible {
        return None;
    }
    let (what, [most_named, least_named]) = if balance.len() == devices {
        (
            "stage",
            [stages(most)[0].index(), stages(least).first()?.index()],
        )
    } else {
        ("device", [most, least])
    };
    let times = busy(&most).get() / busy(&least).get().max(f64::MIN_POSITIVE);
    let who =
        format!("{what} {most_named} computes {times:.1} times as long as {what} {least_named}");
    Some(Uneven { idle, who })
}

#[cfg(test)]
mod tests {
    use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, simulate};

    use super::*;

    fn found(times: &[f64], micro: usize, balance: &[usize]) -> Option<Uneven> {
        let shape = Shape::new(times.len(), micro);
        let times: Vec<Micros> = times.iter().map(|&t| Micros::new(t).unwrap()).collect();
        let costs = Costs::from_stage_times(&times, &times);
        let schedule = ScheduleKind::OneFOneB.generate(shape).unwrap();
        uneven(&simulate(&schedule, &costs).timeline, balance)
    }

    fn said(times: &[f64], micro: usize, balance: &[usize]) -> Option<String> {
        found(times, micro, balance).and_then(|own| own.words(0.5))
    }

    /// "at least 29 % of a step" was printed below "idle 11.7 % as simulated": the last step had been
    /// disturbed.
    #[test]
    fn a_step_unlike_the_others_says_nothing_of_the_cut() {
        let uneven = found(&[9.0, 1.0], 8, &[4, 2]).unwrap();
        assert_eq!(uneven.words(0.117), None);
        assert!(
            uneven
                .words(0.45)
                .unwrap()
                .contains("at least 44 % of a step")
        );
        // Nor does it exceed the line above it.
        assert!(
            uneven
                .words(0.4)
                .unwrap()
                .contains("at least 40 % of a step")
        );
    }

    #[test]
    fn a_cut_that_costs_time_is_named_and_another_one_is_not() {
        assert_eq!(
            said(&[9.0, 1.0], 8, &[4, 2]).unwrap(),
            "stage 0 computes 9.0 times as long as stage 1: by the medians of their times, devices are \
             idle for at least 44 % of a step"
        );
        assert_eq!(said(&[1.0, 1.05], 8, &[4, 2]), None);
        // Nothing can be divided.
        assert_eq!(said(&[9.0, 1.0], 8, &[1, 5]), None);
        // With one micro-batch, the pipeline itself idles.
        assert_eq!(said(&[1.5, 1.0], 1, &[4, 2]), None);
    }
}
