//! Maps a place of several sources to a source and its item, by computation.

use super::shuffle::permuted;
use gpipe_torch::mix;

/// Limit of the sum of shares.
const MOST: u64 = 1 << 32;

/// Assignment of places to sources.
#[derive(Debug, Clone)]
pub(super) enum Plan {
    Mixed(Shares),
    InTurn(Turns),
    /// Place of each part's first item.
    Chained(Vec<usize>),
}

impl Plan {
    pub(super) fn origin(&self, epoch: u64, place: usize) -> (usize, usize) {
        match self {
            Self::Mixed(shares) => shares.origin(epoch, place),
            Self::InTurn(turns) => turns.origin(place),
            Self::Chained(firsts) => {
                let part = firsts.partition_point(|first| *first <= place) - 1;
                (part, place - firsts[part])
            }
        }
    }
}

/// In every block as long as the sum of shares, each part has its share, at places determined by seed,
/// epoch and block.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    /// Sum of the shares before each part, and the total.
    pub(super) firsts: Vec<u64>,
    pub(super) seed: u64,
}

impl Shares {
    pub(super) fn new(shares: &[u64], seed: u64) -> Result<Self, String> {
        if shares.contains(&0) {
            return Err("a share of 0: leave that source out".to_owned());
        }
        let divisor = shares.iter().copied().reduce(divisor).unwrap_or(1);
        let mut firsts = vec![0_u64];
        for share in shares {
            let next = firsts[firsts.len() - 1].checked_add(share / divisor);
            let next = next.filter(|next| *next <= MOST);
            firsts.push(next.ok_or_else(|| format!("the shares add up to more than {MOST}"))?);
        }
        Ok(Self { firsts, seed })
    }

    pub(super) fn of(&self, part: usize) -> u64 {
        self.firsts[part + 1] - self.firsts[part]
    }

    /// Number of items per block.
    pub(super) fn block(&self) -> u64 {
        self.firsts[self.firsts.len() - 1]
    }

    pub(super) fn origin(&self, epoch: u64, place: usize) -> (usize, usize) {
        let (block, at) = (place as u64 / self.block(), place as u64 % self.block());
        let at = permuted(at, self.block(), mix(mix(self.seed, epoch), block));
        let part = self.firsts.partition_point(|first| *first <= at) - 1;
        let number = block * self.of(part) + (at - self.firsts[part]);
        (part, number as usize)
    }
}

pub(super) fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Takes `block` items of each part in turn, as long as it has any.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    lens: Vec<u64>,
    pub(super) block: u64,
    /// Sorted lengths, and their prefix sums.
    sorted: Vec<u64>,
    sums: Vec<u128>,
}

impl Turns {
    pub(super) fn new(lens: Vec<u64>, block: u64) -> Self {
        let mut sorted = lens.clone();
        sorted.sort_unstable();
        let sums = sorted.iter().scan(0_u128, |sum, len| {
            *sum += u128::from(*len);
            Some(*sum)
        });
        let sums = std::iter::once(0).chain(sums).collect();
        Self {
            lens,
            block,
            sorted,
            sums,
        }
    }

    /// Number of items in the first so many rounds.
    fn before(&self, rounds: u64) -> u128 {
        let most = u128::from(rounds) * u128::from(self.block);
        let ended = self.sorted.partition_point(|len| u128::from(*len) <= most);
        self.sums[ended] + (self.lens.len() - ended) as u128 * most
    }

    pub(super) fn origin(&self, place: usize) -> (usize, usize) {
        let place = place as u128;
        // The last round with no more than these items before it is between `low` and `high`.
        let longest = self.sorted.last().copied().unwrap_or(0);
        let (mut low, mut high) = (0, longest / self.block + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.before(middle) <= place {
                low = middle;
            } else {
                high = middle;
            }
        }
        let start = low.saturating_mul(self.block);
        let mut left = (place - self.before(low)) as u64;
        for (part, len) in self.lens.iter().enumerate() {
            let here = len.saturating_sub(start).min(self.block);
            if left < here {
                return (part, (start + left) as usize);
            }
            left -= here;
        }
        // Unreachable for places below the sum of all lengths.
        (self.lens.len(), 0)
    }
}
