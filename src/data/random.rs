//! Random numbers that depend on nothing but a seed.

use gpipe_torch::{INCREMENT, mix};

/// A row of random numbers, the same for the same seed: `SplitMix64` (Steele et al.
/// 2014), whose state is one number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The row that `seed` fixes.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The row of one item of an epoch.
    pub(crate) fn of_item(seed: u64, epoch: u64, index: usize) -> Self {
        Self::new(mix(mix(seed, epoch), index as u64))
    }

    /// Where it stands: [`Random::new`] of it goes on from there.
    pub fn state(&self) -> u64 {
        self.state
    }

    /// The same row after `draws` more numbers.
    #[must_use]
    pub fn skipping(&self, draws: u64) -> Self {
        Self::new(self.state.wrapping_add(INCREMENT.wrapping_mul(draws)))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        let number = mix(self.state, 0);
        self.state = self.state.wrapping_add(INCREMENT);
        number
    }

    /// A number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `bound`; 0 where that is 0.
    ///
    /// Small numbers are a little likelier than large ones, by `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// True as often as not.
    pub fn coin(&mut self) -> bool {
        self.number() >> 63 == 1
    }
}
