//! Training cost of a sequence of tokens.

use super::ModelSpec;
use gpipe_torch::Variable;

/// Per weight and token: a product and a sum in the forward, twice that in the backward.
const PER_WEIGHT: f64 = 6.0;
/// For attention, per block, feature, token and attended token: scores and weighted sum, forward and
/// backward.
const PER_PAIR: f64 = 12.0;

impl ModelSpec {
    /// Returns the floating-point operations of a sequence of so many tokens, forward and backward
    /// without recomputing: of every weight matrix except those of the first layer, which is only a
    /// lookup, and of attention over the whole sequence (Chowdhery et al. 2022, appendix B).
    ///
    /// # Errors
    /// A layer cannot be built.
    pub fn flops_per_sequence(&self, tokens: usize) -> anyhow::Result<f64> {
        let layers = self.build().variables()?;
        let weights = layers.iter().skip(1).flatten();
        let weights = weights.filter(|own| own.is_parameter() && own.shape().len() > 1);
        let weights: u64 = weights.map(Variable::elements).sum();
        let size = |name: &str| {
            let mut sizes = self.settings().iter();
            sizes.find_map(|(own, value)| (own == name).then_some(value))
        };
        let pairs = match (size("heads"), size("layers"), size("d_model")) {
            (Some(heads), Some(blocks), Some(features)) => {
                let own = size("head_dim").filter(|&head| head > 0.0);
                blocks * own.map_or(features, |head| heads * head) * tokens as f64
            }
            _ => 0.0,
        };
        let of_token = PER_WEIGHT * weights as f64 + PER_PAIR * pairs;
        Ok(of_token * tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use crate::zoo::Zoo;

    #[test]
    fn a_sequence_takes_its_matrices_and_its_attention() {
        let sizes = ["layers=3", "d_model=8", "heads=2", "context=4", "vocab=10"];
        let spec = Zoo::builtin().spec("gpt", sizes).unwrap();
        // Query, key, value and output, then the feed-forward net of four times the width.
        let block = 4 * 8 * 8 + 2 * 4 * 8 * 8;
        let head = 10 * 8;
        let of_token = 6 * (3 * block + head) + 12 * 3 * 8 * 4;
        assert_eq!(spec.flops_per_sequence(4).unwrap(), f64::from(4 * of_token));
    }
}
