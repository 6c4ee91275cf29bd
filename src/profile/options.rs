//! How to measure.

use std::time::Duration;

use tch::Device;

use super::measure::BUDGET;
use super::sample::Sample;
use crate::error::{Error, Setting, SettingsError};
use crate::torch::{Kernels, Precision, batch};

/// The longest that first runs take in brief, by default.
const FIRST_RUNS: Duration = Duration::from_secs(30);

/// How to measure.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProfileOptions {
    /// The devices that are to train. Layers are measured on the first; as many of the
    /// other CPU devices as there are cores for do the same meanwhile, as they compete for
    /// memory in training.
    pub devices: Vec<Device>,
    /// Sizes of micro-batches in samples, at most those of the sample; empty: those
    /// of the sample, a half and a quarter.
    pub sizes: Vec<usize>,
    /// The type of numbers that layers compute in.
    pub precision: Precision,
    /// Whose kernels compute products and convolutions on CPU devices.
    pub kernels: Kernels,
    /// Intra-op threads of a stage; by default the CPU devices share the cores.
    pub threads_per_stage: Option<usize>,
    /// One layer at a time: no more than its parameters are in memory, and nobody
    /// competes. Gradients from behind are then made up.
    pub low_memory: bool,
    /// Nothing is measured more often than it must be: the warm-up counts where it took longer than
    /// four times the budget of all layers and sizes, or than three seconds, and has fewer micro-batches
    /// where it would take longer than that. With `low_memory`, that of a layer counts where it
    /// took longer than the budget, and layers with the same parameters and the same shapes in and out
    /// as one before (the blocks of a transformer) are run forward once, and taken for it if that takes
    /// about as long.
    pub brief: bool,
    /// With `brief`, but not with `low_memory`: sizes are left out, the largest first, whose first runs
    /// would make all first runs take longer than this. The smallest is always measured.
    pub first_runs: Duration,
    /// How sure a micro-batch's time must be: half of its 95 % interval as a share.
    pub confidence: f64,
    /// The time after which that no longer counts, for each layer and size.
    pub budget: Duration,
    /// Rounds at least; each has three measurements of each kind of action.
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
    /// Defaults for these devices.
    pub fn new(devices: &[Device]) -> Self {
        Self {
            devices: devices.to_vec(),
            ..Self::default()
        }
    }

    /// The same with the fewest repeats: for a first look.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.rounds = 1;
        self.brief = true;
        self.confidence = 0.1;
        self.budget = BUDGET / 10;
        self
    }
}

/// The sizes to measure, without repeats, in increasing order.
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
