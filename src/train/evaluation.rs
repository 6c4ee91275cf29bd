//! Evaluations during a run: when, on which data, which was the best, and when to stop early.
//!
//! An evaluation changes nothing that training depends on: outputs are computed in inference mode, from
//! separate batches. The state of evaluations is saved in each checkpoint, so that a resumed run
//! continues with the same best one and the same count.

use std::fmt;

use gpipe_partitioner::words::decimals;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::TrainError;
use super::feed::{AnyFeed, IntoFeed, Start};
use crate::metrics::number_or_null;

/// The loss on held-out data after a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Number of completed steps.
    pub step: u64,
    /// Mean loss. Checkpoints store a non-finite one as `null`, which is read back as NaN.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Share of targets that equal the class of the largest output, if measured
    /// ([`TrainerBuilder::accuracy`](super::TrainerBuilder::accuracy)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

/// Formats as `loss 0.4321, accuracy 83.33 %`.
impl Evaluation {
    /// Formats the evaluation, and whether it is the best so far.
    pub fn words(&self, is_best: bool) -> String {
        let best = if is_best { ", the lowest so far" } else { "" };
        let accuracy = self
            .accuracy
            .map(|own| format!(", accuracy {:.2} %", 100.0 * own));
        let accuracy = accuracy.unwrap_or_default();
        format!("loss {}{best}{accuracy}", decimals(self.loss, 4))
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(false))
    }
}

/// State of a run's evaluations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    /// Initial state of the batches: losses on other data are not comparable.
    data: Value,
    last: Option<Evaluation>,
    /// The first evaluation with the lowest loss.
    best: Option<Evaluation>,
    /// Number of evaluations since the best one.
    worse: usize,
}

impl Standing {
    /// Sets the batches of evaluations; returns whether they changed, which discards earlier results.
    pub(super) fn on(&mut self, data: Value) -> bool {
        if self.data == data {
            return false;
        }
        let known = std::mem::take(self);
        self.data = data;
        known.last.is_some()
    }

    pub(super) fn take(&mut self, new: Evaluation) {
        self.last = Some(new);
        let is_better = match self.best {
            Some(best) => new.loss < best.loss,
            None => new.loss.is_finite(),
        };
        if is_better {
            self.best = Some(new);
            self.worse = 0;
        } else {
            self.worse += 1;
        }
    }

    pub(super) fn best(&self) -> Option<Evaluation> {
        self.best
    }

    /// Whether the evaluation after this step is the best one.
    pub(super) fn is_best(&self, step: usize) -> bool {
        self.best.is_some_and(|best| best.step == step as u64)
    }
}

/// Schedule and data of evaluations.
pub(super) struct Evaluations<'a> {
    /// Steps between evaluations.
    pub(super) every: usize,
    /// Number of consecutive evaluations without a better one that ends the run.
    pub(super) patience: Option<usize>,
    pub(super) data: Option<Box<Again<'a>>>,
    pub(super) standing: Standing,
}

/// Restarts the same batches at each call.
type Again<'a> = dyn FnMut() -> Start<'a> + 'a;

impl<'a> Evaluations<'a> {
    pub(super) fn none() -> Self {
        Self {
            every: 0,
            patience: None,
            data: None,
            standing: Standing::default(),
        }
    }

    pub(super) fn on<D>(&mut self, every: usize, mut data: impl FnMut() -> D + 'a)
    where
        D: IntoFeed<Feed: 'a> + 'a,
    {
        self.every = every;
        self.data = Some(Box::new(move || Start::new(data())));
    }

    pub(super) fn are_on(&self) -> bool {
        self.data.is_some()
    }

    /// Whether an evaluation is due after this step, and has not been made.
    pub(super) fn is_due(&self, step: usize, last: bool) -> bool {
        let made = (self.standing.last).is_some_and(|own| own.step == step as u64);
        self.are_on() && step > 0 && !made && (last || step.is_multiple_of(self.every))
    }

    /// Whether early stopping ends the run.
    pub(super) fn are_over(&self) -> bool {
        let patience = self.patience.filter(|_| self.are_on());
        patience.is_some_and(|patience| self.standing.worse >= patience)
    }

    /// Returns the evaluation after this step, if there is one.
    pub(super) fn after(&self, step: usize) -> Option<Evaluation> {
        self.standing.last.filter(|own| own.step == step as u64)
    }

    pub(super) fn begin(&mut self) -> Result<Option<AnyFeed<'a>>, TrainError> {
        let data = self.data.as_mut().map(|begin| begin());
        let begun = data.map(|data| data.start(None)).transpose();
        begun.map_err(TrainError::Data)
    }
}

impl fmt::Debug for Evaluations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluations")
            .field("every", &self.every)
            .field("patience", &self.patience)
            .field("standing", &self.standing)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(step: u64, loss: f64) -> Evaluation {
        Evaluation {
            step,
            loss,
            accuracy: None,
        }
    }

    fn after(losses: &[f64]) -> Standing {
        let mut standing = Standing::default();
        for (step, &loss) in (1..).zip(losses) {
            standing.take(evaluation(step, loss));
        }
        standing
    }

    #[test]
    fn the_first_of_equal_losses_is_the_best_and_what_is_not_finite_never_is() {
        let best = |losses: &[f64]| {
            let standing = after(losses);
            (standing.best().map(|best| best.step), standing.worse)
        };
        assert_eq!(best(&[2.0, 1.0, 1.0, 3.0]), (Some(2), 2));
        assert_eq!(best(&[f64::NAN, f64::INFINITY]), (None, 2));
        assert_eq!(best(&[f64::NAN, 5.0, f64::NAN]), (Some(2), 1));
    }

    #[test]
    fn losses_on_other_data_are_not_compared() {
        let mut standing = Standing::default();
        assert!(!standing.on("ten rows".into()));
        standing.take(evaluation(1, 1.0));
        assert!(!standing.on("ten rows".into()) && standing.is_best(1));
        assert!(standing.on("nine rows".into()) && standing.best().is_none());
        standing.take(evaluation(2, 3.0));
        assert!(standing.is_best(2));
    }

    #[test]
    fn a_checkpoint_has_it_to_the_last_bit() {
        for standing in [
            after(&[]),
            after(&[0.1 + 0.2, 0.3]),
            after(&[0.1, 1.0 / 3.0]),
        ] {
            let text = serde_json::to_string(&standing).unwrap();
            assert_eq!(serde_json::from_str::<Standing>(&text).unwrap(), standing);
        }
        let text = serde_json::to_string(&after(&[f64::NAN])).unwrap();
        let read: Standing = serde_json::from_str(&text).unwrap();
        assert!(read.last.unwrap().loss.is_nan() && read.worse == 1);
    }
}
