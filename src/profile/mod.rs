//! What a model's layers cost on a device, measured.
//!
//! Layers are built anew from their builders, run as stages of one layer, and dropped
//! again. Nothing of the caller's is touched: neither random generators, nor
//! gradients, nor statistics.

mod alike;
mod bytes;
mod chain;
mod doubts;
mod flow;
mod graphs;
mod link;
mod measure;
mod measurements;
pub(crate) mod others;
mod series;
mod stopwatch;
mod times;
mod warm_up;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{
    ActionKind, Bytes, Cores, LayerProfile, LayerTimes, Micros, Profile, Spread,
};
use tch::Device;

use crate::error::{Error, Setting, SettingsError, SettingsRule};
use crate::torch::batch;
use crate::torch::{
    self, Kernels, LossFn, Precision, Sequential, Values, libtorch_version, max_concurrent,
    share_of_cores, shared_cores,
};
use chain::Plan;
use flow::{Flow, values_bytes};
use measure::{BUDGET, MeasureTask};
use measurements::Measurements;
use series::Series;
use watch::Watch;

pub use doubts::Doubt;
pub use link::MeasuredLink;
pub use watch::ProfileProgress;

/// Inputs to profile with, as training has them: a micro-batch of the largest size.
///
/// Costs may depend on the values (tokens out of range fail, denormal numbers are
/// slow): real ones are best.
pub struct Sample {
    input: Values,
    loss: Option<(Values, Arc<dyn LossFn>)>,
}

impl Sample {
    /// Inputs of the model; dimension 0 is the samples.
    pub fn new(input: impl Into<Values>) -> Self {
        Self {
            input: input.into(),
            loss: None,
        }
    }

    /// The same with targets and the loss function: its time and memory are then the
    /// last layer's, as in training.
    #[must_use]
    pub fn with_loss(mut self, target: impl Into<Values>, loss: impl LossFn) -> Self {
        self.loss = Some((target.into(), Arc::new(loss)));
        self
    }
}

/// Other handles to the same tensors.
impl Clone for Sample {
    fn clone(&self) -> Self {
        let with_loss =
            |(target, loss): &(Values, Arc<dyn LossFn>)| (target.shallow_clone(), Arc::clone(loss));
        Self {
            input: self.input.shallow_clone(),
            loss: self.loss.as_ref().map(with_loss),
        }
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("input", &self.input)
            .field("loss", &self.loss.is_some())
            .finish()
    }
}

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

/// How far the measurements of a layer are apart.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LayerSpread {
    /// The layer's name.
    pub layer: String,
    /// Measurements of each kind of action.
    pub repeats: usize,
    /// Distance of the forward's quartiles over its median.
    pub forward: f64,
    /// The same of the joint backward.
    pub backward: f64,
    /// What a micro-batch of the profile's size keeps between the halves of its
    /// backward.
    pub after_input: Bytes,
}

/// A profile, and how far it can be trusted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Profiled {
    /// The medians: what plans are made of.
    pub profile: Profile,
    /// Of each layer, for micro-batches of the profile's size.
    pub spread: Vec<LayerSpread>,
    /// What speaks against the numbers.
    pub doubts: Vec<Doubt>,
    /// Between the first two devices.
    pub link: Option<MeasuredLink>,
    /// The cores that the devices share, where all of them are the CPU.
    pub cores: Option<Cores>,
    /// On a GPU: how long the host takes to submit the layers' work, over how long the GPU takes
    /// to do it. Where it is above 1 the GPU waits for the host.
    pub host_share: Option<f64>,
}

/// Measures what each layer of `model` costs: time of the forward, the joint backward,
/// its halves and a recompute, at several sizes of micro-batches, and bytes.
///
/// ```
/// use gpipe::{ProfileOptions, Sample, Sequential, profile, tch::{Device, Kind, Tensor, nn}};
///
/// let model = Sequential::new()
///     .layer("hidden", |p| nn::linear(p, 8, 32, Default::default()))
///     .layer("head", |p| nn::linear(p, 32, 2, Default::default()));
/// let sample = Sample::new(Tensor::zeros([16, 8], (Kind::Float, Device::Cpu)));
/// let measured = profile(&model, &sample, &ProfileOptions::default().quick())?;
/// assert_eq!(measured.profile.layers()[1].footprint.output.get(), 16 * 2 * 4);
/// println!("{}", measured.profile.to_json());
/// # Ok::<(), gpipe::Error>(())
/// ```
///
/// # Errors
/// [`Error::Settings`] where sample and options do not fit, [`Error::Build`] and
/// [`Error::Profile`] where a layer fails, with its name.
pub fn profile(
    model: &Sequential,
    sample: &Sample,
    options: &ProfileOptions,
) -> Result<Profiled, Error> {
    profile_watched(model, sample, options, |_| ())
}

/// As [`profile`], and tells how far it is: from the measuring thread, between two
/// measurements.
///
/// # Errors
/// As [`profile`].
pub fn profile_watched(
    model: &Sequential,
    sample: &Sample,
    options: &ProfileOptions,
    watch: impl Fn(ProfileProgress) + Sync,
) -> Result<Profiled, Error> {
    let sizes = sizes(sample, options)?;
    let device = *options
        .devices
        .first()
        .ok_or_else(|| SettingsError::new(Setting::Devices, SettingsRule::None))?;
    torch::prepare(&options.devices)
        .map_err(|why| SettingsError::unavailable(Setting::Devices, &why))?;
    if !options.low_memory {
        torch::keep_memory(&options.devices);
    }
    let threads = options
        .threads_per_stage
        .unwrap_or_else(|| share_of_cores(&options.devices));
    let mut doubts: Vec<Doubt> = doubts::busy().into_iter().collect();
    if matches!(device, Device::Cuda(_)) && torch::gpus_are_simulated() {
        let device = torch::device_title(device);
        doubts.push(Doubt::Simulated { device });
    }
    let job = MeasureTask {
        plan: Plan::new(model, device, options.seed)?.with_precision(options.precision),
        sample: sample.clone(),
        options,
        sizes: &sizes,
        threads,
        watch: Watch(&watch),
        beside: if options.low_memory {
            0
        } else {
            // More would only take turns, which the simulation knows of.
            max_concurrent(&options.devices, threads).saturating_sub(1)
        },
    };
    let names: Vec<&str> = model.names().collect();
    let alone = on_all_cores(&job, &names)?;
    let outcome = job.run()?;
    let main = measure::largest(&sizes);
    let series = &outcome.series[main];
    doubts.extend(doubts::doubts(&names, series, options.confidence));
    let spread = spread(&names, &outcome, main);
    let layers = layers(&names, &sizes, &outcome, options.devices.len());
    let apart = |of: &LayerSpread| Spread::new(of.repeats, of.forward, of.backward);
    let layers = layers.into_iter().zip(&spread);
    let layers = layers.map(|(layer, spread)| layer.with_spread(apart(spread)));
    let graphs = try_graphs(model, sample, options);
    let with_refusal = |(layer, why): (LayerProfile, Option<String>)| match why {
        Some(why) => layer.without_graphs(why),
        None => layer,
    };
    let layers = layers.zip(graphs.refusals).map(with_refusal).collect();
    let repeats = series
        .first()
        .map_or(0, |s| s.of(ActionKind::Backward).len());
    let how = format!(
        "medians of {} a size, {} a stage",
        count(repeats, "run"),
        count(threads, "thread")
    );
    let input = values_bytes(&Flow::new(sample, sizes[main])?.main);
    let link = link::measure(&options.devices, threads)?;
    let mut profile = Profile::new(torch::device_title(device), sizes[main], layers)
        .map_err(|why| SettingsError::invalid(Setting::Sizes, why.to_string()))?
        .with_input(Bytes(input))
        .with_origin(Some(libtorch_version()), Some(how))
        .with_precision(options.precision.name())
        .with_doubts(doubts.iter().map(ToString::to_string).collect());
    if options.kernels != Kernels::Libtorch {
        profile = profile.with_kernels(&options.kernels.to_string());
    }
    if let Some((cores, layers)) = alone {
        profile = profile
            .with_all_cores(cores, layers)
            .map_err(|why| SettingsError::invalid(Setting::Sizes, why.to_string()))?;
    }
    if let Some(link) = link {
        profile = profile.with_link(link.link());
    }
    if let Device::Cuda(index) = device {
        profile = profile.with_host_link(link::to_host(index)?);
    }
    if let Some(time) = graphs.replay {
        profile = profile.with_graph_replay(time);
    }
    Ok(Profiled {
        profile,
        spread,
        doubts,
        link,
        cores: shared_cores(&options.devices, threads),
        host_share: measurements::host_share(series),
    })
}

/// The layers in one stage with all the cores that several CPU devices share: what a pipeline of
/// these has to beat, and does not where there are few micro-batches. Not where the threads of a
/// stage are chosen, and not where only one layer at a time may be in memory.
fn on_all_cores(
    task: &MeasureTask<'_>,
    names: &[&str],
) -> Result<Option<(usize, Vec<LayerProfile>)>, Error> {
    let options = task.options;
    let shared = shared_cores(&options.devices, task.threads);
    let several = options.devices.len() > 1 && !options.low_memory;
    let Some(cores) = shared.map(|own| own.cores()).filter(|_| several) else {
        return Ok(None);
    };
    if options.threads_per_stage.is_some() || cores <= task.threads {
        return Ok(None);
    }
    let alone = MeasureTask {
        threads: cores,
        beside: 0,
        ..task.clone()
    };
    let outcome = alone.run()?;
    Ok(Some((cores, layers(names, task.sizes, &outcome, 1))))
}

/// What comes of CUDA graphs, on a device that can have some.
fn try_graphs(model: &Sequential, sample: &Sample, options: &ProfileOptions) -> graphs::Tried {
    match options.devices.first() {
        Some(Device::Cuda(_)) if options.low_memory => graphs::Tried {
            refusals: vec![
                Some("it was not tried, to keep few layers in memory".to_owned());
                model.len()
            ],
            replay: None,
        },
        Some(&device @ Device::Cuda(_)) => graphs::tried(model, sample, device, options.precision),
        _ => graphs::Tried {
            refusals: vec![None; model.len()],
            replay: None,
        },
    }
}

/// The sizes to measure, without repeats, in increasing order.
fn sizes(sample: &Sample, options: &ProfileOptions) -> Result<Vec<usize>, Error> {
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

fn layers(
    names: &[&str],
    sizes: &[usize],
    outcome: &Measurements,
    stages: usize,
) -> Vec<LayerProfile> {
    let main = measure::largest(sizes);
    // A stage of several layers has the work of a stage only once.
    let surplus = 1.0 - (stages.min(names.len()) as f64 / names.len() as f64);
    let idle = outcome.idle.map(|micros| micros * surplus);
    let idle_host = outcome.idle_host.map(|micros| micros * surplus);
    let layer = |(number, name): (usize, &&str)| {
        let at = |place: usize| {
            times(
                &outcome.series[place][number]
                    .kinds
                    .each_ref()
                    .map(Series::median),
                &idle,
            )
        };
        let host = &outcome.series[main][number].host;
        // What disturbs a thread of the host makes it slower, never faster.
        let undisturbed = host.each_ref().map(|series| series.quartiles().0);
        let submitted = (host[0].len() > 0).then(|| times(&undisturbed, &idle_host));
        let others = || (0..sizes.len()).filter(|&place| place != main);
        let bytes = outcome.bytes[main][number];
        let layer = LayerProfile::new(*name, at(main))
            .with_bytes(
                Bytes(bytes.parameters),
                Bytes(bytes.kept),
                Bytes(bytes.output),
            )
            .with_after_input(Bytes(bytes.after_input))
            .with_loss(Bytes(bytes.loss))
            .with_temporary(Bytes(bytes.temporary))
            .with_halves_temporary(Bytes(bytes.input_temporary), Bytes(bytes.weight_temporary))
            .with_curve(others().map(|place| (sizes[place], at(place))).collect())
            .with_footprints(
                others()
                    .map(|place| (sizes[place], outcome.bytes[place][number].footprint()))
                    .collect(),
            );
        match submitted {
            Some(times) => layer.with_host(times),
            None => layer,
        }
    };
    names.iter().enumerate().map(layer).collect()
}

type Kinds<T> = [T; ActionKind::ALL.len()];

fn times(taken: &Kinds<f64>, idle: &Kinds<f64>) -> LayerTimes {
    let of = |kind: ActionKind| micros(taken[kind as usize] - idle[kind as usize]);
    let mut times = LayerTimes::new(
        of(ActionKind::Forward),
        of(ActionKind::BackwardInput),
        of(ActionKind::BackwardWeight),
    );
    times.backward = Some(of(ActionKind::Backward));
    times.recompute = Some(of(ActionKind::Recompute));
    times
}

/// A duration; nothing where it is below zero.
fn micros(time: f64) -> Micros {
    Micros::new(time.max(0.0)).unwrap_or(Micros::ZERO)
}

fn spread(names: &[&str], outcome: &Measurements, main: usize) -> Vec<LayerSpread> {
    let layers = names
        .iter()
        .zip(&outcome.series[main])
        .zip(&outcome.bytes[main]);
    layers
        .map(|((name, series), bytes)| LayerSpread {
            layer: (*name).to_owned(),
            repeats: series.of(ActionKind::Backward).len(),
            forward: doubts::relative_spread(series.of(ActionKind::Forward)),
            backward: doubts::relative_spread(series.of(ActionKind::Backward)),
            after_input: Bytes(bytes.after_input),
        })
        .collect()
}
