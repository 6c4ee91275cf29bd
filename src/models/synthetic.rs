//! Made-up data of given shapes.

use tch::{Device, Kind, Tensor};

use gpipe_torch::TorchError;

/// The elements of a made-up tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Floats from N(0, 1).
    Normal,
    /// Makes floats, uniform in [0, 1).
    Uniform,
    /// Integers (`i64`), uniform from 0 to below this number, which is the number of classes or tokens.
    Classes(i64),
    /// Integers (`i64`) of any size, such as counts; made-up ones are uniform from 0 to below this
    /// number.
    Integers(i64),
}

/// Description of a made-up tensor: its shape without the samples' dimension, and its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synthetic {
    shape: Vec<i64>,
    fill: Fill,
    kind: Kind,
}

impl Synthetic {
    /// Makes floats from N(0, 1).
    pub fn normal(shape: impl Into<Vec<i64>>) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Normal,
            kind: Kind::Float,
        }
    }

    /// Makes floats, uniform in [0, 1).
    pub fn uniform(shape: impl Into<Vec<i64>>) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Uniform,
            kind: Kind::Float,
        }
    }

    /// Makes integers from 0 to below `classes`: labels, or tokens.
    pub fn classes(shape: impl Into<Vec<i64>>, classes: i64) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Classes(classes),
            kind: Kind::Int64,
        }
    }

    /// Makes integers of any size, such as counts; made-up ones are from 0 to below `below`.
    pub fn integers(shape: impl Into<Vec<i64>>, below: i64) -> Self {
        Self {
            shape: shape.into(),
            fill: Fill::Integers(below),
            kind: Kind::Int64,
        }
    }

    /// Sets the element type.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Returns the shape of one sample.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Whether this is a sequence of tokens: one dimension of numbers with a known range, not booleans.
    pub fn is_tokens(&self) -> bool {
        let known = matches!(self.fill, Fill::Classes(_)) && self.kind != Kind::Bool;
        known && self.shape.len() == 1
    }

    /// Returns the elements.
    pub fn fill(&self) -> Fill {
        self.fill
    }

    /// Returns the element type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Makes up `batch` samples on the CPU, with this thread's generator.
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
