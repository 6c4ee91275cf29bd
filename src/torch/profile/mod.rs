//! Measured costs of a model's layers on a device.
//!
//! Layers are built from their builders, run as stages of one layer, and dropped. The caller's
//! random generators, gradients and statistics do not change.

mod bytes;
mod chain;
mod flow;
mod graphs;
mod layer_times;
mod layers;
mod link;
mod measure;
mod measurements;
mod options;
pub mod other_programs;
mod reliability;
mod sample;
mod series;
mod similar_layers;
mod stopwatch;
mod warm_up;
mod watch;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{ActionKind, Bytes, Cores, LayerProfile, Profile, Spread};
use ndarray::Array2;
use tch::Device;

use crate::error::{Error, Setting, SettingsError, SettingsRule};
use crate::{Kernels, Sequential, libtorch_version, max_concurrent, share_of_cores, shared_cores};
use chain::Plan;
use flow::{Flow, values_bytes};
use layers::{layers, spread};
use measure::MeasureTask;
use measurements::Measurements;
use options::sizes;
use watch::Watch;

pub use layer_times::layer_times;
pub use layers::LayerSpread;
pub use link::MeasuredLink;
pub use options::ProfileOptions;
pub use reliability::Doubt;
pub use sample::Sample;
pub use watch::ProfileProgress;

/// A profile and its reliability.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Profiled {
    /// Medians, the basis of plans.
    pub profile: Profile,
    /// Spread of each layer, for micro-batches of the profile's size.
    pub spread: Vec<LayerSpread>,
    /// Reasons to distrust the numbers.
    pub doubts: Vec<Doubt>,
    /// Link between the first two devices.
    pub link: Option<MeasuredLink>,
    /// Cores that the devices share, if all of them are the CPU.
    pub cores: Option<Cores>,
    /// On a GPU: host time to submit the layers' work over GPU time to do it. Above 1 the GPU waits
    /// for the host.
    pub host_share: Option<f64>,
}

/// Measures what each layer of `model` costs: time of the forward, the joint backward,
/// its halves and a recompute, at several sizes of micro-batches, and bytes.
///
/// ```
/// use gpipe::{Sequential, tch::{Device, Kind, Tensor, nn}, profile::{ProfileOptions, Sample, profile}};
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

/// Profiles as [`profile`] does, and reports progress from the measuring thread, between two
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
    crate::prepare(&options.devices)
        .map_err(|why| SettingsError::unavailable(Setting::Devices, &why))?;
    if !options.low_memory {
        crate::keep_memory(&options.devices);
    }
    let threads = options
        .threads_per_stage
        .unwrap_or_else(|| share_of_cores(&options.devices));
    let mut doubts: Vec<Doubt> = reliability::busy().into_iter().collect();
    if matches!(device, Device::Cuda(_)) && crate::gpus_are_simulated() {
        let device = crate::device_title(device);
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
            // More threads would only take turns, which the simulation accounts for.
            max_concurrent(&options.devices, threads).saturating_sub(1)
        },
    };
    let names: Vec<&str> = model.names().collect();
    let alone = on_all_cores(&job)?;
    let outcome = job.no_larger_than(alone.as_ref()).run()?;
    let (wanted, sizes) = (sizes.last(), &sizes[..outcome.series.len()]);
    let main = measure::largest(sizes);
    if let Some(&wanted) = wanted.filter(|wanted| **wanted > sizes[main]) {
        let largest = sizes[main];
        doubts.push(Doubt::LeftOut { largest, wanted });
    }
    let series = &outcome.series[main];
    doubts.extend(reliability::doubts(&names, series, options.confidence));
    let spread = spread(&names, &outcome, main);
    let alone = alone.map(|(cores, mut own)| {
        own.keep(sizes.len());
        (cores, layers(&names, sizes, &own, 1))
    });
    let layers = layers(&names, sizes, &outcome, options.devices.len());
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
    let mut profile = Profile::new(crate::device_title(device), sizes[main], layers)
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

/// Measures the layers in one stage with all the cores that several CPU devices share: the baseline
/// that a pipeline has to beat, and does not with few micro-batches. Skipped if the threads per
/// stage are set, and if only one layer at a time may be in memory.
fn on_all_cores(task: &MeasureTask<'_>) -> Result<Option<(usize, Measurements)>, Error> {
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
    Ok(Some((cores, alone.run()?)))
}

/// Tries CUDA graphs, on a device that supports them.
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

impl Profiled {
    /// Returns the layers' times for a micro-batch of the profile's size, in microseconds.
    ///
    /// *Shapes*: `[layers, 4]`: forward, gradient of the input, gradient of the weights, and joint
    /// backward.
    pub fn times(&self) -> Array2<f64> {
        let layers = self.profile.layers();
        let times = |layer: usize| {
            let times = layers[layer].times;
            [
                times.forward,
                times.backward_input,
                times.backward_weight,
                times.joint(),
            ]
        };
        Array2::from_shape_fn((layers.len(), 4), |(layer, kind)| times(layer)[kind].get())
    }
}
