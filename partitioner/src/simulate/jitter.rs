//! What it costs that actions do not always take the same time.

use super::{Simulation, timeline_of};
use crate::schedule::Action;
use crate::units::Micros;
use crate::value_error::ValueError;

/// How action times vary: each action of each run takes its time multiplied by a factor of its
/// own, independent of all others, from a log-normal distribution with mean 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "straggler")]
pub struct Jitter {
    share: f64,
    runs: usize,
    seed: u64,
}

/// Steps whose actions took jittery times.
#[derive(Clone, Debug, PartialEq)]
pub struct JitteredSteps {
    exact: Micros,
    /// In increasing order.
    makespans: Vec<Micros>,
}

impl Jitter {
    /// Factors whose standard deviation is `share` (0.05 is 5 %), over so many runs: at least
    /// one. The same seed gives an action of a stage and micro-batch the same factor in every
    /// schedule, so that schedules are compared with the same luck.
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

    /// The standard deviation of an action's time, as a share of its mean.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// How many steps are simulated.
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// What the factors are drawn from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The factor of `action` in a run.
    fn factor(&self, run: usize, action: Action) -> f64 {
        let numbers = [
            run as u64,
            action.stage.index() as u64,
            action.kind as u64,
            action.micro.index() as u64,
        ];
        let bits = numbers
            .iter()
            .fold(mixed(self.seed), |bits, &number| mixed(bits ^ number));
        // Box and Muller: a normal number from two that are uniform in (0, 1].
        let [radius, angle] = [bits, mixed(bits)].map(uniform);
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
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
    /// The same schedule in steps whose action times vary. Transfers, hosts and exchanges do
    /// not.
    ///
    /// # Complexity
    /// A simulation a run.
    pub fn jittered(&self, jitter: &Jitter) -> JitteredSteps {
        let step = |run: usize| {
            let duration = |action: Action| {
                let time = self.costs.stage(action.stage).of(action.kind);
                time * jitter.factor(run, action)
            };
            timeline_of(&self.schedule, &self.costs, duration).makespan()
        };
        let mut makespans: Vec<Micros> = (0..jitter.runs).map(step).collect();
        makespans.sort_unstable();
        JitteredSteps {
            exact: self.makespan(),
            makespans,
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

    /// The step that a share of all steps does not exceed: 0.5 is the median.
    pub fn quantile(&self, share: f64) -> Micros {
        let rank = (share.clamp(0.0, 1.0) * self.makespans.len() as f64).ceil() as usize;
        let place = rank.saturating_sub(1);
        self.makespans.get(place).copied().unwrap_or_default()
    }

    /// By how much the mean step is longer than one without jitter, as a share of that one.
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

    /// On one device actions add up: the mean stays, and 400 independent times of 1 ms and as many
    /// of 2 ms have a standard deviation of 5 % of √(400 (1 + 4)) ms.
    #[test]
    fn factors_have_the_mean_and_the_deviation_that_they_say() {
        let simulation = simulation(1, 400);
        let steps = simulation.jittered(&Jitter::new(0.05, 400, 9).unwrap());
        assert!(steps.slowdown().abs() < 3e-4, "{}", steps.slowdown());
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
