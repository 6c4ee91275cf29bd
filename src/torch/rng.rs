//! Random numbers that do not depend on how the model was cut.
//!
//! A layer draws from a generator made for (seed, step, layer name,
//! micro-batch), so its masks are the same on any stage, under any schedule, on
//! any thread, and when the forward pass is computed a second time. Initial
//! values come from a generator made for (seed, layer name).

use parking_lot::{Mutex, MutexGuard};
use tch::{Device, Tensor};

use super::error::TorchError;
use super::ffi;

/// Mixes `value` into `state`: one round of `SplitMix64` (Steele et al. 2014),
/// whose output is a bijection of the sum, so distinct inputs stay distinct.
fn mix(state: u64, value: u64) -> u64 {
    let mut z = state.wrapping_add(value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seed for the thing called `name` under `seed`; stable across runs and platforms.
pub(crate) fn named_seed(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed, name.len() as u64), |state, byte| mix(state, u64::from(byte)))
}

/// A seed for one micro-batch of one step under a layer's seed.
pub(crate) fn pass_seed(layer_seed: u64, step: u64, micro: usize) -> u64 {
    mix(mix(layer_seed, step), micro as u64)
}

/// libtorch's default generators are one per process and device. Whoever seeds
/// them to build a layer holds this lock until the state is restored.
static DEFAULT_GENERATORS: Mutex<()> = Mutex::new(());

/// The default generators of the CPU and of one device, seeded for as long as
/// this value lives; their former states come back when it is dropped, so the
/// user's own random numbers are as if nothing had been drawn.
#[derive(Debug)]
pub(crate) struct SeededDefaults {
    saved: Vec<(Device, Tensor)>,
    _lock: MutexGuard<'static, ()>,
}

impl SeededDefaults {
    pub(crate) fn new(device: Device, seed: u64) -> Result<Self, TorchError> {
        let lock = DEFAULT_GENERATORS.lock();
        let devices = if device == Device::Cpu { vec![device] } else { vec![Device::Cpu, device] };
        let mut seeded = Self { saved: Vec::new(), _lock: lock };
        for device in devices {
            seeded.saved.push((device, ffi::default_generator_state(device)?));
            ffi::seed_default_generator(device, seed)?;
        }
        Ok(seeded)
    }
}

impl Drop for SeededDefaults {
    fn drop(&mut self) {
        for (device, state) in &self.saved {
            // The state was read from this very generator: setting it again cannot fail,
            // and there is nobody to tell if it did.
            let _ = ffi::set_default_generator_state(*device, state);
        }
    }
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
