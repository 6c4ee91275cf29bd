//! Random numbers that depend only on a seed.

use gpipe_torch::{INCREMENT, mix};

/// A random number generator with a single number as its state: `SplitMix64` (Steele et al. 2014).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Makes a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Makes the generator of an item in an epoch.
    pub(crate) fn of_item(seed: u64, epoch: u64, index: usize) -> Self {
        Self::new(mix(mix(seed, epoch), index as u64))
    }

    /// Returns the state: passed to [`Random::new`], it continues the sequence.
    pub fn state(&self) -> u64 {
        self.state
    }

    /// Returns the generator after `draws` more numbers.
    #[must_use]
    pub fn skipping(&self, draws: u64) -> Self {
        Self::new(self.state.wrapping_add(INCREMENT.wrapping_mul(draws)))
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        let number = mix(self.state, 0);
        self.state = self.state.wrapping_add(INCREMENT);
        number
    }

    /// Returns a number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number below `bound`, or 0 if it is 0.
    ///
    /// Small numbers are slightly likelier than large ones, by `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// Returns true with probability one half.
    pub fn coin(&mut self) -> bool {
        self.number() >> 63 == 1
    }
}
