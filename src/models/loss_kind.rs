//! Named loss functions, for models without their own.

use std::fmt;
use std::io;
use std::str::FromStr;

use gpipe_partitioner::words::{instead, meant};
use tch::{Kind, Reduction, TchError, Tensor};

use gpipe_torch::{Loss, LossFn, Values, batch};

/// A named loss function.
///
/// All are means, entropies in nats, and do not depend on the number of micro-batches: they equal the
/// loss of the whole mini-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossKind {
    /// `cross-entropy`: of classes, averaged over all targets, or over those not ignored
    /// ([`NamedLoss::ignore_index`]). PyTorch's `F.cross_entropy`.
    ///
    /// *Shapes*: targets are integers, with the output's shape without its class dimension. That is the
    /// last one of an output of up to three dimensions, `[batch, classes]` or `[batch, time, classes]`,
    /// and else the second, `[batch, classes, height, width]`; if the targets' shape fits only the
    /// other of the two, it is that one.
    CrossEntropy,
    /// `mse`: squared error of each number. PyTorch's `F.mse_loss`.
    ///
    /// *Shapes*: targets have the output's shape; dimensions of one may be missing.
    Mse,
    /// `bce`: binary cross-entropy of each number; outputs are logits, targets from 0 to 1. PyTorch's
    /// `F.binary_cross_entropy_with_logits`.
    ///
    /// *Shapes*: as [`LossKind::Mse`].
    Bce,
    /// `output`: an output of the model itself, taken as the mean over its samples. Its targets are
    /// among its inputs.
    Output,
}

/// The default of ignored targets in PyTorch's cross-entropy.
pub const USUAL_IGNORED: i64 = -100;
/// Ignores no targets: all that are not classes are errors.
pub(super) const NOTHING_IGNORED: i64 = i64::MIN;

impl LossKind {
    /// All losses.
    pub const ALL: [Self; 4] = [Self::CrossEntropy, Self::Mse, Self::Bce, Self::Output];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross-entropy",
            Self::Mse => "mse",
            Self::Bce => "bce",
            Self::Output => "output",
        }
    }

    /// The error for mismatched shapes of output and target, with advice.
    fn unfit(self, output: &Tensor, target: &Tensor) -> anyhow::Error {
        let (own, given) = (output.size(), target.size());
        let wants = match self {
            Self::CrossEntropy => {
                "targets have the shape of the output without its dimension of classes"
            }
            _ => "targets have the shape of the output",
        };
        anyhow::anyhow!(
            "the loss `{self}`: the output has shape {own:?} and the targets {given:?}, but {wants}"
        )
    }
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Also accepts PyTorch's names of these losses. The error lists the valid names.
impl FromStr for LossKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = of_pytorch(text).unwrap_or(text);
        let found = Self::ALL.into_iter().find(|own| own.name() == name);
        found.ok_or_else(|| {
            if let Some(why) = elsewhere(text) {
                return format!("`{text}` is no loss here: {why}");
            }
            let names = Self::ALL.map(Self::name);
            let choices = format!("there are {}", names.join(", "));
            format!(
                "`{text}` is no loss{}",
                instead(meant(text, names), &choices)
            )
        })
    }
}

/// Reduces PyTorch's spellings of a loss to their common part: `nn.CrossEntropyLoss` and
/// `F.cross_entropy` become `crossentropy`.
fn plain(text: &str) -> String {
    let name = text.rsplit('.').next().unwrap_or(text).to_lowercase();
    let name: String = name.chars().filter(|c| !matches!(c, '-' | '_')).collect();
    name.strip_suffix("loss").unwrap_or(&name).to_owned()
}

/// Returns the name of a loss that PyTorch, or authors who use it, call otherwise. Its `BCELoss` takes
/// probabilities and is not supported.
fn of_pytorch(text: &str) -> Option<&'static str> {
    Some(match plain(text).as_str() {
        "ce" | "xent" | "crossentropy" => "cross-entropy",
        "mse" => "mse",
        "bcewithlogits" | "binarycrossentropywithlogits" => "bce",
        _ => return None,
    })
}

/// Suggests a replacement for a loss of PyTorch that is not supported.
fn elsewhere(text: &str) -> Option<&'static str> {
    Some(match plain(text).as_str() {
        "bce" | "binarycrossentropy" => {
            "use `bce`, which takes the output before its sigmoid: leave the sigmoid out of the model"
        }
        "nll" => {
            "use `cross-entropy`: it takes log-probabilities as well, which are their own log-softmax"
        }
        "l1" | "mae" | "huber" | "smoothl1" | "kl" | "kldiv" | "ctc" => {
            "let `forward` compute it from its targets and give it as an output, and use `output`"
        }
        _ => return None,
    })
}

/// A [`LossKind`] with its parameters: a loss function of the first output and the single target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedLoss {
    kind: LossKind,
    ignore_index: Option<i64>,
    /// Index of the output that is the model's own loss, if known.
    own: Option<usize>,
}

impl NamedLoss {
    /// Returns the kind of loss.
    pub fn kind(&self) -> LossKind {
        self.kind
    }

    /// Returns the ignored target, if any.
    pub fn ignored(&self) -> Option<i64> {
        self.ignore_index
    }

    /// Ignores targets of this number, -100 by default in PyTorch. The loss of a mini-batch is then the
    /// mean over the other targets of all its micro-batches together. Without it, such a target is an
    /// error. Only [`LossKind::CrossEntropy`] uses it.
    #[must_use]
    pub fn ignore_index(mut self, index: i64) -> Self {
        self.ignore_index = Some(index);
        self
    }

    /// Sets the index of the output that is the model's own loss.
    pub(crate) fn of_output(mut self, index: usize) -> Self {
        self.own = Some(index);
        self
    }

    fn cross_entropy(&self, output: &Tensor, target: &Tensor) -> anyhow::Result<Loss> {
        let kind = target.kind();
        anyhow::ensure!(
            !is_float(kind) && kind != Kind::Bool,
            "the loss `{}`: targets are numbers of classes, not {kind:?}",
            self.kind
        );
        let classes = class_dimension(&output.size(), &target.size());
        let classes = classes.ok_or_else(|| self.kind.unfit(output, target))?;
        let target = target.f_to_kind(Kind::Int64)?;
        let (output, target) = if classes + 1 == output.dim() && classes > 1 {
            let count = output.size()[classes];
            (output.f_reshape([-1, count])?, target.f_reshape([-1])?)
        } else {
            (output.shallow_clone(), target)
        };
        let mean = |ignored| {
            let loss =
                output.f_cross_entropy_loss(&target, None::<Tensor>, Reduction::Mean, ignored, 0.0);
            loss.map_err(|error| out_of_range(error, &output, &target, ignored))
        };
        let Some(ignored) = self.ignore_index else {
            return Ok(Loss::mean(mean(NOTHING_IGNORED)?));
        };
        let count = target.f_ne(ignored)?.f_sum(Kind::Int64)?;
        let count = count.f_int64_value(&[])?;
        Ok(Loss::weighted(mean(ignored)?, count as f64))
    }

    fn of_each(&self, output: &Tensor, target: &Tensor) -> anyhow::Result<Loss> {
        let (own, given) = (output.size(), target.size());
        let sides = |all: &[i64]| -> Vec<i64> {
            let others = all.iter().skip(1).copied();
            others.filter(|side| *side != 1).collect()
        };
        let fits = own.first() == given.first() && sides(&own) == sides(&given);
        if !fits {
            return Err(self.kind.unfit(output, target));
        }
        let target = target.f_reshape(&own)?;
        // The mean of doubles needs double targets for a gradient.
        let target = if is_float(target.kind()) && output.kind() != Kind::Double {
            target
        } else {
            target.f_to_kind(output.kind())?
        };
        let none = None::<Tensor>;
        let mean = match self.kind {
            LossKind::Mse => output.f_mse_loss(&target, Reduction::Mean)?,
            _ => output.f_binary_cross_entropy_with_logits(
                &target,
                none.as_ref(),
                none.as_ref(),
                Reduction::Mean,
            )?,
        };
        Ok(Loss::mean(mean))
    }
}

impl From<LossKind> for NamedLoss {
    fn from(kind: LossKind) -> Self {
        Self {
            kind,
            ignore_index: None,
            own: None,
        }
    }
}

impl LossFn for NamedLoss {
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        if self.kind == LossKind::Output {
            return own_loss(outputs, self.own, targets).map(Loss::mean);
        }
        let output = outputs.get(0);
        let output = output.ok_or_else(|| anyhow::anyhow!("the first output is absent"))?;
        match self.kind {
            LossKind::CrossEntropy => self.cross_entropy(output, targets.one()?),
            _ => self.of_each(output, targets.one()?),
        }
    }
}

/// Explains libtorch's error about a target that is not a class (`Target 10 is out of bounds.`), with
/// the valid classes and advice; other errors are unchanged.
pub(super) fn out_of_range(
    error: TchError,
    output: &Tensor,
    target: &Tensor,
    ignored: i64,
) -> TchError {
    if !error.to_string().contains("out of bounds") {
        return error;
    }
    let (size, at) = (output.size(), usize::from(output.dim() > 1));
    let Some(&classes) = size.get(at) else {
        return error;
    };
    let first = || -> Result<i64, TchError> {
        let inside = target.f_ge(0)?.f_logical_and(&target.f_lt(classes)?)?;
        let taken = inside.f_logical_or(&target.f_eq(ignored)?)?;
        let wrong = target.f_masked_select(&taken.f_logical_not()?)?;
        wrong.f_get(0)?.f_int64_value(&[])
    };
    first().map_or(error, |label| {
        let said = format!(
            "label {label} is out of the range 0 to {}: the output has {classes} classes, counted \
             from 0; subtract 1 where labels begin at 1, give the model more classes, or leave such \
             targets out of the loss (`NamedLoss::ignore_index`, --ignore-index {label})",
            classes - 1
        );
        // Other variants add a prefix, such as that the error is internal to libtorch.
        TchError::Io(io::Error::new(io::ErrorKind::InvalidInput, said))
    })
}

/// Returns the model's own loss: a number, or in evaluation one per micro-batch. These are weighted by
/// samples, as in training, if a target tells their number.
fn own_loss(outputs: &Values, own: Option<usize>, targets: &Values) -> anyhow::Result<Tensor> {
    let of = |dimensions: usize| outputs.present().find(|own| own.dim() == dimensions);
    let own = own
        .and_then(|index| outputs.get(index))
        .or_else(|| of(0))
        .or_else(|| of(1));
    let Some(own) = own else {
        anyhow::bail!("the loss `output`: none of the outputs is a single number");
    };
    if own.dim() == 0 {
        return Ok(own.shallow_clone());
    }
    let samples = targets.present().next().map(Tensor::size);
    let Some(&samples) = samples.as_deref().and_then(<[i64]>::first) else {
        return Ok(own.f_mean(None)?);
    };
    let sizes = batch::sizes(samples, own.numel());
    anyhow::ensure!(
        sizes.len() == own.numel(),
        "the loss `output`: {} micro-batches gave a loss, but there are {samples} samples",
        own.numel()
    );
    let shares: Vec<f64> = sizes
        .iter()
        .map(|size| *size as f64 / samples as f64)
        .collect();
    let shares = Tensor::f_from_slice(&shares)?.f_to_device(own.device())?;
    let weighted = own.f_to_kind(Kind::Double)?.f_mul(&shares)?;
    Ok(weighted.f_sum(Kind::Double)?)
}

/// Returns the class dimension of an output; `None` if targets of this shape do not fit it.
pub fn class_dimension(output: &[i64], target: &[i64]) -> Option<usize> {
    let fits = |at: &usize| {
        let mut rest = output.to_vec();
        (1..rest.len()).contains(at) && {
            rest.remove(*at);
            rest == target
        }
    };
    class_dimensions(output.len()).into_iter().find(fits)
}

/// Returns possible class dimensions, the usual one first.
pub(super) fn class_dimensions(dimensions: usize) -> [usize; 2] {
    let last = dimensions.saturating_sub(1);
    if dimensions > 3 { [1, last] } else { [last, 1] }
}

/// Whether this is a floating-point type.
pub(super) fn is_float(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_doubles_learns_floats() {
        let output = Tensor::ones([2, 1], (Kind::Double, tch::Device::Cpu)).set_requires_grad(true);
        let target = Tensor::from_slice(&[1.0_f32, 3.0]);
        let named = NamedLoss::from(LossKind::Mse);
        let loss = named.loss(&Values::from(output.shallow_clone()), &Values::from(target));
        loss.unwrap().value.backward();
        assert_eq!(
            Vec::<f64>::try_from(output.grad().view(-1)).unwrap(),
            [0.0, -2.0]
        );
    }

    #[test]
    fn classes_are_where_pytorch_or_a_language_model_has_them() {
        for (output, target, wanted) in [
            (&[6, 5][..], &[6][..], Some(1)),
            (&[6, 7, 5], &[6, 7], Some(2)),
            (&[6, 5, 7], &[6, 7], Some(1)),
            // As many tokens as classes: three dimensions are meant for tokens.
            (&[6, 5, 5], &[6, 5], Some(2)),
            (&[6, 4, 8, 9], &[6, 8, 9], Some(1)),
            (&[6, 8, 9, 4], &[6, 8, 9], Some(3)),
            (&[6, 5], &[6, 5], None),
            (&[6, 5], &[5], None),
            (&[], &[], None),
        ] {
            let found = class_dimension(output, target);
            assert_eq!(found, wanted, "{output:?}, {target:?}");
        }
    }

    /// `ce` was taken for a misspelled `bce`.
    #[test]
    fn the_names_of_pytorch_are_taken() {
        for (text, kind) in [
            ("ce", LossKind::CrossEntropy),
            ("cross_entropy", LossKind::CrossEntropy),
            ("CrossEntropyLoss", LossKind::CrossEntropy),
            ("nn.CrossEntropyLoss", LossKind::CrossEntropy),
            ("torch.nn.functional.cross_entropy", LossKind::CrossEntropy),
            ("MSELoss", LossKind::Mse),
            ("BCEWithLogitsLoss", LossKind::Bce),
            ("binary_cross_entropy_with_logits", LossKind::Bce),
        ] {
            assert_eq!(text.parse(), Ok(kind), "{text}");
        }
        for kind in LossKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let refused = "nn.SmoothL1Loss".parse::<LossKind>().unwrap_err();
        assert!(refused.contains("use `output`"), "{refused}");
        let refused = "BCELoss".parse::<LossKind>().unwrap_err();
        assert!(refused.contains("leave the sigmoid out"), "{refused}");
    }
}
