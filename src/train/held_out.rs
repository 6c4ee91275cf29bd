//! Loss and accuracy on held-out data.

use tch::{Device, Kind, Tensor};

use super::error::TrainError;
use super::evaluation::Evaluation;
use super::feed::{Feed, Start};
use super::hook::Hooks;
use super::leader::made_by_leader;
use super::outcome::Ended;
use super::stop::Stop;
use super::trainer::Trainer;
use gpipe_models::class_dimension;
use gpipe_torch::{LossFn, Pipeline, TorchError, Values};

/// Results on held-out data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) loss: f64,
    pub(super) accuracy: Option<f64>,
}

/// Returns the mean loss over the held-out batches, by the units that the loss function averages over,
/// and the accuracy if requested by giving its ignored target. `None` if a stop was requested before
/// the last batch.
pub(super) fn measure(
    pipe: &mut Pipeline,
    batches: &mut dyn Feed,
    (own, ignored): (&dyn LossFn, Option<i64>),
    stop: &Stop,
    hooks: &mut Hooks<'_>,
) -> Result<Option<Measured>, TrainError> {
    let (mut sum, mut count) = (0.0, 0.0);
    let mut told_right: Option<(i64, i64)> = None;
    while let Some(batch) = batches.next_batch() {
        if stop.is_asked() {
            return Ok(None);
        }
        let (x, y) = batch.map_err(|error| {
            pipe.refuse(&format!("the next batch: {error:#}"));
            TrainError::Data(error)
        })?;
        let y = told(&x, y).map_err(gpipe_torch::Error::from)?;
        let outputs = pipe.forward_values(x)?;
        // The loss is read at once.
        pipe.in_time()?;
        let judged = judge(own, &outputs, &y).map_err(TrainError::HeldOut)?;
        sum += judged.0;
        count += judged.1;
        if let Some(ignored) = ignored
            && let (Some(logits), Some(classes)) = (outputs.present().next(), y.present().next())
        {
            let own = right(logits, classes, ignored);
            if let Some((right, counted)) = own.map_err(TrainError::HeldOut)? {
                let before = told_right.unwrap_or_default();
                told_right = Some((before.0 + right, before.1 + counted));
            }
        }
        hooks.each(|hook| hook.held_out_batch());
    }
    let accuracy = told_right.map(|(right, counted)| right as f64 / counted.max(1) as f64);
    let loss = sum / count;
    Ok(Some(Measured { loss, accuracy }))
}

impl Trainer<'_> {
    /// Evaluates after this step if due; `None` if not, or if a stop was requested before all batches
    /// were done.
    pub(super) fn evaluate(
        &mut self,
        step: usize,
        last: bool,
    ) -> Result<Option<Evaluation>, TrainError> {
        if !self.evaluations.is_due(step, last) {
            return Ok(None);
        }
        let Some(mut batches) = self.evaluations.begin()? else {
            return Ok(None);
        };
        if self.evaluations.standing.on(batches.0.state()) {
            self.hooks.warning(
                "evaluations are on other data from here on: the lowest loss so far is not compared \
                 with theirs",
            );
        }
        let count = batches.0.batches();
        self.hooks.each(|hook| hook.evaluate(step as u64, count));
        let (pipe, hooks) = (&mut *self.pipe, &mut self.hooks);
        let judged_by = (&*self.loss.0, self.settings.accuracy);
        let measured = measure(pipe, &mut *batches.0, judged_by, &self.stop, hooks)?;
        let Some(measured) = measured else {
            return Ok(None);
        };
        // Other processors may round differently, but all must decide alike.
        let own = || Ok(measured.loss.to_bits());
        let loss = f64::from_bits(made_by_leader(pipe, "the held-out loss", own)?);
        let evaluation = Evaluation {
            step: step as u64,
            loss,
            accuracy: measured.accuracy,
        };
        self.evaluations.standing.take(evaluation);
        Ok(Some(evaluation))
    }

    /// Evaluates after the last completed step if that is still due: after a stop interrupted it in an
    /// earlier run, or at the end of the data. Adds the loss to the metrics of that step.
    ///
    /// *Returns* whether it is the best one.
    pub(super) fn evaluate_late(&mut self, last: bool) -> Result<bool, TrainError> {
        let Some(evaluation) = self.evaluate(self.done, last)? else {
            return Ok(false);
        };
        let step = self.done as u64;
        let line = self.outcome.records.last_mut();
        if let Some(line) = line.filter(|line| line.step == step) {
            line.held_out_loss = Some(evaluation.loss);
            line.held_out_accuracy = evaluation.accuracy;
            self.writer.amend(line, &mut self.hooks);
        }
        self.tell_evaluated(evaluation);
        Ok(self.evaluations.standing.is_best(self.done))
    }

    pub(super) fn tell_evaluated(&mut self, evaluation: Evaluation) {
        let is_best = self.evaluations.standing.is_best(self.done);
        self.hooks.each(|hook| hook.evaluated(evaluation, is_best));
    }

    /// Evaluates on held-out data.
    pub(super) fn measure(&mut self, held_out: Start<'_>) -> Result<Ended, TrainError> {
        let mut batches = held_out.start(None).map_err(TrainError::Data)?;
        let count = batches.0.batches();
        self.hooks.each(|hook| hook.held_out(count));
        let (pipe, hooks) = (&mut *self.pipe, &mut self.hooks);
        let judged_by = (&*self.loss.0, self.settings.accuracy);
        let measured = measure(pipe, &mut *batches.0, judged_by, &self.stop, hooks)?;
        self.outcome.held_out_loss = measured.map(|own| own.loss);
        self.outcome.held_out_accuracy = measured.and_then(|own| own.accuracy);
        Ok(match measured {
            Some(_) => Ended::AllDone,
            None => Ended::Unmeasured,
        })
    }
}

/// Returns the numbers of correct predictions and of targets, without ignored ones. `None` if the
/// targets are not classes, or do not match this output.
///
/// # Errors
/// libtorch fails.
pub fn right(
    logits: &Tensor,
    classes: &Tensor,
    ignored: i64,
) -> anyhow::Result<Option<(i64, i64)>> {
    let dimension = class_dimension(&logits.size(), &classes.size());
    let Some(dimension) = dimension.filter(|_| classes.kind() == Kind::Int64) else {
        return Ok(None);
    };
    let classes = classes.f_to_device(logits.device())?;
    let number = |of: Tensor| of.f_sum(Kind::Int64)?.f_int64_value(&[]);
    let right = logits.f_argmax(dimension as i64, false)?;
    let counts = classes.f_ne(ignored)?;
    let right = right.f_eq_tensor(&classes)?.f_logical_and(&counts)?;
    Ok(Some((number(right)?, number(counts)?)))
}

/// Returns the targets; for a model that computes its own loss, and has none, placeholders for the
/// number of samples.
///
/// # Errors
/// libtorch fails.
pub fn told(inputs: &Values, targets: Values) -> Result<Values, TorchError> {
    let samples = inputs.present().next().map(Tensor::size);
    match samples.as_deref().and_then(<[i64]>::first) {
        Some(&samples) if targets.present().next().is_none() => {
            Ok(Tensor::f_zeros([samples], (Kind::Float, Device::Cpu))?.into())
        }
        _ => Ok(targets),
    }
}

/// Returns the sum of a batch's losses, and the number of averaged units.
fn judge(own: &dyn LossFn, outputs: &Values, targets: &Values) -> anyhow::Result<(f64, f64)> {
    let things = targets.present().map(Tensor::numel).sum::<usize>() as f64;
    let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
    let targets = targets
        .shallow_clone()
        .try_map(|target| target.f_to_device(device))?;
    own.loss(outputs, &targets)?.total(things)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(of: &[i64], shape: &[i64]) -> Tensor {
        Tensor::from_slice(of).view(shape)
    }

    /// The last dimension was used, which gave wrong results or an error of libtorch for images.
    #[test]
    fn classes_are_told_where_the_loss_has_them() {
        let wanted = classes(&[0, 3, 1, 2, 2, 0], &[1, 2, 3]);
        let picture = wanted.one_hot(4).permute([0, 3, 1, 2]).to_kind(Kind::Float);
        assert_eq!(right(&picture, &wanted, -100).unwrap(), Some((6, 6)));
        // As many classes as columns.
        let wanted = classes(&[0, 1, 2, 2, 1, 0], &[1, 2, 3]);
        let picture = wanted.one_hot(3).permute([0, 3, 1, 2]).to_kind(Kind::Float);
        assert_eq!(right(&picture, &wanted, -100).unwrap(), Some((6, 6)));
        let text = classes(&[1, 0], &[1, 2]).one_hot(3).to_kind(Kind::Float);
        assert_eq!(
            right(&text, &classes(&[1, 1], &[1, 2]), -100).unwrap(),
            Some((1, 2))
        );
    }

    #[test]
    fn what_counts_nothing_is_neither_right_nor_wrong() {
        let logits = classes(&[1, 0, 1], &[3]).one_hot(2).to_kind(Kind::Float);
        let wanted = classes(&[1, -100, 0], &[3]);
        assert_eq!(right(&logits, &wanted, -100).unwrap(), Some((1, 2)));
        let wanted = classes(&[1, 255, 0], &[3]);
        assert_eq!(right(&logits, &wanted, 255).unwrap(), Some((1, 2)));
        assert_eq!(
            right(&logits, &wanted.to_kind(Kind::Float), -100).unwrap(),
            None
        );
        assert_eq!(right(&logits, &classes(&[1, 1], &[2]), -100).unwrap(), None);
    }
}
