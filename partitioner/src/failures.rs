//! Cost of failures in a long run, and the best interval between checkpoints.
//!
//! Failures occur at random, with a mean time between them (a Poisson process). Each throws the run
//! back to its last checkpoint, after a restart, which may fail, too. Writing a checkpoint stops
//! training. Rare checkpoints lose much work, frequent ones take much time.
//!
//! *Sources*: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
//! 17 (1974); J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
//! dumps", FGCS 22 (2006): the interval, and the time that a run takes.

use crate::units::Micros;
use crate::value_error::ValueError;

/// Frequency of failures, and times of writing a checkpoint and of a restart from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "MTBF")]
pub struct Failures {
    between: Micros,
    checkpoint: Micros,
    restart: Micros,
}

/// Interval between checkpoints, and the share of useful time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointInterval {
    /// Steps from one checkpoint to the next.
    pub steps: usize,
    /// Time of these steps, without the checkpoint.
    pub time: Micros,
    /// Share of all time spent on steps whose work is not lost.
    pub goodput: f64,
}

impl Failures {
    /// `between` is the mean time between failures that stop the run (for n devices, 1/n of that of
    /// one), `checkpoint` the time for which a checkpoint stops training, and `restart` the time
    /// from a failure to the first step.
    ///
    /// # Errors
    /// [`ValueError::NotATime`] when there is no time between failures.
    pub fn new(between: Micros, checkpoint: Micros, restart: Micros) -> Result<Self, ValueError> {
        if between == Micros::ZERO {
            return Err(ValueError::NotATime { value: 0.0 });
        }
        Ok(Self {
            between,
            checkpoint,
            restart,
        })
    }

    /// Young's interval between checkpoints: √(2δM), with δ the time of a checkpoint and M that
    /// between failures.
    pub fn young(&self) -> Micros {
        let product = 2.0 * self.checkpoint.get() * self.between.get();
        Micros::saturating(product.sqrt())
    }

    /// Daly's interval: √(2δM) (1 + √(δ/2M)/3 + (δ/2M)/9) − δ if δ < 2M, else M.
    pub fn daly(&self) -> Micros {
        let ratio = self.checkpoint.get() / (2.0 * self.between.get());
        if ratio >= 1.0 {
            return self.between;
        }
        let series = 1.0 + ratio.sqrt() / 3.0 + ratio / 9.0;
        Micros::saturating(self.young().get() * series - self.checkpoint.get())
    }

    /// Share of all time spent on work that is not lost, with a checkpoint after every `interval` τ
    /// of work: τ / (M e^(R/M) (e^((τ+δ)/M) − 1)).
    #[doc(alias = "efficiency")]
    pub fn goodput(&self, interval: Micros) -> f64 {
        let between = self.between.get();
        let whole = (interval + self.checkpoint).get() / between;
        let taken = between * (self.restart.get() / between).exp() * whole.exp_m1();
        if taken > 0.0 {
            (interval.get() / taken).min(1.0)
        } else {
            // Checkpoints that take no time may follow each other immediately.
            (-self.restart.get() / between).exp()
        }
    }

    /// Daly's interval in whole steps, at least one: of the two nearest, the one with more goodput.
    /// None if a step takes no time.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{Failures, Micros};
    /// let seconds = |seconds: f64| Micros::new(seconds * 1e6);
    /// let failures = Failures::new(seconds(6.0 * 3600.0)?, seconds(30.0)?, seconds(300.0)?)?;
    /// let interval = failures.interval(seconds(10.0)?).expect("steps take time");
    /// assert_eq!(interval.steps, 112);
    /// assert!((interval.goodput - 0.936).abs() < 1e-3);
    /// # Ok::<(), gpipe_partitioner::Error>(())
    /// ```
    pub fn interval(&self, step: Micros) -> Option<CheckpointInterval> {
        if step == Micros::ZERO {
            return None;
        }
        let steps = (self.daly().get() / step.get()).floor() as usize;
        let of = |steps: usize| {
            let time = step * steps as f64;
            CheckpointInterval {
                steps,
                time,
                goodput: self.goodput(time),
            }
        };
        let (fewer, more) = (of(steps.max(1)), of(steps.max(1).saturating_add(1)));
        Some(if more.goodput > fewer.goodput {
            more
        } else {
            fewer
        })
    }

    /// The time between failures.
    pub fn between(&self) -> Micros {
        self.between
    }

    /// Time for which a checkpoint stops training.
    pub fn checkpoint(&self) -> Micros {
        self.checkpoint
    }

    /// Time of a restart.
    pub fn restart(&self) -> Micros {
        self.restart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Micros {
        Micros::new(seconds * 1e6).unwrap()
    }

    /// Young's rule gives √(2·30·21600) = 1138 s, Daly's a little less.
    #[test]
    fn intervals_are_those_of_young_and_daly() {
        let failures = Failures::new(seconds(21_600.0), seconds(30.0), seconds(300.0)).unwrap();
        assert!((failures.young().get() / 1e6 - 1_138.42).abs() < 0.01);
        assert!((failures.daly().get() / 1e6 - 1_118.50).abs() < 0.01);
        let rare = Failures::new(seconds(10.0), seconds(30.0), Micros::ZERO).unwrap();
        assert_eq!(rare.daly(), seconds(10.0));
        assert!(Failures::new(Micros::ZERO, seconds(1.0), seconds(1.0)).is_err());
    }

    /// No interval has noticeably more goodput than Daly's.
    #[test]
    fn the_interval_is_the_best() {
        for (between, checkpoint, restart) in
            [(3_600.0, 5.0, 60.0), (600.0, 20.0, 30.0), (1e6, 100.0, 0.0)]
        {
            let failures =
                Failures::new(seconds(between), seconds(checkpoint), seconds(restart)).unwrap();
            let found = failures.goodput(failures.daly());
            for percent in 1..1000 {
                let other = failures.daly() * (f64::from(percent) / 100.0);
                assert!(
                    failures.goodput(other) <= found + 2e-4,
                    "{between} {percent}"
                );
            }
        }
    }

    /// Simulates single failures and compares with the formula.
    #[test]
    fn goodput_is_what_a_run_with_failures_has() {
        let (between, checkpoint, restart, interval) = (1_000.0, 10.0, 50.0, 120.0);
        let failures =
            Failures::new(seconds(between), seconds(checkpoint), seconds(restart)).unwrap();
        let mut bits = 7_u64;
        let mut lasts = || {
            bits = bits
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let uniform = ((bits >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
            -between * uniform.ln()
        };
        let (mut time, mut left) = (0.0, lasts());
        let mut attempt = |needed: f64, time: &mut f64| {
            let done = left >= needed;
            *time += left.min(needed);
            left = if done { left - needed } else { lasts() };
            done
        };
        let intervals = 100_000;
        for _ in 0..intervals {
            while !attempt(interval + checkpoint, &mut time) {
                while !attempt(restart, &mut time) {}
            }
        }
        let seen = f64::from(intervals) * interval / time;
        let said = failures.goodput(seconds(interval));
        assert!((seen / said - 1.0).abs() < 0.005, "{seen} {said}");
    }

    #[test]
    fn steps_stay_whole() {
        let failures = Failures::new(seconds(3_600.0), seconds(10.0), seconds(60.0)).unwrap();
        assert_eq!(failures.interval(seconds(5_000.0)).unwrap().steps, 1);
        assert_eq!(failures.interval(Micros::ZERO), None);
        let free = Failures::new(seconds(3_600.0), Micros::ZERO, Micros::ZERO).unwrap();
        let own = free.interval(seconds(1.0)).unwrap();
        assert_eq!(own.steps, 1);
        assert!(own.goodput > 0.999);
    }
}
