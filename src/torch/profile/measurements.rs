//! Measurements of a model's layers.

use gpipe_partitioner::ActionKind;

use super::bytes::LayerBytes;
use super::series::Series;

/// Durations of one layer for one size of micro-batch.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerSeries {
    pub(super) kinds: [Series; ActionKind::ALL.len()],
    /// Time that the host's thread took to submit the actions to an asynchronous device.
    pub(super) host: [Series; ActionKind::ALL.len()],
    pub(super) telling: Telling,
}

/// Times on an asynchronous device, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Telling {
    /// Time to submit the work.
    pub(super) told: f64,
    /// Time until the work was done.
    pub(super) done: f64,
}

impl LayerSeries {
    pub(super) fn of(&self, kind: ActionKind) -> &Series {
        &self.kinds[kind as usize]
    }

    /// Makes up durations by kind, for tests.
    #[cfg(test)]
    pub(super) fn of_times(times: impl Fn(ActionKind) -> Vec<f64>) -> Self {
        let mut layer = Self::default();
        for kind in ActionKind::ALL {
            for micros in times(kind) {
                layer.kinds[kind as usize].push(micros, false);
            }
        }
        layer
    }

    pub(super) fn count_warm_up(&mut self) {
        let all = self.kinds.iter_mut().chain(&mut self.host);
        all.for_each(Series::count_warm_up);
    }
}

/// Returns the share of time that the host took to submit work to a device; `None` if the host
/// computes itself.
pub(super) fn host_share(series: &[LayerSeries]) -> Option<f64> {
    let told: f64 = series.iter().map(|layer| layer.telling.told).sum();
    let done: f64 = series.iter().map(|layer| layer.telling.done).sum();
    (done > 0.0).then(|| told / done)
}

/// All measurements of a model.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// Durations, by size and layer.
    pub(super) series: Vec<Vec<LayerSeries>>,
    /// Bytes, by size and layer.
    pub(super) bytes: Vec<Vec<LayerBytes>>,
    /// Time of an empty stage, by kind of action, in microseconds.
    pub(super) idle: [f64; ActionKind::ALL.len()],
    /// Host time of an empty stage; zeros if the device is not asynchronous.
    pub(super) idle_host: [f64; ActionKind::ALL.len()],
}

impl Measurements {
    /// Drops all but the first sizes.
    pub(super) fn keep(&mut self, sizes: usize) {
        self.series.truncate(sizes);
        self.bytes.truncate(sizes);
    }

    /// Adds the next layer with the measurements of this one.
    pub(super) fn repeat(&mut self, layer: usize) {
        for series in &mut self.series {
            series.push(series[layer].clone());
        }
        for bytes in &mut self.bytes {
            bytes.push(bytes[layer]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_share_is_that_of_all_layers_together() {
        let layer = |told, done| LayerSeries {
            telling: Telling { told, done },
            ..LayerSeries::default()
        };
        assert_eq!(host_share(&[]), None);
        assert_eq!(host_share(&[LayerSeries::default()]), None);
        assert_eq!(
            host_share(&[layer(10.0, 20.0), layer(50.0, 60.0)]),
            Some(0.75)
        );
    }
}
