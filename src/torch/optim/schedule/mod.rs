//! Learning rates as functions of the step.

mod kind;
mod text;

use std::f64::consts::PI;

use crate::error::{Error, Setting, SettingsError};

pub use kind::LrKind;

/// Default timescale of an inverse-square-root schedule without warm-up.
const TIMESCALE: u64 = 10_000;

/// Defaults of a one-cycle schedule: the share of steps in which the rate rises, peak over initial
/// rate, and initial over final rate.
const RISE: f64 = 0.3;
const CYCLE_START: f64 = 25.0;
const CYCLE_END: f64 = 1e4;

/// Learning rate as a pure function of the step's number, so that a run resumed from a checkpoint
/// needs only the number.
///
/// Every schedule may begin with a linear warm-up ([`LrSchedule::warm_up`]), after which the
/// remaining steps follow the schedule itself. Formulas are those of PyTorch's schedulers
/// (`LinearLR`, `CosineAnnealingLR`, `OneCycleLR`, joined by `SequentialLR`), but a schedule that
/// is over stays at its final rate.
///
/// The text form is the kind and its numbers, and parses back to the same schedule:
///
/// ```
/// use gpipe::{Optimizer, optim::{AdamW, LrSchedule}};
///
/// let schedule = LrSchedule::cosine(3e-4, 1000)?.warm_up(100)?.end(3e-5)?;
/// assert_eq!(schedule.at(50), 1.5e-4); // half of the warm-up
/// assert_eq!(schedule.at(101), 3e-4);
/// assert_eq!(schedule.at(5000), 3e-5);
/// assert_eq!(schedule.to_string(), "cosine lr=0.0003 steps=1000 warmup=100 end=0.00003");
/// assert_eq!(schedule.to_string().parse::<LrSchedule>()?, schedule);
///
/// let mut optimizer = Optimizer::new(AdamW::default());
/// for step in 1..=3 {
///     optimizer.set_lr(schedule.at(step)); // groups keep their ratio
///     // pipe.train_step(..)?; optimizer.step(&mut pipe)?;
/// }
/// # Ok::<(), gpipe::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrSchedule {
    kind: LrKind,
    peak: f64,
    /// Number of steps including the warm-up; only for kinds that end.
    steps: Option<u64>,
    warm_up: u64,
    /// Final rate, if set.
    end: Option<f64>,
    /// Rising share of a one-cycle schedule.
    rise: f64,
    /// Timescale of an inverse square root, if set.
    timescale: Option<u64>,
}

impl LrSchedule {
    /// Constant rate `lr`.
    ///
    /// # Errors
    /// [`Error::Settings`] where `lr` is negative or not finite.
    pub fn constant(lr: f64) -> Result<Self, Error> {
        Self::new(LrKind::Constant, lr, None)
    }

    /// Linear decay from `peak` to its [end](LrSchedule::end), 0 unless set, over `steps`.
    ///
    /// # Errors
    /// [`Error::Settings`] where `peak` is negative or not finite, or there are no steps.
    pub fn linear(peak: f64, steps: u64) -> Result<Self, Error> {
        Self::new(LrKind::Linear, peak, Some(steps))
    }

    /// Cosine decay from `peak` to its [end](LrSchedule::end), 0 unless set, over `steps`
    /// (Loshchilov & Hutter 2017, without restarts).
    ///
    /// # Errors
    /// As [`LrSchedule::linear`].
    pub fn cosine(peak: f64, steps: u64) -> Result<Self, Error> {
        Self::new(LrKind::Cosine, peak, Some(steps))
    }

    /// Rises along half a cosine from a 25th of `peak` in 30 % of the `steps`, then falls along
    /// another to a 10,000th of the initial rate (Smith & Topin 2018, with the numbers of PyTorch's
    /// `OneCycleLR`).
    ///
    /// # Errors
    /// As [`LrSchedule::linear`].
    pub fn one_cycle(peak: f64, steps: u64) -> Result<Self, Error> {
        Self::new(LrKind::OneCycle, peak, Some(steps))
    }

    /// Falls with the inverse square root of the step (Vaswani et al. 2017): `peak` times
    /// √(t / (t + n)) at n steps after the warm-up, t being its
    /// [timescale](LrSchedule::timescale).
    ///
    /// # Errors
    /// As [`LrSchedule::constant`].
    pub fn inverse_sqrt(peak: f64) -> Result<Self, Error> {
        Self::new(LrKind::InverseSqrt, peak, None)
    }

    /// Creates a schedule from its kind; `steps` is ignored for kinds that do not end.
    ///
    /// # Errors
    /// Those of the kind's own constructor; a kind that ends needs `steps`.
    pub fn new(kind: LrKind, peak: f64, steps: Option<u64>) -> Result<Self, Error> {
        rate("peak", peak)?;
        let steps = steps.filter(|_| kind.ends());
        if kind.ends() && steps.is_none_or(|steps| steps == 0) {
            return wrong(&format!("{kind} needs the number of steps, at least 1"));
        }
        Ok(Self {
            kind,
            peak,
            steps,
            warm_up: 0,
            end: None,
            rise: RISE,
            timescale: None,
        })
    }

    /// Adds a linear warm-up over the first `steps`, which reaches the schedule's initial rate in
    /// its last step; the schedule follows in the remaining steps.
    ///
    /// # Errors
    /// [`Error::Settings`] where the schedule has fewer steps.
    pub fn warm_up(mut self, steps: u64) -> Result<Self, Error> {
        if let Some(all) = self.steps.filter(|&all| steps > all) {
            let kind = self.kind;
            return wrong(&format!(
                "{kind} over {all} steps cannot warm up for {steps}"
            ));
        }
        self.warm_up = steps;
        Ok(self)
    }

    /// Sets the final learning rate of a linear, cosine or one-cycle schedule.
    ///
    /// # Errors
    /// [`Error::Settings`] for other kinds, and where it is not between 0 and the peak.
    pub fn end(mut self, lr: f64) -> Result<Self, Error> {
        if !self.kind.ends() {
            return wrong(&format!(
                "{} does not end, so not at {lr} either",
                self.kind
            ));
        }
        rate("end", lr)?;
        if lr > self.peak {
            return wrong(&format!("the end {lr} is above the peak {}", self.peak));
        }
        self.end = Some(lr);
        Ok(self)
    }

    /// Sets the share of its steps in which a one-cycle schedule rises; 0.3 by default.
    ///
    /// # Errors
    /// [`Error::Settings`] for other kinds, and where it is not between 0 and 1.
    pub fn rise(mut self, share: f64) -> Result<Self, Error> {
        if self.kind != LrKind::OneCycle {
            return wrong(&format!("{} has no cycle that could rise", self.kind));
        }
        if !(0.0..=1.0).contains(&share) {
            return wrong(&format!(
                "a cycle rises for a share of 0 to 1 of it, not {share}"
            ));
        }
        self.rise = share;
        Ok(self)
    }

    /// Sets the number of steps after which an inverse square root has fallen to 1/√2; by default
    /// that of the warm-up, or 10,000 without one.
    ///
    /// # Errors
    /// [`Error::Settings`] for other kinds, and for 0.
    pub fn timescale(mut self, steps: u64) -> Result<Self, Error> {
        if self.kind != LrKind::InverseSqrt {
            return wrong(&format!("{} has no timescale", self.kind));
        }
        if steps == 0 {
            return wrong("a timescale is at least 1 step");
        }
        self.timescale = Some(steps);
        Ok(self)
    }

    /// Returns the learning rate of a step, the first being 1.
    pub fn at(&self, step: u64) -> f64 {
        let before = step.saturating_sub(1);
        if before < self.warm_up {
            // If the warm-up takes all steps, none is left for the schedule but its end: aim at the
            // peak.
            let top = match self.steps {
                Some(steps) if steps == self.warm_up => self.peak,
                _ => self.after(0),
            };
            // The factor is exactly 1 at the end of the warm-up.
            return top * ((before + 1) as f64 / self.warm_up as f64);
        }
        self.after(before - self.warm_up)
    }

    /// Returns the kind.
    pub fn kind(&self) -> LrKind {
        self.kind
    }

    /// Returns the highest learning rate.
    pub fn peak(&self) -> f64 {
        self.peak
    }

    /// Returns the learning rate when `done` steps after the warm-up are done.
    fn after(&self, done: u64) -> f64 {
        let peak = self.peak;
        let steps = self.steps.unwrap_or_default().saturating_sub(self.warm_up);
        match self.kind {
            LrKind::Constant => peak,
            LrKind::Linear => {
                let end = self.end.unwrap_or_default();
                peak + (end - peak) * share(done, steps)
            }
            LrKind::Cosine => half_cosine(peak, self.end.unwrap_or_default(), share(done, steps)),
            LrKind::OneCycle => self.in_cycle(done, steps),
            LrKind::InverseSqrt => {
                let by_warm_up = Some(self.warm_up).filter(|&steps| steps > 0);
                let scale = self.timescale.or(by_warm_up).unwrap_or(TIMESCALE) as f64;
                peak * (scale / (scale + done as f64)).sqrt()
            }
        }
    }

    fn in_cycle(&self, done: u64, steps: u64) -> f64 {
        let start = self.peak / CYCLE_START;
        let end = self.end.unwrap_or(start / CYCLE_END);
        // Step numbers as PyTorch counts them: the top may lie before the first.
        let (top, last) = (self.rise * steps as f64 - 1.0, steps as f64 - 1.0);
        let done = done as f64;
        if done < top {
            return half_cosine(start, self.peak, done / top);
        }
        // A schedule that only rises stays at its top.
        let fall = last - top;
        let share = if fall > 0.0 { (done - top) / fall } else { 0.0 };
        half_cosine(self.peak, end, share.min(1.0))
    }
}

/// Share of `steps` that is done, at most 1.
fn share(done: u64, steps: u64) -> f64 {
    if done >= steps {
        return 1.0;
    }
    done as f64 / steps as f64
}

/// Goes from `from` to `to` along half a cosine, with slope 0 at both ends.
fn half_cosine(from: f64, to: f64, share: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * share).cos()) / 2.0
}

fn rate(what: &str, lr: f64) -> Result<(), Error> {
    if lr >= 0.0 && lr.is_finite() {
        return Ok(());
    }
    wrong(&format!(
        "the {what} is {lr}, but must be 0 or more, and finite"
    ))
}

fn wrong<T>(why: &str) -> Result<T, Error> {
    let why = format!("learning-rate schedule: {why}");
    Err(SettingsError::invalid(Setting::LearningRates, why).into())
}
