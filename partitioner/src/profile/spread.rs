//! How far measurements of a layer are apart.

/// The most repeats that are written down: also a `usize` of 32 bits has room for them.
pub(super) const MAX_REPEATS: usize = u32::MAX as usize;
/// The widest spread: what is timed is a million times as long as its median.
pub(super) const SPREAD_LIMIT: u64 = 1_000_000;
const MAX_SPREAD: f64 = SPREAD_LIMIT as f64;

/// How far the measurements of a layer's times are apart, for micro-batches of the
/// profile's size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    repeats: usize,
    forward: f64,
    backward: f64,
}

impl Spread {
    /// So many measurements of each time; the distance of the quartiles of the forward
    /// and of the joint backward, as shares of their medians. What is out of range (0 to
    /// a million) becomes the nearest that is in it.
    pub fn new(repeats: usize, forward: f64, backward: f64) -> Self {
        // A quotient of zeros says nothing against the zero.
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

    /// Measurements of each time.
    pub const fn repeats(&self) -> usize {
        self.repeats
    }

    /// Distance of the forward's quartiles over its median.
    pub const fn forward(&self) -> f64 {
        self.forward
    }

    /// The same of the joint backward.
    pub const fn backward(&self) -> f64 {
        self.backward
    }
}
