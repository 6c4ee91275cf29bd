//! How much of what the devices could compute the model needs.

use tch::Device;

use super::recipe::Recipe;
use crate::Precision;
use crate::metrics::{Arithmetic, machine_peak_flops};
use crate::models::zoo::ModelSpec;

/// Of each weight and token: a product and a sum in the forward, twice that in the backward.
const PER_WEIGHT: f64 = 6.0;
/// Of attention, of each block, feature, token and token that it sees: the scores and the
/// weighted sum, forward and backward.
const PER_PAIR: f64 = 12.0;

/// What a sample needs, and what the devices can do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Utilisation {
    /// Operations.
    sample: f64,
    /// Operations per second of all devices together.
    peak: f64,
}

impl Utilisation {
    /// Nothing where one of the two is not known.
    pub(super) fn new(
        recipe: &Recipe,
        spec: &ModelSpec,
        tokens: Option<usize>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(peak) = peak(recipe) else {
            return Ok(None);
        };
        let sample = match (recipe.flops_per_sample, tokens) {
            (Some(own), _) => Some(own),
            (None, Some(tokens)) => Some(of_tokens(spec, tokens)?),
            (None, None) => None,
        };
        Ok(sample.map(|sample| Self { sample, peak }))
    }

    /// The share, 0 to 1.
    pub(super) fn at(&self, samples_per_s: f64) -> f64 {
        self.sample * samples_per_s / self.peak
    }
}

/// Of all devices; a GPU that is named twice is one.
fn peak(recipe: &Recipe) -> Option<f64> {
    let mut gpus: Vec<usize> = (recipe.devices.iter())
        .filter_map(|device| match device {
            Device::Cuda(index) => Some(*index),
            _ => None,
        })
        .collect();
    let others = recipe.devices.len() - gpus.len();
    gpus.sort_unstable();
    gpus.dedup();
    let known = || (others == 0).then(|| machine_peak_flops(arithmetic(recipe.precision)))?;
    let of_each = recipe.peak_flops.or_else(known)?;
    Some(of_each * (others + gpus.len()) as f64)
}

/// What matrices are multiplied in.
fn arithmetic(precision: Precision) -> Arithmetic {
    match precision {
        Precision::F32 => Arithmetic::F32,
        Precision::Bf16 | Precision::Fp16 => Arithmetic::Half,
    }
}

/// Operations of a sequence: of every weight matrix but those of the first layer, which
/// only looks up, and of attention over the whole sequence (Chowdhery et al. 2022,
/// appendix B).
fn of_tokens(spec: &ModelSpec, tokens: usize) -> anyhow::Result<f64> {
    let layers = spec.build().variables()?;
    let weights = layers.iter().skip(1).flatten();
    let weights = weights.filter(|own| own.is_parameter() && own.shape().len() > 1);
    let weights: u64 = weights.map(crate::Variable::elements).sum();
    let size = |name: &str| {
        let mut sizes = spec.settings().iter();
        sizes.find_map(|(own, value)| (own == name).then_some(value))
    };
    let pairs = match (size("heads"), size("layers"), size("d_model")) {
        (Some(_), Some(blocks), Some(features)) => blocks * features * tokens as f64,
        _ => 0.0,
    };
    let of_token = PER_WEIGHT * weights as f64 + PER_PAIR * pairs;
    Ok(of_token * tokens as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::zoo::Zoo;

    #[test]
    fn a_sequence_takes_its_matrices_and_its_attention() {
        let sizes = ["layers=3", "d_model=8", "heads=2", "context=4", "vocab=10"];
        let spec = Zoo::builtin().spec("gpt", sizes).unwrap();
        // Query, key, value and output, then the feed-forward net of four times the width.
        let block = 4 * 8 * 8 + 2 * 4 * 8 * 8;
        let head = 10 * 8;
        let of_token = 6 * (3 * block + head) + 12 * 3 * 8 * 4;
        assert_eq!(of_tokens(&spec, 4).unwrap(), f64::from(4 * of_token));
    }

    #[test]
    fn devices_are_counted_once_each() {
        let recipe = |devices: &[Device]| Recipe {
            devices: devices.to_vec(),
            peak_flops: Some(2.0),
            ..Recipe::defaults()
        };
        let cuda = Device::Cuda;
        assert_eq!(peak(&recipe(&[cuda(0), cuda(1), cuda(0)])), Some(4.0));
        assert_eq!(peak(&recipe(&[Device::Cpu, Device::Cpu])), Some(4.0));
    }
}
