//! Data of the right shape, made from nothing.

use tch::{Device, Kind, Tensor};

use gpipe_torch::TorchError;

/// What the elements of a made-up tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Floats from N(0, 1).
    Normal,
    /// Floats, uniform in [0, 1).
    Uniform,
    /// Integers (`i64`), uniform from 0 to below the number, which are all that there are: classes
    /// or tokens.
    Classes(i64),
    /// Integers (`i64`) of any size, such as counts; made-up ones are uniform from 0 to below the
    /// number.
    Integers(i64),
}

/// A tensor that can be made up: its shape without the samples' dimension, and what
/// is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synthetic {
    shape: Vec<i64>,
    fill: Fill,
    kind: Kind,
}

impl Synthetic {
    /// Floats from N(0, 1).
    pub fn normal(shape: impl Into<Vec<i64>>) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Normal,
            kind: Kind::Float,
        }
    }

    /// Floats, uniform in [0, 1).
    pub fn uniform(shape: impl Into<Vec<i64>>) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Uniform,
            kind: Kind::Float,
        }
    }

    /// Integers from 0 to below `classes`: labels, or tokens.
    pub fn classes(shape: impl Into<Vec<i64>>, classes: i64) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Classes(classes),
            kind: Kind::Int64,
        }
    }

    /// Integers of any size, such as counts; made-up ones are from 0 to below `below`.
    pub fn integers(shape: impl Into<Vec<i64>>, below: i64) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Integers(below),
            kind: Kind::Int64,
        }
    }

    /// The same with elements of this kind.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The shape of one sample.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Whether it is a sequence of tokens: one of numbers that are all known, and no truths.
    pub fn is_tokens(&self) -> bool {
        let known = matches!(self.fill, Fill::Classes(_)) && self.kind != Kind::Bool;
        known && self.shape.len() == 1
    }

    /// What the elements are.
    pub fn fill(&self) -> Fill {
        self.fill
    }

    /// The kind of the elements.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// `batch` samples on the CPU, from this thread's generator.
    pub(super) fn draw(&self, batch: usize) -> Result<Tensor, TorchError> {
        let shape: Vec<i64> = std::iter::once(batch as i64)
            .chain(self.shape.iter().copied())
            .collect();
        let (float, whole) = ((Kind::Float, Device::Cpu), (Kind::Int64, Device::Cpu));
        let drawn = match self.fill {
            Fill::Normal => Tensor::f_randn(&shape, float)?,
            Fill::Uniform => Tensor::f_rand(&shape, float)?,
            Fill::Classes(below) | Fill::Integers(below) => {
                Tensor::f_randint(below, &shape, whole)?
            }
        };
        Ok(drawn.f_to_kind(self.kind)?)
    }
}
