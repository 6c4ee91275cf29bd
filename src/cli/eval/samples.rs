//! Evaluation of a trained model on samples.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Tensor};

use gpipe_partitioner::words::{count, decimals, six_digits};

use super::Batches;
use super::{Args, counted, diverged};
use crate::feed::DataOptions;
use crate::feed::learned::Learned;
use crate::feed::remote::local;
use crate::feed::samples::choose;
use crate::model::{Chosen, exported};
use crate::trained::{Trained, TrainedOn};
use crate::{Failure, failure, output};
use gpipe_data::{Moments, Part};
use gpipe_models::zoo::{ModelSpec, Zoo};
use gpipe_models::{LossKind, USUAL_IGNORED};
use gpipe_torch::{LossFn as _, Pipeline, Values};
use gpipe_train::{told_right, told_targets};

/// Evaluation samples and the model.
pub(super) struct Judged {
    samples: Learned,
    /// The model, with the loss for these.
    spec: ModelSpec,
    name: String,
    /// Whether the samples are a run's held-out part.
    held_out: bool,
}

/// Hint for a missing target column.
fn without_targets(kept: Option<&Value>, why: &str) -> &'static str {
    let target = kept.and_then(|kept| kept["target"].as_str());
    let lacks = target.map(|target| format!("there is no column `{target}`"));
    if lacks.is_some_and(|lacks| why.contains(&lacks)) {
        "; without it nothing can be judged: `predict --run RUN PATH` tells it"
    } else {
        ""
    }
}

impl Judged {
    /// Selects the named data (its test part, if it has one), or the run's held-out part. `None` if the
    /// model takes text.
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
            Some(_) => Failure::Usage(format!("--data: {why}{}", without_targets(kept, &why))),
            None => Failure::Usage(format!("{why}; name other data with --data PATH")),
        };
        let chosen = Chosen::of_spec(zoo, &trained.spec);
        let here = path.map(local).transpose().map_err(wrong)?;
        let found = choose(&chosen, here.as_deref(), &options).map_err(wrong)?;
        let (chosen, samples) = found.ok_or_else(|| {
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
            spec: chosen.spec,
            name,
            held_out: data.is_none(),
        }))
    }

    /// Number of evaluated samples.
    pub(super) fn len(&self) -> usize {
        match self.samples.held_out_len() {
            0 => self.samples.len(),
            held_out => held_out,
        }
    }

    /// Judges the model.
    pub(super) fn run(
        &self,
        args: &Args,
        trained: &Trained,
        pipe: &mut Pipeline,
        (batch, micro): (usize, usize),
    ) -> Result<(), Failure> {
        let (part, len) = match self.samples.held_out_len() {
            0 => (Part::All, self.samples.len()),
            held_out => (Part::HeldOut, held_out),
        };
        let pace = trained.settings.options.pace();
        let pace = pace.or_workers(self.samples.workers());
        let batches = self.samples.load(part, (batch, pace), None);
        let mut sum = Sum::default();
        let done = Batches::new(len.div_ceil(batch));
        for pair in batches.map_err(anyhow::Error::from)?.into_iter().flatten() {
            let pair = pair.map_err(anyhow::Error::from)?;
            let rows = samples(&pair.0);
            if exported::takes(&self.spec, rows, micro) {
                sum.add(pipe, &self.spec, pair)?;
            } else {
                sum.left_out += rows;
            }
            done.done();
        }
        drop(done);
        if sum.samples == 0 {
            return Err(Failure::Usage(format!(
                "{}: a batch of {batch} is more than its {len}, and the model takes no fewer: \
                 take more samples, or another --batch",
                self.name,
                len = count(len, "sample")
            )));
        }
        if !sum.loss.is_finite()
            && let Some(why) = self.samples.not_finite()
        {
            let (name, loss) = (&self.name, sum.loss);
            return Err(Failure::Usage(format!(
                "{name}: {why}, and so the loss is {loss}: leave it out"
            )));
        }
        self.report(args, trained, &sum)
    }

    /// Whether all of the named data is evaluated.
    pub(super) fn is_all(&self) -> bool {
        !self.held_out && self.samples.held_out_len() == 0
    }

    /// Classes without samples, if all data is evaluated.
    fn absent(&self) -> &[String] {
        if self.is_all() {
            self.samples.absent_classes()
        } else {
            &[]
        }
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
        let error = sum.error(loss, self.samples.target_scale());
        let absent = self.absent();
        if args.json {
            let mut object = json!({
                "model": trained.spec.name(),
                "data": self.name,
                "unit": "sample",
                "count": sum.samples,
                "loss": loss,
                "left_out": sum.left_out,
            });
            if let Some(error) = error {
                object["rmse"] = error.rmse.into();
                object["r2"] = error.r2.into();
            }
            if let Some(accuracy) = accuracy {
                object["accuracy"] = accuracy.into();
            }
            if let Some(step) = step {
                object["step"] = step.into();
            }
            if !absent.is_empty() {
                object["absent_classes"] = absent.into();
            }
            return output::print(&output::json(&object));
        }
        let held_out = if self.held_out { ", held out" } else { "" };
        let mut lines = format!(
            "data        {} ({}{held_out})\nloss        {}\n",
            self.name,
            counted(sum.samples, "sample"),
            decimals(loss, 4)
        );
        // Writing to a String cannot fail.
        if !absent.is_empty() {
            let all = self.samples.named_classes();
            let _ = writeln!(lines, "classes     {}", without(absent, all));
        }
        if sum.left_out > 0 {
            let _ = writeln!(
                lines,
                "left out    {}, which {} no batch: the model takes no smaller ones",
                count(sum.left_out, "sample"),
                if sum.left_out == 1 { "fills" } else { "fill" }
            );
        }
        if let Some(accuracy) = accuracy {
            let _ = writeln!(lines, "accuracy    {:.2} %", accuracy * 100.0);
        }
        if let Some(error) = error {
            let rmse = six_digits(error.rmse);
            let _ = writeln!(lines, "rmse        {rmse}, in the units of the data");
            if let Some(r2) = error.r2 {
                let _ = writeln!(lines, "r2          {}", decimals(r2, 4));
            }
        }
        if let Some(step) = step {
            let _ = writeln!(lines, "checkpoint  of step {step}");
        }
        output::print(&lines)
    }
}

/// Errors of a regression.
#[derive(Debug)]
struct Error {
    /// The root of the mean squared error, in the units of the data.
    rmse: f64,
    /// Coefficient of determination; `None` if the targets do not vary.
    r2: Option<f64>,
}

/// Running sums.
#[derive(Debug, Default)]
struct Sum {
    loss: f64,
    weight: f64,
    samples: usize,
    /// Targets of a classification, and correct predictions; `None` if targets are not classes.
    targets: i64,
    right: Option<i64>,
    /// Moments of the predictions of a regression of one number.
    told: Option<Moments>,
    /// Samples of a last, smaller batch that the model does not take.
    left_out: usize,
}

/// Returns the batch size and number of micro-batches: as in training, or as the flag says, with a
/// number of micro-batches that the model takes.
///
/// # Errors
/// The model takes no batch of that size.
pub(crate) fn cut(
    trained: &Trained,
    asked: Option<usize>,
    (batch, micro): (usize, usize),
) -> Result<(usize, usize), Failure> {
    let spec = &trained.spec;
    if exported::takes(spec, batch, micro) {
        return Ok((batch, micro));
    }
    let Some(model) = spec.exported() else {
        return Ok((batch, micro));
    };
    let sizes = model.micro_batch_sizes();
    let most = batch / (*sizes.start()).max(1);
    let fits = |micro: &usize| exported::takes(spec, batch, *micro);
    match (1..=most).rev().find(fits) {
        Some(micro) => Ok((batch, micro)),
        // The size is a default.
        None if asked.is_none() => Ok((*sizes.start(), 1)),
        None => Err(Failure::Usage(format!(
            "--batch {batch}: `{}` was exported for micro-batches of {} samples: take a multiple of \
             them",
            spec.name(),
            exported::range(&sizes)
        ))),
    }
}

/// Size of dimension 0 of the inputs.
fn samples(inputs: &Values) -> usize {
    let first = inputs.present().next().map(Tensor::size);
    first.and_then(|size| size.first().copied()).unwrap_or(0) as usize
}

impl Sum {
    /// Errors for this mean squared loss, with targets scaled by this mean and deviation.
    fn error(&self, loss: f64, scale: Option<(f64, f64)>) -> Option<Error> {
        let told = self.told.as_ref()?;
        let varies = told.squares > 0.0;
        Some(Error {
            rmse: loss.sqrt() * scale.map_or(1.0, |(_, std)| std),
            r2: varies.then(|| 1.0 - loss * told.count / told.squares),
        })
    }

    fn add(
        &mut self,
        pipe: &mut Pipeline,
        spec: &ModelSpec,
        (x, y): (Values, Values),
    ) -> Result<(), Failure> {
        let y = told_targets(&x, y)?;
        let samples = samples(&x);
        let outputs = pipe.forward_values(x).map_err(failure)?;
        let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
        let y = y.try_map(|y| y.f_to_device(device))?;
        let ignored = spec.named_loss().and_then(|own| own.ignored());
        if let (Some(logits), Some(classes)) = (outputs.present().next(), y.present().next())
            && let Some((right, counted)) =
                told_right(logits, classes, ignored.unwrap_or(USUAL_IGNORED))?
        {
            *self.right.get_or_insert(0) += right;
            self.targets += counted;
        }
        let is_mse = (spec.named_loss()).is_some_and(|own| own.kind() == LossKind::Mse);
        if let (true, Some(y)) = (is_mse, y.present().next().filter(|y| y.numel() == samples)) {
            self.told.get_or_insert_default().join(Moments::of(y)?);
        }
        let things = y.present().map(Tensor::numel).sum::<usize>() as f64;
        let loss = spec.loss().loss(&outputs, &y)?;
        let (sum, count) = loss.total(things)?;
        self.loss += sum;
        self.weight += count;
        self.samples += samples;
        Ok(())
    }
}

/// Tells how many classes have no samples, and names them.
fn without(absent: &[String], all: usize) -> String {
    const NAMED: usize = 5;
    let named = absent.iter().take(NAMED).map(|own| format!("`{own}`"));
    let named: Vec<String> = named.collect();
    let more = match absent.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let there = all.saturating_sub(absent.len());
    format!(
        "{there} of the model's {all}: no sample is of {}{more}",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Out of a thousand classes, only ten may occur.
    #[test]
    fn of_many_absent_classes_a_few_are_named() {
        let absent: Vec<String> = (0..7).map(|class| class.to_string()).collect();
        assert_eq!(
            without(&absent[..1], 2),
            "1 of the model's 2: no sample is of `0`"
        );
        assert_eq!(
            without(&absent, 10),
            "3 of the model's 10: no sample is of `0`, `1`, `2`, `3`, `4` and 2 more"
        );
    }
}
