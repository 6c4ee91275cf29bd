//! Measured times as an array.

use ndarray::Array2;

use super::Profiled;

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
