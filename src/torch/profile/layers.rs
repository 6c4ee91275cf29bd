//! Layers of a profile, computed from their measurements.

use gpipe_partitioner::{ActionKind, Bytes, LayerProfile, LayerTimes, Micros};

use super::measurements::Measurements;
use super::series::Series;
use super::{measure, reliability};

/// Spread of a layer's measurements.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LayerSpread {
    /// The layer's name.
    pub layer: String,
    /// Measurements of each kind of action.
    pub repeats: usize,
    /// Quartile distance over median, of the forward.
    pub forward: f64,
    /// Quartile distance over median, of the joint backward.
    pub backward: f64,
    /// Bytes that a micro-batch of the profile's size keeps between the halves of its backward.
    pub after_input: Bytes,
}

/// Builds the profile of each layer at all sizes; `stages` is the number of stages that share the
/// fixed work per stage.
pub(super) fn layers(
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
        // Disturbances only slow a host thread down, so take the lower quartile.
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

/// Converts to a duration; zero if negative.
pub(super) fn micros(time: f64) -> Micros {
    Micros::new(time.max(0.0)).unwrap_or(Micros::ZERO)
}

/// Returns the spread of each layer's measurements at the size `main`.
pub(super) fn spread(names: &[&str], outcome: &Measurements, main: usize) -> Vec<LayerSpread> {
    let layers = names
        .iter()
        .zip(&outcome.series[main])
        .zip(&outcome.bytes[main]);
    layers
        .map(|((name, series), bytes)| LayerSpread {
            layer: (*name).to_owned(),
            repeats: series.of(ActionKind::Backward).len(),
            forward: reliability::relative_spread(series.of(ActionKind::Forward)),
            backward: reliability::relative_spread(series.of(ActionKind::Backward)),
            after_input: Bytes(bytes.after_input),
        })
        .collect()
}
