//! Mean and variance of numbers given in parts.

use tch::{Kind, TchError, Tensor};

/// Count, mean and sum of squared deviations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moments {
    /// Number of values.
    pub count: f64,
    pub(crate) mean: f64,
    /// Sum of squared differences from the mean.
    pub squares: f64,
}

impl Moments {
    /// Returns the moments of a tensor's numbers; it must not be empty.
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

    /// Returns the moments of one number.
    pub(super) fn of_one(number: f64) -> Self {
        Self {
            count: 1.0,
            mean: number,
            squares: 0.0,
        }
    }

    /// Combines two moments (Chan et al. 1979).
    pub fn join(&mut self, other: Self) {
        let all = self.count + other.count;
        if all > 0.0 {
            let apart = other.mean - self.mean;
            self.mean += apart * other.count / all;
            self.squares += other.squares + apart * apart * self.count * other.count / all;
            self.count = all;
        }
    }

    /// Returns the standard deviation, or 1 if all numbers are equal within double precision, so that
    /// they stay unchanged.
    pub(super) fn deviation(&self) -> f64 {
        /// Relative rounding error of a computed number.
        const ROUNDED: f64 = 1e-14;
        match (self.squares / self.count).sqrt() {
            std if std > ROUNDED * self.mean.abs() && std.is_finite() => std,
            _ => 1.0,
        }
    }
}
