//! Rotary position embeddings.

use std::f64::consts::TAU;

use tch::{Device, Kind, TchError, Tensor};

/// Scaling of a rotary embedding for texts longer than those of training.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// Every position is divided by a factor.
    ///
    /// *Source*: Chen et al. 2023.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Long wavelengths are multiplied by a factor, short ones are kept, and those between are
    /// interpolated.
    ///
    /// *Source*: Llama 3.1, Grattafiori et al. 2024.
    Llama3 {
        /// Factor of the longest wavelengths.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are multiplied by the full factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Sequence length before scaling.
        original_context: f64,
    },
}

/// Cosine and sine of each position's angles, `[time, head]`.
///
/// *Source*: Su et al. 2021; the two members of a pair are half a head apart.
#[derive(Debug)]
pub(super) struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// Computes them for `time` positions from `past` on.
    pub(super) fn new(
        (past, time): (i64, i64),
        head: i64,
        (theta, scaling): (f64, RopeScaling),
        device: Device,
    ) -> Result<Self, TchError> {
        let options = (Kind::Float, device);
        // With exactly the operations of transformers: at the thousandth position, a frequency's last
        // bit affects an angle's fourth digit.
        let exponents =
            Tensor::f_arange_start_step(0, head, 2, options)?.f_div_scalar(head as f64)?;
        let frequencies = Tensor::f_pow_scalar(theta, &exponents)?.f_reciprocal()?;
        let frequencies = scaling.apply(frequencies)?;
        let angles = Tensor::f_arange_start(past, past + time, options)?.f_outer(&frequencies)?;
        let angles = Tensor::f_cat(&[&angles, &angles], -1)?;
        Ok(Self {
            cos: angles.f_cos()?,
            sin: angles.f_sin()?,
        })
    }

    pub(super) fn turn(&self, heads: &Tensor) -> Result<Tensor, TchError> {
        let halves = heads.f_chunk(2, -1)?;
        let turned = Tensor::f_cat(&[&halves[1].f_neg()?, &halves[0]], -1)?;
        let (cos, sin) = (heads.f_mul(&self.cos)?, turned.f_mul(&self.sin)?);
        cos.f_add(&sin)
    }
}

impl RopeScaling {
    /// Scales the frequencies.
    fn apply(self, frequencies: Tensor) -> Result<Tensor, TchError> {
        match self {
            Self::None => Ok(frequencies),
            Self::Linear { factor } => frequencies.f_div_scalar(factor),
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: context,
            } => {
                let waves = frequencies.f_reciprocal()?.f_mul_scalar(TAU)?;
                let stretched = frequencies.f_div_scalar(factor)?;
                // 0 at the longest interpolated wavelength, 1 at the shortest.
                let share = waves.f_reciprocal()?.f_mul_scalar(context)?;
                let share = share.f_sub_scalar(low)?.f_div_scalar(high - low)?;
                let rest = share.f_neg()?.f_add_scalar(1.0)?;
                let between = rest.f_mul(&frequencies)?.f_div_scalar(factor)?;
                let between = between.f_add(&share.f_mul(&frequencies)?)?;
                let long = waves.f_gt(context / low)?;
                let short = waves.f_lt(context / high)?;
                let upper = frequencies.f_where_self(&short, &between)?;
                stretched.f_where_self(&long, &upper)
            }
        }
    }
}
