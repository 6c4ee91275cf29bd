//! Random numbers that do not depend on how the model was cut.
//!
//! A layer draws from a generator seeded with (seed, step, layer name, micro-batch), so its masks
//! are the same on any stage, under any schedule, on any thread, and in a recomputed forward.
//! Initial values come from a generator seeded with (seed, layer name). Both apply to everything
//! that draws with libtorch (tch's own initializers and `dropout` too): a
//! [`RandomScope`](super::ffi::RandomScope) is open while a layer is built or run, so the
//! process-wide generators are neither used nor changed.

/// The increment of `SplitMix64`: 2^64 over the golden ratio.
pub const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes `value` into `state`: one round of `SplitMix64` (Steele et al. 2014),
/// whose output is a bijection of the sum, so distinct inputs stay distinct.
pub fn mix(state: u64, value: u64) -> u64 {
    let mut z = state.wrapping_add(value).wrapping_add(INCREMENT);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seed for the thing called `name` under `seed`; stable across runs and platforms.
pub(crate) fn named_seed(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(mix(seed, name.len() as u64), |state, byte| {
            mix(state, u64::from(byte))
        })
}

/// A seed for one micro-batch of one step under a layer's seed.
pub(crate) fn pass_seed(layer_seed: u64, step: u64, micro: usize) -> u64 {
    mix(mix(layer_seed, step), micro as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn seeds_differ_by_name_step_and_micro_batch() {
        let mut seen = HashSet::new();
        for name in ["a", "b", "ab", "ba", "block.1", "block.11", ""] {
            for step in 0..20 {
                for micro in 0..20 {
                    assert!(seen.insert(pass_seed(named_seed(7, name), step, micro)));
                }
            }
        }
        assert_eq!(named_seed(1, "x"), named_seed(1, "x"));
        assert_ne!(named_seed(1, "x"), named_seed(2, "x"));
    }
}
