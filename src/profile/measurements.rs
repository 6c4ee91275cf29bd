//! What measuring a model's layers brings.

use gpipe_partitioner::ActionKind;

use super::bytes::LayerBytes;
use super::series::Series;

/// Durations of one layer for one size of micro-batch.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerSeries {
    pub(super) kinds: [Series; ActionKind::ALL.len()],
    /// What the host's thread took to submit them to an asynchronous device.
    pub(super) host: [Series; ActionKind::ALL.len()],
    pub(super) telling: Telling,
}

/// Times on an asynchronous device, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Telling {
    /// The host submitted the work.
    pub(super) told: f64,
    /// The work was done.
    pub(super) done: f64,
}

impl LayerSeries {
    pub(super) fn of(&self, kind: ActionKind) -> &Series {
        &self.kinds[kind as usize]
    }

    /// Made up, for tests: durations by kind.
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

/// The share of the time in which the host submitted work to a device; none where the host
/// computes itself.
pub(super) fn host_share(series: &[LayerSeries]) -> Option<f64> {
    let told: f64 = series.iter().map(|layer| layer.telling.told).sum();
    let done: f64 = series.iter().map(|layer| layer.telling.done).sum();
    (done > 0.0).then(|| told / done)
}

/// All that was measured.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// For each size, for each layer.
    pub(super) series: Vec<Vec<LayerSeries>>,
    /// For each size, for each layer.
    pub(super) bytes: Vec<Vec<LayerBytes>>,
    /// What a stage takes for doing nothing, by kind of action, in microseconds.
    pub(super) idle: [f64; ActionKind::ALL.len()],
    /// The same of what its host takes; zeros where the device is not asynchronous.
    pub(super) idle_host: [f64; ActionKind::ALL.len()],
}

impl Measurements {
    /// Forgets all but the first sizes.
    pub(super) fn keep(&mut self, sizes: usize) {
        self.series.truncate(sizes);
        self.bytes.truncate(sizes);
    }

    /// The next layer costs what this one does.
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
