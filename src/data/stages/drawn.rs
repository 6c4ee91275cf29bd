//! Random sampling of items with replacement.

use super::ordered::{Order, Ordered};
use crate::{DataError, Dataset, Random, Source};

/// Items drawn uniformly at random: [`Dataset::sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    len: usize,
    count: usize,
    seed: u64,
}

impl Order for Drawn {
    fn count(&self) -> usize {
        self.count
    }

    fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
        let mut random = Random::of_item(self.seed, epoch, place);
        (epoch, random.below(self.len as u64) as usize)
    }

    fn identity(&self) -> String {
        format!("{} drawn from these with seed {}", self.count, self.seed)
    }
}

/// Items drawn at random by weight: [`Dataset::sample_weighted`].
///
/// *Complexity*: O(1) per draw, 16 bytes per item.
///
/// *Source*: Walker's alias method, as Vose 1991 builds its table.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighted {
    /// For each column, the share of its own item, and the item of the rest.
    columns: Vec<(f64, usize)>,
    count: usize,
    seed: u64,
    sum: u32,
}

impl Weighted {
    fn new(weights: &[f64], count: usize, seed: u64) -> Result<Self, String> {
        let wrong = |weight: &f64| !(weight.is_finite() && *weight >= 0.0);
        if let Some(place) = weights.iter().position(wrong) {
            return Err(format!(
                "the weight of item {place} is {}: weights are finite, and 0 or more",
                weights[place]
            ));
        }
        let total: f64 = weights.iter().sum();
        if !(total.is_finite() && total > 0.0) {
            return Err(format!(
                "the weights add up to {total}: no item can be drawn"
            ));
        }
        let sum = (weights.iter()).fold(0, |sum, weight| {
            crc32c::crc32c_append(sum, &weight.to_bits().to_le_bytes())
        });
        Ok(Self {
            columns: table(weights, total),
            count,
            seed,
            sum,
        })
    }
}

/// Builds columns of equal height, each filled by at most two items.
fn table(weights: &[f64], total: f64) -> Vec<(f64, usize)> {
    let heaviest = (0..weights.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b]));
    let heaviest = heaviest.unwrap_or(0);
    let mut left: Vec<f64> = (weights.iter())
        .map(|weight| weight / total * weights.len() as f64)
        .collect();
    // Rounding errors go to the item itself, but never to an item of weight 0.
    let mut columns: Vec<(f64, usize)> = (weights.iter())
        .map(|weight| (if *weight > 0.0 { 1.0 } else { 0.0 }, heaviest))
        .collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..weights.len()).partition(|item| left[*item] < 1.0);
    while let (Some(item), Some(&other)) = (small.pop(), large.last()) {
        columns[item] = (left[item], other);
        left[other] -= 1.0 - left[item];
        if left[other] < 1.0 {
            large.pop();
            small.push(other);
        }
    }
    columns
}

impl Order for Weighted {
    fn count(&self) -> usize {
        self.count
    }

    fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
        let mut random = Random::of_item(self.seed, epoch, place);
        let column = random.below(self.columns.len() as u64) as usize;
        let (own, other) = self.columns[column];
        let item = if random.uniform() < own {
            column
        } else {
            other
        };
        (epoch, item)
    }

    fn identity(&self) -> String {
        let Self {
            count, seed, sum, ..
        } = self;
        format!("{count} drawn from these with seed {seed} by weights with checksum {sum:08x}")
    }
}

impl<S: Source> Dataset<S> {
    /// Draws `count` items per epoch with replacement: some come several times, others not at all.
    ///
    /// # Errors
    /// There is nothing to draw from.
    pub fn sample(self, count: usize, seed: u64) -> Result<Dataset<Ordered<S, Drawn>>, DataError> {
        let len = self.source.len();
        if len == 0 {
            let what = format!("nothing can be drawn: {}", self.source.identity());
            return Err(DataError::Settings(what));
        }
        Ok(self.ordered(Drawn { len, count, seed }))
    }

    /// Like [`Dataset::sample`], drawing items in proportion to their weights, to balance classes of
    /// different sizes.
    ///
    /// # Errors
    /// The number of weights is not that of the items, a weight is below 0 or not finite, or all are 0.
    pub fn sample_weighted(
        self,
        weights: &[f64],
        count: usize,
        seed: u64,
    ) -> Result<Dataset<Ordered<S, Weighted>>, DataError> {
        if weights.len() != self.source.len() {
            return Err(DataError::Settings(format!(
                "there are {} weights for {}: there must be one for each",
                weights.len(),
                self.source.identity()
            )));
        }
        let weighted = Weighted::new(weights, count, seed).map_err(DataError::Settings)?;
        Ok(self.ordered(weighted))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Made;

    proptest! {
        /// The shares of all columns add up to the weights, within rounding; an item of weight 0 has no
        /// share.
        #[test]
        fn the_table_has_each_weight(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1e3_f64, 0.0..1e-9_f64], 1..40),
        ) {
            let total: f64 = weights.iter().sum();
            prop_assume!(total > 0.0);
            let table = table(&weights, total);
            let mut shares = vec![0.0; weights.len()];
            for (column, (own, other)) in table.into_iter().enumerate() {
                prop_assert!((0.0..=1.0).contains(&own));
                shares[column] += own / weights.len() as f64;
                shares[other] += (1.0 - own) / weights.len() as f64;
            }
            for (weight, share) in weights.iter().zip(shares) {
                prop_assert!((weight / total - share).abs() < 1e-9, "{weight} of {total}: {share}");
                prop_assert!(*weight > 0.0 || share == 0.0);
            }
        }
    }

    /// Within five standard deviations.
    #[test]
    fn items_come_as_often_as_they_should() {
        let numbers = || Dataset::new(Made::new(4, Ok));
        let weighted = numbers().sample_weighted(&[1.0, 0.0, 2.0, 5.0], 8000, 3);
        let weighted = weighted.unwrap();
        let mut counts = [0_i64; 4];
        for place in 0..weighted.len() {
            counts[weighted.get(1, place).unwrap()] += 1;
        }
        let close = |item: usize, wanted: i64| (counts[item] - wanted).abs() < 225;
        assert!(
            counts[1] == 0 && close(0, 1000) && close(2, 2000) && close(3, 5000),
            "{counts:?}"
        );
        let drawn = numbers().sample(8000, 3).unwrap();
        let mut counts = [0_i64; 4];
        (0..8000).for_each(|place| counts[drawn.get(0, place).unwrap()] += 1);
        assert!(
            counts.iter().all(|count| (count - 2000).abs() < 195),
            "{counts:?}"
        );
        let epoch = |epoch| -> Vec<usize> {
            (0..20)
                .map(|place| drawn.get(epoch, place).unwrap())
                .collect()
        };
        assert_ne!(epoch(0), epoch(1));
    }

    #[test]
    fn weights_that_cannot_be_are_refused() {
        let refused = |weights: &[f64]| {
            let numbers = Dataset::new(Made::new(2, Ok));
            numbers
                .sample_weighted(weights, 5, 0)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(&[1.0]).contains("1 weights for 2 items"));
        assert!(refused(&[1.0, -1.0]).contains("item 1 is -1"));
        assert!(refused(&[f64::NAN, 1.0]).contains("item 0 is NaN"));
        assert!(refused(&[0.0, 0.0]).contains("add up to 0"));
        assert!(refused(&[f64::MAX, f64::MAX]).contains("add up to inf"));
    }
}
