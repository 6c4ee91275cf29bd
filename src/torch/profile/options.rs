//! Options of a profile.

use std::time::Duration;

use tch::Device;

use super::measure::BUDGET;
use super::sample::Sample;
use crate::error::{Error, Setting, SettingsError};
use crate::{Kernels, Precision, batch};

/// Default limit of all first runs together with `brief`.
const FIRST_RUNS: Duration = Duration::from_secs(30);

/// Options of a profile.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProfileOptions {
    /// The devices to train on. Layers are measured on the first; as many of the other CPU devices
    /// as there are cores for run the same in parallel, since they compete for memory in training.
    pub devices: Vec<Device>,
    /// Micro-batch sizes in samples, at most that of the sample; empty: that of the sample, a half
    /// and a quarter.
    pub sizes: Vec<usize>,
    /// The number type that layers compute in.
    pub precision: Precision,
    /// The library whose kernels compute products and convolutions on CPU devices.
    pub kernels: Kernels,
    /// Intra-op threads per stage; by default the CPU devices share the cores.
    pub threads_per_stage: Option<usize>,
    /// Measures one layer at a time: only its parameters are in memory, and no other thread
    /// competes. The gradients of its outputs are then made up.
    pub low_memory: bool,
    /// Measures nothing more often than necessary: the warm-up counts if it took longer than four
    /// times the budget of all layers and sizes, or than three seconds, and has fewer micro-batches
    /// if it would take longer than that. With `low_memory`, a layer's warm-up counts if it took
    /// longer than the budget; a layer with the same parameters and the same input and output
    /// shapes as an earlier one (the blocks of a transformer) is run forward once, and assumed to
    /// be like it if that takes about as long.
    pub brief: bool,
    /// With `brief`, but not `low_memory`: limit of all first runs together. Larger sizes whose
    /// first runs would exceed it are left out. The smallest size is always measured.
    pub first_runs: Duration,
    /// Wanted precision of a micro-batch's time: half of its 95 % interval as a share.
    pub confidence: f64,
    /// Time limit for reaching that precision, for each layer and size.
    pub budget: Duration,
    /// Fewest rounds; each has three measurements of each kind of action.
    pub rounds: usize,
    /// Seed of initial values and dropout.
    pub seed: u64,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            devices: vec![Device::Cpu],
            sizes: Vec::new(),
            precision: Precision::F32,
            kernels: Kernels::Libtorch,
            threads_per_stage: None,
            low_memory: false,
            brief: false,
            first_runs: FIRST_RUNS,
            confidence: 0.02,
            budget: BUDGET,
            rounds: 3,
            seed: 0,
        }
    }
}

impl ProfileOptions {
    /// Returns the defaults for these devices.
    pub fn new(devices: &[Device]) -> Self {
        Self {
            devices: devices.to_vec(),
            ..Self::default()
        }
    }

    /// Uses the fewest repeats, for a first look.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.rounds = 1;
        self.brief = true;
        self.confidence = 0.1;
        self.budget = BUDGET / 10;
        self
    }
}

/// Returns the sizes to measure, without duplicates, in increasing order.
pub(super) fn sizes(sample: &Sample, options: &ProfileOptions) -> Result<Vec<usize>, Error> {
    let samples = batch::samples(&sample.input, "input", None)?;
    if let Some((targets, _)) = &sample.loss {
        batch::samples(targets, "target", Some(samples))?;
    }
    let samples = usize::try_from(samples).unwrap_or(0);
    let mut sizes = options.sizes.clone();
    if sizes.is_empty() {
        sizes = [samples, samples / 2, samples / 4].to_vec();
        sizes.retain(|&size| size > 0);
    }
    if let Some(size) = sizes.iter().find(|size| !(1..=samples).contains(*size)) {
        let why = format!(
            "a micro-batch of {size} samples cannot be taken from a sample of {samples}: sizes \
             must be from 1 to {samples}"
        );
        return Err(SettingsError::invalid(Setting::Sizes, why).into());
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}
