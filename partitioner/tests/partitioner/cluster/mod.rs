//! Plans for clusters: against brute force, by hand, and refusals.

mod brute_force;
mod by_hand;

use gpipe_partitioner::{Bytes, LayerProfile, LayerTimes, Micros, Profile};

/// A layer: forward, input and weight half, parameters, activations, output.
type Layer = ([f64; 3], [u64; 3]);

fn profile(layers: &[Layer]) -> Profile {
    let layer = |(index, &(times, bytes)): (usize, &Layer)| {
        let [forward, input, weight] = times.map(|time| Micros::new(time).unwrap());
        let [parameters, activations, output] = bytes.map(Bytes);
        LayerProfile::new(
            format!("layer.{index}"),
            LayerTimes::new(forward, input, weight),
        )
        .with_bytes(parameters, activations, output)
    };
    Profile::new("card", 1, layers.iter().enumerate().map(layer).collect()).unwrap()
}
