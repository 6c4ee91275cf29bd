//! Costs for a micro-batch size other than the measured one.

use super::{Footprint, LayerProfile, LayerTimes, Profile};
use crate::cost::StageTimes;
use crate::units::{Bytes, Micros};

/// Costs of one layer for one micro-batch of a given size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerCost {
    /// Forward.
    pub forward: Micros,
    /// Input gradient only.
    pub input: Micros,
    /// Weight gradient only.
    pub weight: Micros,
    /// Both gradients in one pass.
    pub backward: Micros,
    /// Recompute of the forward.
    pub recompute: Micros,
    /// Parameters (independent of the size).
    pub parameters: Bytes,
    /// Bytes kept from the forward to the backward.
    pub activations: Bytes,
    /// Bytes kept from the input gradient to the weight gradient.
    pub after_input: Bytes,
    /// Part of the activations that belongs to the loss function, and stays where layers recompute.
    pub loss: Bytes,
    /// Bytes sent to the next layer.
    pub output: Bytes,
    /// Bytes needed only while the layer runs.
    pub temporary: Bytes,
    /// Same as `temporary`, for the input half of a backward.
    pub input_temporary: Bytes,
    /// Same as `temporary`, for the weight half.
    pub weight_temporary: Bytes,
    /// Times of the host's thread; zeros if they do not matter.
    pub host: StageTimes,
    /// Whether its passes can run as CUDA graphs.
    pub captures: bool,
}

impl Profile {
    /// Returns the costs of each layer for a micro-batch of `batch` samples.
    ///
    /// Times between two measured sizes are interpolated linearly. Below the smallest and above the
    /// largest size the line is extrapolated, but a micro-batch never takes longer than a larger
    /// measured one, nor less than its share of a larger or than the whole of a smaller measured
    /// one. Bytes likewise. Without a curve both are proportional to the size.
    pub fn costs(&self, batch: usize) -> Vec<LayerCost> {
        self.layers
            .iter()
            .map(|layer| layer.cost(self.batch, batch))
            .collect()
    }

    /// Returns the size of the model's input for a micro-batch of `batch` samples.
    pub fn input_for(&self, batch: usize) -> Bytes {
        scaled(self.input, self.batch, batch)
    }
}

impl LayerProfile {
    fn cost(&self, measured: usize, batch: usize) -> LayerCost {
        let times = with_own(&self.curve, measured, self.times);
        let time = |of: fn(&LayerTimes) -> Micros| {
            let line = interpolate(&times, batch, |times| of(times).get());
            Micros::saturating(line)
        };
        let footprints = with_own(&self.footprints, measured, self.footprint);
        let bytes = |of: fn(&Footprint) -> Bytes| {
            if footprints.len() == 1 {
                return scaled(of(&footprints[0].1), measured, batch);
            }
            // At most 2^50 each: exact, and a cast saturates.
            let line = interpolate(&footprints, batch, |footprint| of(footprint).0 as f64);
            Bytes(line.ceil() as u64)
        };
        LayerCost {
            forward: time(|t| t.forward),
            input: time(|t| t.backward_input),
            weight: time(|t| t.backward_weight),
            backward: time(LayerTimes::joint),
            recompute: time(LayerTimes::again),
            parameters: self.parameters,
            activations: bytes(|f| f.activations),
            after_input: bytes(|f| f.after_input.unwrap_or(f.activations)),
            loss: bytes(|f| f.loss),
            output: bytes(|f| f.output),
            temporary: bytes(|f| f.temporary),
            input_temporary: bytes(|f| f.input_temporary.unwrap_or(f.temporary)),
            weight_temporary: bytes(|f| f.weight_temporary.unwrap_or(f.temporary)),
            host: self.host.as_ref().map_or(StageTimes::default(), host),
            captures: self.host.is_some() && self.no_graph.is_none(),
        }
    }
}

fn host(times: &LayerTimes) -> StageTimes {
    StageTimes {
        forward: times.forward,
        backward: times.joint(),
        input: times.backward_input,
        weight: times.backward_weight,
        recompute: times.again(),
    }
}

/// Returns the measured points, including that of the profile's own size.
fn with_own<T: Copy>(others: &[(usize, T)], measured: usize, own: T) -> Vec<(usize, T)> {
    let mut points = others.to_vec();
    let index = points.partition_point(|&(size, _)| size < measured);
    points.insert(index, (measured, own));
    points
}

/// Returns `bytes · batch / measured`, rounded up.
fn scaled(bytes: Bytes, measured: usize, batch: usize) -> Bytes {
    let product = u128::from(bytes.0) * batch as u128;
    Bytes(u64::try_from(product.div_ceil(measured as u128)).unwrap_or(u64::MAX))
}

/// Returns the amount for `batch` samples on the line through the measured points (at least one).
fn interpolate<T>(points: &[(usize, T)], batch: usize, of: impl Fn(&T) -> f64) -> f64 {
    let at = |index: usize| {
        let (size, amounts) = &points[index];
        (*size as f64, of(amounts))
    };
    let batch = batch as f64;
    let (first, last) = (at(0), at(points.len() - 1));
    if points.len() == 1 {
        return first.1 * batch / first.0;
    }
    let above = points.partition_point(|&(size, _)| (size as f64) < batch);
    let right = above.clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (at(right - 1), at(right));
    let line = y0 + (y1 - y0) * (batch - x0) / (x1 - x0);
    if batch < first.0 {
        line.clamp(first.1 * batch / first.0, first.1)
    } else if batch > last.0 {
        line.max(last.1)
    } else {
        line
    }
}
