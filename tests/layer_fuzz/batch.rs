//! The caller's inputs to a step, and the loss function.

use anyhow::Result;
use gpipe::tch::{Kind, Tensor};

use crate::layer::{CPU, WIDTH, numbers};
use crate::program::{Holds, How, Loss, Program};

/// A tensor of the caller: its memory, and its position there.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) base: Tensor,
    how: How,
}

impl Given {
    /// The inputs, with the same numbers each time.
    pub(crate) fn inputs(program: &Program) -> Vec<Self> {
        let (batch, kind) = (&program.batch, crate::layer::kind(program));
        let mut inputs: Vec<Self> = Vec::new();
        for (number, input) in batch.inputs.iter().enumerate() {
            let values = |shape: &[i64]| numbers(shape, 1000 + number, kind);
            let given = match (input.holds, inputs.first()) {
                (Holds::Again, Some(first)) => Self {
                    base: first.base.shallow_clone(),
                    how: first.how,
                },
                (Holds::Ids, _) => Self::new(input.how, batch.samples, WIDTH, |shape| {
                    (values(shape) * 10.0).to_kind(Kind::Int64)
                }),
                _ => Self::new(input.how, batch.samples, WIDTH, values),
            };
            inputs.push(given);
        }
        inputs
    }

    /// The target.
    pub(crate) fn target(program: &Program) -> Self {
        let kind = crate::layer::kind(program);
        Self::new(program.batch.target, program.batch.samples, 2, |shape| {
            numbers(shape, 2000, kind)
        })
    }

    fn new(how: How, samples: i64, width: i64, fill: impl Fn(&[i64]) -> Tensor) -> Self {
        let shape = match how {
            How::Own => [samples, width],
            How::Rows => [samples + 3, width],
            How::Columns => [samples, width + 5],
            How::Transposed => [width, samples],
            How::Expanded => [samples, 1],
        };
        Self {
            base: fill(&shape),
            how,
        }
    }

    /// The tensor passed to the step.
    pub(crate) fn tensor(&self) -> Tensor {
        let (base, size) = (&self.base, self.base.size());
        match self.how {
            How::Own => base.shallow_clone(),
            How::Rows => base.narrow(0, 1, size[0] - 3),
            How::Columns => base.narrow(1, 2, size[1] - 5),
            How::Transposed => base.tr(),
            How::Expanded => base.expand([size[0], 3], false),
        }
    }
}

/// The loss of a micro-batch, and its weight if that is not the number of samples.
pub(crate) fn loss(
    what: Loss,
    outputs: &[Option<Tensor>],
    target: &Tensor,
) -> Result<(Tensor, Option<f64>)> {
    let mut target = target.shallow_clone();
    if what == Loss::TargetInPlace {
        target = target.f_mul_scalar_(2.0)?;
    }
    let kind = target.kind();
    let mut sum = Tensor::zeros([], (kind, CPU));
    let mut weight = 1.0;
    for (number, output) in outputs.iter().enumerate() {
        let Some(output) = output else { continue };
        let mut output = output.shallow_clone();
        if what == Loss::OutputsInPlace && output.is_floating_point() {
            output = output.f_mul_scalar_(2.0)?;
        }
        weight += output.numel() as f64;
        // Not a mean, since there may be no elements.
        let mean = 1.0 / (output.numel() + 1) as f64;
        let value = if output.is_floating_point() {
            output
                .f_sin()?
                .f_add(&output.f_mul_scalar(0.1 * (number + 1) as f64)?)?
        } else {
            output.f_to_kind(kind)?
        };
        sum = sum.f_add(&value.f_sum(kind)?.f_mul_scalar(mean)?)?;
    }
    let distance = sum.f_sub(&target.f_mean(kind)?)?;
    let weight = (what == Loss::Weighted).then_some(weight);
    Ok((distance.f_square()?.f_add(&sum)?, weight))
}
