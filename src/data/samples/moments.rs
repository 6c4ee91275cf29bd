//! Mean and variance of numbers that come in parts.

use tch::{Kind, TchError, Tensor};

/// How many numbers there are, their mean, and the sum of their squared differences from it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moments {
    /// How many numbers.
    pub count: f64,
    pub(crate) mean: f64,
    /// Sum of squared differences from the mean.
    pub squares: f64,
}

impl Moments {
    /// Of all numbers of a tensor, which has some.
    pub fn of(numbers: &Tensor) -> Result<Self, TchError> {
        let numbers = numbers.f_to_kind(Kind::Double)?;
        let mean = numbers.f_mean(Kind::Double)?.f_double_value(&[])?;
        let squares = numbers.f_sub_scalar(mean)?.f_square()?;
        Ok(Self {
            count: numbers.numel() as f64,
            mean,
            squares: squares.f_sum(Kind::Double)?.f_double_value(&[])?,
        })
    }

    /// Of one number.
    pub(super) fn of_one(number: f64) -> Self {
        Self {
            count: 1.0,
            mean: number,
            squares: 0.0,
        }
    }

    /// Makes it that of both together (Chan et al. 1979).
    pub fn join(&mut self, other: Self) {
        let all = self.count + other.count;
        if all > 0.0 {
            let apart = other.mean - self.mean;
            self.mean += apart * other.count / all;
            self.squares += other.squares + apart * apart * self.count * other.count / all;
            self.count = all;
        }
    }

    /// The standard deviation; 1 of numbers that are all the same, but for the last digits of double
    /// precision, which stay so.
    pub(super) fn deviation(&self) -> f64 {
        /// Of a number, what computing it may have rounded.
        const ROUNDED: f64 = 1e-14;
        match (self.squares / self.count).sqrt() {
            std if std > ROUNDED * self.mean.abs() && std.is_finite() => std,
            _ => 1.0,
        }
    }
}
