//! Spread of a layer's measurements.

/// Most repeats that are stored: they fit a 32-bit `usize`, too.
pub(super) const MAX_REPEATS: usize = u32::MAX as usize;
/// Widest spread: a million times the median.
pub(super) const SPREAD_LIMIT: u64 = 1_000_000;
const MAX_SPREAD: f64 = SPREAD_LIMIT as f64;

/// Spread of the measurements of a layer's times, for micro-batches of the profile's size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    repeats: usize,
    forward: f64,
    backward: f64,
}

impl Spread {
    /// Creates the spread of `repeats` measurements of each time: the interquartile ranges of the
    /// forward and of the joint backward, relative to their medians, clamped to the range from 0 to
    /// a million.
    pub fn new(repeats: usize, forward: f64, backward: f64) -> Self {
        // 0/0 counts as no spread.
        let share = |value: f64| {
            if value.is_nan() {
                0.0
            } else {
                value.clamp(0.0, MAX_SPREAD)
            }
        };
        Self {
            repeats: repeats.min(MAX_REPEATS),
            forward: share(forward),
            backward: share(backward),
        }
    }

    /// Number of measurements of each time.
    pub const fn repeats(&self) -> usize {
        self.repeats
    }

    /// Interquartile range of the forward over its median.
    pub const fn forward(&self) -> f64 {
        self.forward
    }

    /// Same as `forward`, for the joint backward.
    pub const fn backward(&self) -> f64 {
        self.backward
    }
}
