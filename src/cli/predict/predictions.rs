//! Converts outputs to predictions: classes with probabilities, or numbers.

use tch::{Kind, Tensor};

use crate::Failure;
use gpipe_data::Samples;
use gpipe_models::zoo::{Fill, ModelSpec};

/// Prediction for one sample.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Told {
    /// Classes with their probabilities, the most likely first.
    Classes(Vec<(String, f64)>),
    /// Outputs of a regression.
    Numbers(Vec<f64>),
    /// Probabilities of independent events.
    Probabilities(Vec<f64>),
}

/// How outputs are interpreted.
#[derive(Debug)]
pub(super) struct Teller {
    name: String,
    /// Number of classes, if outputs are classes.
    classes: Option<usize>,
    names: Vec<String>,
    /// Mean and standard deviation that the targets were scaled by.
    scale: (f64, f64),
    /// Whether outputs are log-odds, which need a sigmoid.
    odds: bool,
}

impl Teller {
    pub(super) fn of(spec: &ModelSpec, samples: &Samples) -> Self {
        let odds = matches!(spec.targets(), [target] if target.fill() == Fill::Uniform);
        Self {
            name: spec.name().to_owned(),
            classes: samples.classes(),
            names: samples.class_names().to_vec(),
            scale: samples.target_scale().unwrap_or((0.0, 1.0)),
            odds,
        }
    }

    /// Converts double-precision outputs `[samples, …]` to predictions.
    ///
    /// # Errors
    /// The outputs are not finite, or have several classifications per sample.
    pub(super) fn told(&self, outputs: &Tensor) -> Result<Vec<Told>, Failure> {
        if outputs.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Err(Failure::Run(anyhow::anyhow!(
                "the model's outputs are not finite: its training has diverged, and an older \
                 checkpoint may be better: --checkpoint DIR"
            )));
        }
        let rows = outputs.size().first().copied().unwrap_or(0);
        match (self.classes, self.odds) {
            (Some(_), false) => self.classes(outputs),
            (classes, odds) => {
                let numbers = outputs.f_reshape([rows, -1])?;
                let (mean, std) = self.scale;
                let numbers = if odds {
                    numbers.f_sigmoid()?
                } else {
                    numbers.f_mul_scalar(std)?.f_add_scalar(mean)?
                };
                let rows = Vec::<Vec<f64>>::try_from(&numbers)?.into_iter();
                Ok(match classes {
                    Some(2) if numbers.size()[1] == 1 => {
                        rows.map(|own| self.either(own[0])).collect()
                    }
                    _ if odds => rows.map(Told::Probabilities).collect(),
                    _ => rows.map(Told::Numbers).collect(),
                })
            }
        }
    }

    fn classes(&self, logits: &Tensor) -> Result<Vec<Told>, Failure> {
        let size = logits.size();
        let [_, _] = size[..] else {
            return Err(Failure::Usage(format!(
                "`{}` gives each sample outputs of the shape {:?}, and `predict` tells one class of each: \
                 it is for outputs [samples, classes]",
                self.name,
                &size[1..]
            )));
        };
        let all = logits.f_softmax(1, Kind::Double)?;
        let all = Vec::<Vec<f64>>::try_from(&all)?.into_iter();
        Ok(all.map(|own| self.ordered(own)).collect())
    }

    /// The prediction of two classes, given the second's probability.
    fn either(&self, second: f64) -> Told {
        self.ordered(vec![1.0 - second, second])
    }

    fn ordered(&self, probabilities: Vec<f64>) -> Told {
        let named = probabilities.into_iter().enumerate();
        let mut all: Vec<_> = named.map(|(class, own)| (self.class(class), own)).collect();
        // Ties keep the order of class numbers.
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        Told::Classes(all)
    }

    fn class(&self, number: usize) -> String {
        let name = self.names.get(number).cloned();
        name.unwrap_or_else(|| number.to_string())
    }
}
