//! How well a trained model tells the targets of samples.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::{Args, diverged};
use crate::cli::feed::samples::choose;
use crate::cli::feed::{DataOptions, workers};
use crate::cli::model::Chosen;
use crate::cli::trained::{Trained, TrainedOn};
use crate::cli::{Failure, failure, output};
use crate::data::Samples;
use crate::models::class_dimension;
use crate::models::zoo::Zoo;
use crate::torch::LossFn as _;
use crate::{Pipeline, Values};

/// Samples that a model is judged by.
pub(super) struct Judged {
    samples: Samples,
    name: String,
    /// Whether they are those that a run held out.
    held_out: bool,
}

impl Judged {
    /// All of the data that is named, or its test part where it has one; else what the run held
    /// out. None where the model is one of texts.
    pub(super) fn choose(
        trained: &Trained,
        data: Option<&Path>,
        zoo: &Zoo,
    ) -> Result<Option<Self>, Failure> {
        let kept = trained.settings.options.kept.as_ref();
        if kept.is_none() && (trained.tokens().is_ok() || data.is_none()) {
            return Ok(None);
        }
        let path = match &trained.settings.data {
            TrainedOn::File(path) => data.or(Some(path)),
            _ => data,
        };
        let options = DataOptions {
            held_out: match data {
                Some(_) => 0.0,
                None => trained.settings.options.held_out,
            },
            augment: false,
            ..trained.settings.options.clone()
        };
        let name = path.map_or_else(
            || "the model's own".to_owned(),
            |path| path.display().to_string(),
        );
        let wrong = |why: String| match data {
            Some(_) => Failure::Usage(format!("--data: {why}")),
            None => Failure::Usage(format!("{why}; name other data with --data PATH")),
        };
        let chosen = Chosen::of_spec(zoo, &trained.spec);
        let found = choose(&chosen, path, &options).map_err(wrong)?;
        let (_, samples) = found.ok_or_else(|| {
            wrong("nothing says where the samples are that it was trained on".to_owned())
        })?;
        if let (None, Some(kept)) = (data, kept) {
            samples
                .check_same(kept)
                .map_err(|error| wrong(format!("{name}: {error}")))?;
            if samples.held_out_len() == 0 {
                return Err(wrong(format!(
                    "{name}: nothing of it was held out from training"
                )));
            }
        }
        Ok(Some(Self {
            samples,
            name,
            held_out: data.is_none(),
        }))
    }

    /// Judges the model.
    pub(super) fn run(
        &self,
        args: &Args,
        trained: &Trained,
        pipe: &mut Pipeline,
        batch: usize,
    ) -> Result<(), Failure> {
        let mut sum = Sum::default();
        let threads = trained.settings.options.workers;
        let threads = threads.unwrap_or_else(|| workers(&self.samples));
        if let Some(batches) = self.samples.held_out(batch) {
            let batches = batches.workers(threads).load();
            for pair in batches.map_err(anyhow::Error::from)? {
                sum.add(pipe, trained, pair.map_err(anyhow::Error::from)?)?;
            }
        } else {
            let batches = self.samples.in_order(batch).workers(threads).load();
            for pair in batches.map_err(anyhow::Error::from)? {
                sum.add(pipe, trained, pair.map_err(anyhow::Error::from)?)?;
            }
        }
        self.report(args, trained, &sum)
    }

    fn report(&self, args: &Args, trained: &Trained, sum: &Sum) -> Result<(), Failure> {
        let loss = sum.loss / sum.weight;
        if !loss.is_finite() {
            return Err(diverged(trained, loss));
        }
        let accuracy = sum
            .right
            .map(|right| right as f64 / sum.targets.max(1) as f64);
        let step = trained.settings.step;
        if args.json {
            let mut object = json!({
                "model": trained.spec.name(),
                "data": self.name,
                "unit": "sample",
                "count": sum.samples,
                "loss": loss,
            });
            if let Some(accuracy) = accuracy {
                object["accuracy"] = accuracy.into();
            }
            if let Some(step) = step {
                object["step"] = step.into();
            }
            return output::print(&output::json(&object));
        }
        let held_out = if self.held_out { ", held out" } else { "" };
        let mut lines = format!(
            "data        {} ({} samples{held_out})\nloss        {loss:.4}\n",
            self.name, sum.samples
        );
        // Writing to a String cannot fail.
        if let Some(accuracy) = accuracy {
            let _ = writeln!(lines, "accuracy    {:.2} %", accuracy * 100.0);
        }
        if let Some(step) = step {
            let _ = writeln!(lines, "checkpoint  of step {step}");
        }
        output::print(&lines)
    }
}

/// Means that are being made.
#[derive(Debug, Default)]
struct Sum {
    loss: f64,
    weight: f64,
    samples: usize,
    /// Classes to tell, and those that were told; none where targets are no classes.
    targets: i64,
    right: Option<i64>,
}

/// How many classes were told right, and of how many: targets below 0 are none, and count nothing.
/// None where the targets are no classes, or none of this output's.
fn told(logits: &Tensor, classes: &Tensor) -> Result<Option<(i64, i64)>, Failure> {
    let dimension = class_dimension(&logits.size(), &classes.size());
    let Some(dimension) = dimension.filter(|_| classes.kind() == Kind::Int64) else {
        return Ok(None);
    };
    let number = |of: Tensor| of.f_sum(Kind::Int64)?.f_int64_value(&[]);
    let right = logits.f_argmax(dimension as i64, false)?;
    let right = number(right.f_eq_tensor(classes)?)?;
    Ok(Some((right, number(classes.f_ge(0)?)?)))
}

impl Sum {
    fn add(
        &mut self,
        pipe: &mut Pipeline,
        trained: &Trained,
        (x, y): (Tensor, Tensor),
    ) -> Result<(), Failure> {
        let outputs = pipe.forward_values(&x).map_err(failure)?;
        let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
        let y = y.f_to_device(device)?;
        if let Some(logits) = outputs.present().next()
            && let Some((right, counted)) = told(logits, &y)?
        {
            *self.right.get_or_insert(0) += right;
            self.targets += counted;
        }
        let (samples, things) = (x.size()[0] as usize, y.numel() as f64);
        let loss = trained.spec.loss().loss(&outputs, &Values::from(y))?;
        let (sum, count) = loss.total(things)?;
        self.loss += sum;
        self.weight += count;
        self.samples += samples;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(of: &[i64], shape: &[i64]) -> Tensor {
        Tensor::from_slice(of).view(shape)
    }

    /// It took the last dimension, and gave nonsense, or an error of libtorch's, for pictures.
    #[test]
    fn classes_are_told_where_the_loss_has_them() {
        let wanted = classes(&[0, 3, 1, 2, 2, 0], &[1, 2, 3]);
        let picture = wanted.one_hot(4).permute([0, 3, 1, 2]).to_kind(Kind::Float);
        assert_eq!(told(&picture, &wanted).unwrap(), Some((6, 6)));
        // As many classes as columns.
        let wanted = classes(&[0, 1, 2, 2, 1, 0], &[1, 2, 3]);
        let picture = wanted.one_hot(3).permute([0, 3, 1, 2]).to_kind(Kind::Float);
        assert_eq!(told(&picture, &wanted).unwrap(), Some((6, 6)));
        let text = classes(&[1, 0], &[1, 2]).one_hot(3).to_kind(Kind::Float);
        assert_eq!(
            told(&text, &classes(&[1, 1], &[1, 2])).unwrap(),
            Some((1, 2))
        );
    }

    #[test]
    fn what_counts_nothing_is_neither_right_nor_wrong() {
        let logits = classes(&[1, 0, 1], &[3]).one_hot(2).to_kind(Kind::Float);
        let wanted = classes(&[1, -100, 0], &[3]);
        assert_eq!(told(&logits, &wanted).unwrap(), Some((1, 2)));
        assert_eq!(told(&logits, &wanted.to_kind(Kind::Float)).unwrap(), None);
        assert_eq!(told(&logits, &classes(&[1, 1], &[2])).unwrap(), None);
    }
}
