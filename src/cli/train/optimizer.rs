//! The optimizer of a run, with its settings and learning rates.

use gpipe_partitioner::words::count;

use super::recipe::Recipe;
use gpipe_torch::{LrKind, LrSchedule, OptimizerKind};

/// Warm-up steps of long runs.
const WARM_UP: usize = 100;

impl Recipe {
    /// Returns the optimizer with its settings.
    pub(super) fn optimizer_kind(&self) -> OptimizerKind {
        let mut kind = self.optimizer;
        kind.set_lr(self.lr);
        for (name, number) in [
            ("weight_decay", self.weight_decay),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("eps", self.eps),
            ("momentum", self.momentum),
            ("dampening", self.dampening),
        ] {
            if let Some(number) = number {
                // Already checked by `Schema::check_only_for`.
                kind.set_number(name, number);
            }
        }
        if let (OptimizerKind::Sgd(sgd), Some(nesterov)) = (&mut kind, self.nesterov) {
            sgd.nesterov = nesterov;
        }
        kind
    }

    /// Returns the warm-up steps. Models with tied heads learn far slower without a warm-up.
    fn warm_up(&self, steps: usize) -> usize {
        let usual = match self.lr_schedule {
            // The schedule itself begins with a rise.
            LrKind::OneCycle => 0,
            _ => WARM_UP.min(steps / 4),
        };
        self.warmup.unwrap_or(usual)
    }

    /// Returns the learning-rate schedule.
    ///
    /// # Errors
    /// The numbers do not fit the schedule.
    pub(super) fn learning_rates(&self) -> Result<LrSchedule, gpipe_torch::Error> {
        let steps = self.lr_steps.unwrap_or(self.steps);
        let mut schedule = LrSchedule::new(self.lr_schedule, self.lr, Some(steps as u64))?
            .warm_up(self.warm_up_steps() as u64)?;
        if let Some(end) = self.lr_end {
            schedule = schedule.end(end)?;
        }
        if let Some(rise) = self.lr_rise {
            schedule = schedule.rise(rise)?;
        }
        if let Some(timescale) = self.lr_timescale {
            schedule = schedule.timescale(timescale as u64)?;
        }
        Ok(schedule)
    }

    /// Number of warm-up steps.
    pub(super) fn warm_up_steps(&self) -> usize {
        self.warm_up(self.lr_steps.unwrap_or(self.steps))
    }

    /// Returns the step from which the learning rate is constant, if the run reaches it.
    pub(super) fn schedule_end(&self) -> Option<usize> {
        let end = self.lr_steps.unwrap_or(self.steps);
        (self.lr_schedule.ends() && end <= self.steps).then_some(end)
    }

    /// Notes that the steps after `done` are beyond the end of the schedule.
    pub(super) fn beyond_the_schedule(&self, done: usize) -> Option<String> {
        let end = self.schedule_end()?;
        let (first, last) = (end.max(done) + 1, self.steps);
        if first > last {
            return None;
        }
        let rate = self.learning_rates().ok()?.at(last as u64);
        let (steps, have) = match last - first {
            0 => (format!("step {last}"), "has"),
            _ => (format!("steps {first} to {last}"), "have"),
        };
        Some(format!(
            "note: the {} schedule {} at step {end}: {steps} {have} the rate {}; --set lr.steps={last} \
             stretches it",
            self.lr_schedule,
            if done >= end { "ended" } else { "ends" },
            rated(rate),
        ))
    }

    /// Notes that no evaluation occurs before the end.
    pub(super) fn evaluated_at_the_end(&self) -> Option<String> {
        let (every, steps) = (self.eval_every, self.steps);
        (every > steps).then(|| {
            format!(
                "note: eval.every = {every} is more than the {} of this run: it is evaluated only after \
                 the last one; take a smaller --eval-every",
                count(steps, "step")
            )
        })
    }

    /// Notes that the run ends before its warm-up.
    pub(super) fn warm_up_without_end(&self) -> Option<String> {
        let steps = self.steps;
        let asked = self.warmup.filter(|asked| *asked > steps)?;
        let last = self.learning_rates().ok()?.at(steps as u64);
        Some(format!(
            "note: lr.warmup = {asked} is longer than the {steps} of this run: the learning rate gets no \
             further than {last:.2e} of {:.2e}; take a smaller --warmup or more --steps",
            self.lr,
            steps = count(steps, "step")
        ))
    }

    /// Returns the recipe with explicit values for all optimizer settings.
    pub(crate) fn with_optimizer_in_full(&self) -> Self {
        let kind = self.optimizer_kind();
        let steps = self.lr_steps.unwrap_or(self.steps);
        let lr_steps = self.lr_schedule.ends().then_some(steps);
        Self {
            weight_decay: kind.number("weight_decay"),
            beta1: kind.number("beta1"),
            beta2: kind.number("beta2"),
            eps: kind.number("eps"),
            momentum: kind.number("momentum"),
            dampening: kind.number("dampening"),
            nesterov: match kind {
                OptimizerKind::Sgd(sgd) => Some(sgd.nesterov),
                _ => None,
            },
            lr_steps,
            warmup: Some(self.warm_up(lr_steps.unwrap_or(self.steps))),
            ..self.clone()
        }
    }
}

/// Formats a learning rate: `0`, `1.20e-8`.
fn rated(rate: f64) -> String {
    if rate > 0.0 {
        format!("{rate:.2e}")
    } else {
        "0".to_owned()
    }
}
