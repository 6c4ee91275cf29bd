//! Assignment of layers to stages.

mod even;

use std::ops::Range;

use crate::ids::{LayerId, StageId};
use crate::words::count;

/// Consecutive layers assigned to stages: every layer once, in order, no stage empty.
///
/// Only checked constructors make one, so a `Partition` need not be checked again.
///
/// # Examples
/// ```
/// use gpipe_partitioner::{LayerId, Partition, StageId};
///
/// let partition = Partition::from_balance(5, &[2, 3])?;
/// assert_eq!(partition.range(StageId(1)), 2..5);
/// assert_eq!(partition.stage_of(LayerId(4)), StageId(1));
/// assert!(Partition::from_balance(5, &[2, 2]).is_err());
/// # Ok::<(), gpipe_partitioner::PartitionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "balance")]
#[doc(alias = "split points")]
pub struct Partition {
    /// `stages + 1` increasing layer numbers: stage `s` has the layers `cuts[s]..cuts[s + 1]`.
    cuts: Vec<usize>,
}

/// Why the assignment is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A partition without a stage.
    #[error("a partition needs at least one stage")]
    NoStage,
    /// A stage without a layer.
    #[error("balance {} leaves stage {stage} empty: every stage needs at least one layer", list(.balance))]
    EmptyStage {
        /// The layers per stage that were asked for.
        balance: Vec<usize>,
        /// The first empty stage.
        stage: StageId,
    },
    /// The balance stops before the last layer.
    #[error(
        "balance {} covers {covered}, the model has {layers}: it leaves out {}",
        list(.balance), span(*.covered, *.layers), covered = count(*covered, "layer"))]
    TooFew {
        /// The layers per stage that were asked for.
        balance: Vec<usize>,
        /// Sum of the balance.
        covered: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The balance goes past the last layer.
    #[error(
        "balance {} covers {covered}, the model has {layers}: take {} out of it",
        list(.balance), .covered - .layers, covered = count(*covered, "layer"))]
    TooMany {
        /// The layers per stage that were asked for.
        balance: Vec<usize>,
        /// Sum of the balance.
        covered: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// More stages than layers: some stage would be empty.
    #[error("{stages} stages need at least {stages} layers, the model has {layers}")]
    TooManyStages {
        /// Stages asked for.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
}

impl Partition {
    /// Creates the partition with `balance[s]` layers on stage `s`.
    ///
    /// # Errors
    /// If the balance is empty, has a zero, or does not sum to `layers`.
    pub fn from_balance(layers: usize, balance: &[usize]) -> Result<Self, PartitionError> {
        if balance.is_empty() {
            return Err(PartitionError::NoStage);
        }
        let balance_owned = || balance.to_vec();
        if let Some(stage) = balance.iter().position(|&count| count == 0) {
            return Err(PartitionError::EmptyStage {
                balance: balance_owned(),
                stage: StageId(stage),
            });
        }
        let mut cuts = Vec::with_capacity(balance.len() + 1);
        let mut covered = 0_usize;
        cuts.push(0);
        for &count in balance {
            covered = covered.saturating_add(count);
            cuts.push(covered);
        }
        match covered.cmp(&layers) {
            std::cmp::Ordering::Less => Err(PartitionError::TooFew {
                balance: balance_owned(),
                covered,
                layers,
            }),
            std::cmp::Ordering::Greater => Err(PartitionError::TooMany {
                balance: balance_owned(),
                covered,
                layers,
            }),
            std::cmp::Ordering::Equal => Ok(Self { cuts }),
        }
    }

    /// Returns an even partition, with one more layer on the first `layers % stages` stages.
    ///
    /// # Errors
    /// If there is no stage, or more stages than layers.
    pub fn uniform(layers: usize, stages: usize) -> Result<Self, PartitionError> {
        check_count(layers, stages)?;
        let (base, longer) = (layers / stages, layers % stages);
        let cut = |stage: usize| stage * base + stage.min(longer);
        Ok(Self {
            cuts: (0..=stages).map(cut).collect(),
        })
    }

    /// Returns the partition whose heaviest stage is as light as possible.
    ///
    /// Among the partitions that reach this optimum it takes one with evenly filled stages: the least sum
    /// of squared weights, then the least sum of squared layer counts.
    ///
    /// # Errors
    /// If there is no stage, or more stages than layers.
    ///
    /// # Complexity
    /// O(stages · log layers · log sum) for the optimum, O(stages · layers · log layers) for
    /// the even filling.
    ///
    /// # Source
    /// Bisection over the answer with a greedy probe: the "probe" method for
    /// chains-on-chains partitioning, Pinar and Aykanat, *Fast optimal load balancing
    /// algorithms for 1D partitioning*, 2004.
    pub fn by_weight(weights: &[u64], stages: usize) -> Result<Self, PartitionError> {
        check_count(weights.len(), stages)?;
        let prefix = prefix_sums(weights);
        Ok(Self {
            cuts: even::cuts(&prefix, stages, lightest_cap(&prefix, stages)),
        })
    }

    /// Returns every way to cut `layers` layers into `stages` stages, in lexical order of the balances, if
    /// there are at most `most`.
    pub(crate) fn all(layers: usize, stages: usize, most: usize) -> Option<Vec<Self>> {
        if stages == 0 || layers < stages || most == 0 {
            return None;
        }
        ways(layers - 1, stages - 1, most)?;
        let mut cuts: Vec<usize> = (0..stages).collect();
        cuts.push(layers);
        let mut all = vec![Self::from_cuts(cuts.clone())];
        // Moves the last cut that can move, and puts the following ones directly after it.
        while let Some(at) = (1..stages)
            .rev()
            .find(|&at| cuts[at] < layers - stages + at)
        {
            let moved = cuts[at] + 1;
            for (place, cut) in cuts[at..stages].iter_mut().enumerate() {
                *cut = moved + place;
            }
            all.push(Self::from_cuts(cuts.clone()));
        }
        Some(all)
    }

    /// Creates a partition from `stages + 1` cut positions, known to start at 0 and to increase.
    pub(crate) fn from_cuts(cuts: Vec<usize>) -> Self {
        debug_assert!(cuts.first() == Some(&0) && cuts.windows(2).all(|w| w[0] < w[1]));
        Self { cuts }
    }

    /// The cut positions: stage `s` has the layers `cuts()[s]..cuts()[s + 1]`.
    pub(crate) fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.cuts[self.stages()]
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.cuts.len() - 1
    }

    /// The layers of a stage.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn range(&self, stage: StageId) -> Range<usize> {
        self.cuts[stage.0]..self.cuts[stage.0 + 1]
    }

    /// The stage that has this layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn stage_of(&self, layer: LayerId) -> StageId {
        assert!(layer.0 < self.layers(), "no layer {}", layer.0);
        StageId(self.cuts.partition_point(|&cut| cut <= layer.0) - 1)
    }

    /// Layers per stage.
    pub fn balance(&self) -> Vec<usize> {
        self.cuts.windows(2).map(|w| w[1] - w[0]).collect()
    }
}

fn check_count(layers: usize, stages: usize) -> Result<(), PartitionError> {
    match stages {
        0 => Err(PartitionError::NoStage),
        _ if stages > layers => Err(PartitionError::TooManyStages { stages, layers }),
        _ => Ok(()),
    }
}

/// `[0, w0, w0 + w1, …]`; u128, so that no sum of u64 overflows.
fn prefix_sums(weights: &[u64]) -> Vec<u128> {
    let mut sums = Vec::with_capacity(weights.len() + 1);
    let mut sum = 0_u128;
    sums.push(0);
    for &weight in weights {
        sum += u128::from(weight);
        sums.push(sum);
    }
    sums
}

/// Returns the smallest possible weight of the heaviest of `stages` parts.
fn lightest_cap(prefix: &[u128], stages: usize) -> u128 {
    let total = prefix[prefix.len() - 1];
    let heaviest = prefix.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
    let (mut low, mut high) = (heaviest.max(total.div_ceil(stages as u128)), total);
    while low < high {
        let middle = low + (high - low) / 2;
        if parts_needed(prefix, middle, stages) <= stages {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Returns the number of parts of at most `cap` that the chain needs; counts no further than `limit + 1`.
fn parts_needed(prefix: &[u128], cap: u128, limit: usize) -> usize {
    let layers = prefix.len() - 1;
    let (mut start, mut parts) = (0, 0);
    while start < layers && parts <= limit {
        start = prefix.partition_point(|&sum| sum <= prefix[start] + cap) - 1;
        parts += 1;
    }
    parts
}

/// Formats a balance: `3,5`, or the first entries of a long one.
fn list(balance: &[usize]) -> String {
    const SHOWN: usize = 16;
    let mut text = balance
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    if balance.len() > SHOWN {
        text.push_str(",…");
    }
    text
}

/// Formats a range: `layer 9`, or `layers 8..9` (both included).
fn span(from: usize, to: usize) -> String {
    if to - from == 1 {
        format!("layer {from}")
    } else {
        format!("layers {from}..{}", to - 1)
    }
}

/// Returns `from` choose `choose`; none if more than `most`.
fn ways(from: usize, choose: usize, most: usize) -> Option<usize> {
    let choose = choose.min(from - choose);
    (0..choose).try_fold(1_usize, |ways, place| {
        let ways = ways.checked_mul(from - place)? / (place + 1);
        (ways <= most).then_some(ways)
    })
}

#[cfg(test)]
mod tests;
