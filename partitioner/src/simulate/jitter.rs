//! Cost of action times that vary.

use super::{Simulation, timeline_of};
use crate::schedule::{Action, ActionKind};
use crate::units::Micros;
use crate::value_error::ValueError;

/// Variation of action times: the time of one pass of a micro-batch on a device, forward or backward, is
/// multiplied by a random factor from a log-normal distribution with mean 1. All chunks of the device and
/// both halves of a backward have the same factor, so that a schedule that cuts the same work into more
/// actions does not average it away.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "straggler")]
pub struct Jitter {
    share: f64,
    runs: usize,
    seed: u64,
}

/// Steps with random action times.
#[derive(Clone, Debug, PartialEq)]
pub struct JitteredSteps {
    exact: Micros,
    /// In increasing order.
    makespans: Vec<Micros>,
    bubble_fraction: f64,
}

impl Jitter {
    /// Creates factors with standard deviation `share` (0.05 is 5 %), over `runs` runs: at least one. The
    /// same seed gives a device, micro-batch and pass the same factor in every schedule, so that schedules
    /// are compared with the same random numbers.
    ///
    /// # Errors
    /// [`ValueError::Parse`] when `share` is not from 0 to 1.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{Costs, Jitter, Micros, ScheduleKind, Shape, simulate};
    /// let unit = Micros::new(1000.0)?;
    /// let costs = Costs::uniform(4, unit, unit, unit);
    /// let schedule = ScheduleKind::OneFOneB.generate(Shape::new(4, 16))?;
    /// let simulation = simulate(&schedule, &costs);
    /// let steps = simulation.jittered(&Jitter::new(0.05, 50, 1)?);
    /// // Somebody is late at every turn, and the others wait.
    /// assert!(steps.mean() > simulation.makespan());
    /// # Ok::<(), gpipe_partitioner::Error>(())
    /// ```
    pub fn new(share: f64, runs: usize, seed: u64) -> Result<Self, ValueError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(ValueError::Parse {
                text: share.to_string(),
                expected: "a share from 0 to 1",
            });
        }
        Ok(Self {
            share,
            runs: runs.max(1),
            seed,
        })
    }

    /// The standard deviation of a pass's time, as a share of its mean.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Number of simulated steps.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// Seed of the factors.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the factor of `action` on `device` in a run.
    fn factor(&self, run: usize, device: u32, action: Action) -> f64 {
        // A recompute is part of the backward pass.
        let is_forward = action.kind == ActionKind::Forward;
        // The second of two runs mirrors the first, to reduce the error of the mean (antithetic variates,
        // Hammersley and Morton 1956).
        let numbers = [
            (run / 2) as u64,
            u64::from(device),
            u64::from(is_forward),
            action.micro.index() as u64,
        ];
        let bits = numbers
            .iter()
            .fold(mixed(self.seed), |bits, &number| mixed(bits ^ number));
        // Box and Muller: a normal number from two uniform ones in (0, 1].
        let [radius, angle] = [bits, mixed(bits)].map(uniform);
        let side = if run.is_multiple_of(2) { 1.0 } else { -1.0 };
        let normal = side * (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        let variance = (1.0 + self.share * self.share).ln();
        (variance.sqrt() * normal - 0.5 * variance).exp()
    }
}

/// SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
fn mixed(bits: u64) -> u64 {
    let mut bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn uniform(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
}

impl Simulation {
    /// Simulates the schedule in steps with random action times. Transfers, hosts and exchanges do not vary.
    ///
    /// # Complexity
    /// One simulation per run.
    pub fn jittered(&self, jitter: &Jitter) -> JitteredSteps {
        let owner = self.schedule.owner();
        let step = |run: usize| {
            let duration = |action: Action| {
                let time = self.costs.stage(action.stage).of(action.kind);
                time * jitter.factor(run, owner[action.stage.index()], action)
            };
            let timeline = timeline_of(&self.schedule, &self.costs, duration);
            (timeline.makespan(), timeline.bubble_fraction())
        };
        let steps: Vec<(Micros, f64)> = (0..jitter.runs).map(step).collect();
        let all: f64 = steps.iter().map(|(step, _)| step.get()).sum();
        let idle: f64 = steps.iter().map(|(step, idle)| step.get() * idle).sum();
        let mut makespans: Vec<Micros> = steps.into_iter().map(|(step, _)| step).collect();
        makespans.sort_unstable();
        JitteredSteps {
            exact: self.makespan(),
            makespans,
            bubble_fraction: idle / all.max(f64::MIN_POSITIVE),
        }
    }
}

impl JitteredSteps {
    /// All steps, the shortest first.
    pub fn makespans(&self) -> &[Micros] {
        &self.makespans
    }

    /// The mean step.
    pub fn mean(&self) -> Micros {
        let sum: Micros = self.makespans.iter().copied().sum();
        sum * (1.0 / self.makespans.len().max(1) as f64)
    }

    /// Returns the step that a share of all steps does not exceed: 0.5 is the median.
    pub fn quantile(&self, share: f64) -> Micros {
        let rank = (share.clamp(0.0, 1.0) * self.makespans.len() as f64).ceil() as usize;
        let place = rank.saturating_sub(1);
        self.makespans.get(place).copied().unwrap_or_default()
    }

    /// Idle share of the devices' time, over all steps.
    pub fn bubble_fraction(&self) -> f64 {
        self.bubble_fraction
    }

    /// Relative excess of the mean step over one without jitter.
    pub fn slowdown(&self) -> f64 {
        self.mean().get() / self.exact.get().max(f64::MIN_POSITIVE) - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::cost::Costs;
    use crate::schedule::Shape;
    use crate::simulate::simulate;

    fn simulation(p: usize, m: usize) -> Simulation {
        let unit = Micros::new(1000.0).unwrap();
        let schedule = ScheduleKind::OneFOneB.generate(Shape::new(p, m)).unwrap();
        simulate(&schedule, &Costs::uniform(p, unit, unit, unit))
    }

    #[test]
    fn no_jitter_costs_nothing() {
        let simulation = simulation(4, 8);
        let steps = simulation.jittered(&Jitter::new(0.0, 5, 3).unwrap());
        assert_eq!(steps.makespans(), [simulation.makespan(); 5]);
        assert_eq!(steps.slowdown(), 0.0);
    }

    #[test]
    fn a_seed_gives_the_same_steps_and_another_one_others() {
        let simulation = simulation(4, 8);
        let steps = |seed| simulation.jittered(&Jitter::new(0.05, 20, seed).unwrap());
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
    }

    /// On one device actions add up: the mean stays, and 400 independent times of 1 ms and as many of 2 ms
    /// have a standard deviation of 5 % of √(400 (1 + 4)) ms.
    #[test]
    fn factors_have_the_mean_and_the_deviation_that_they_say() {
        let simulation = simulation(1, 400);
        let steps = simulation.jittered(&Jitter::new(0.05, 400, 9).unwrap());
        // Independent runs would have an error of some 9e-5.
        assert!(steps.slowdown().abs() < 1e-5, "{}", steps.slowdown());
        let mean = steps.mean().get();
        let squares = steps
            .makespans()
            .iter()
            .map(|step| (step.get() - mean).powi(2));
        let deviation = (squares.sum::<f64>() / 399.0).sqrt();
        let expected = 0.05 * 1000.0 * 2000.0_f64.sqrt();
        assert!(
            (deviation / expected - 1.0).abs() < 0.1,
            "{deviation} {expected}"
        );
    }

    /// Regression: shorter actions averaged jitter away, and noise of the mean counted as a bubble.
    #[test]
    fn on_one_device_every_schedule_has_the_same_jittered_steps_and_no_bubble() {
        let unit = Micros::new(840.0).unwrap();
        let steps = |kind: ScheduleKind, chunks: usize| {
            let schedule = kind.generate(Shape::new(1, 8).with_chunks(chunks));
            let part = unit * (1.0 / chunks as f64);
            let costs = Costs::uniform(chunks, part, part * 2.0, Micros::ZERO);
            simulate(&schedule.unwrap(), &costs).jittered(&Jitter::new(0.1, 50, 7).unwrap())
        };
        let whole = steps(ScheduleKind::OneFOneB, 1);
        for (kind, chunks) in [
            (ScheduleKind::GPipe, 1),
            (ScheduleKind::ZbH1, 1),
            (ScheduleKind::Interleaved1F1B, 4),
            (ScheduleKind::InterleavedZb, 2),
            (ScheduleKind::Zbv, 2),
        ] {
            let other = steps(kind, chunks);
            assert!(other.bubble_fraction() < 1e-9, "{kind} {other:?}");
            for (one, other) in whole.makespans().iter().zip(other.makespans()) {
                assert!((one.get() / other.get() - 1.0).abs() < 1e-9, "{kind}");
            }
        }
    }

    #[test]
    fn quantiles_are_steps_in_order() {
        let steps = simulation(4, 16).jittered(&Jitter::new(0.1, 100, 0).unwrap());
        assert_eq!(steps.quantile(0.0), steps.makespans()[0]);
        assert_eq!(steps.quantile(0.5), steps.makespans()[49]);
        assert_eq!(steps.quantile(1.0), steps.makespans()[99]);
        assert!(steps.quantile(0.05) < steps.mean() && steps.mean() < steps.quantile(0.95));
    }

    #[test]
    fn a_share_is_from_0_to_1() {
        for wrong in [-0.1, 1.1, f64::NAN] {
            assert!(Jitter::new(wrong, 1, 0).is_err(), "{wrong}");
        }
    }
}
