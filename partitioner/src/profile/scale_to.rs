//! Scaling of a profile to another device, by measurements there.

use super::{LayerProfile, LayerTimes, Profile};
use crate::units::Micros;

/// Why a profile cannot be scaled to another.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScaleError {
    /// No layer that takes time is in both.
    #[error(
        "it has none of the {layers} layers of the profile that is to be scaled (such as `{first}`): \
         measure some of them there, under the same names"
    )]
    NoLayer {
        /// Layers of the profile to scale.
        layers: usize,
        /// The name of the first one.
        first: String,
    },
}

/// Ratios of times there to times here.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    forward: f64,
    input: f64,
    weight: f64,
    joint: f64,
}

impl Ratio {
    /// Returns the ratios of sums of times; a time without data gets the ratio of the whole.
    fn of(here: LayerTimes, there: LayerTimes) -> Self {
        let whole = ratio(
            here.forward + here.joint(),
            there.forward + there.joint(),
            1.0,
        );
        Self {
            forward: ratio(here.forward, there.forward, whole),
            input: ratio(here.backward_input, there.backward_input, whole),
            weight: ratio(here.backward_weight, there.backward_weight, whole),
            joint: ratio(here.joint(), there.joint(), whole),
        }
    }

    fn apply(self, times: LayerTimes) -> LayerTimes {
        LayerTimes {
            forward: times.forward * self.forward,
            backward_input: times.backward_input * self.input,
            backward_weight: times.backward_weight * self.weight,
            backward: times.backward.map(|own| own * self.joint),
            recompute: times.recompute.map(|own| own * self.forward),
        }
    }
}

fn ratio(here: Micros, there: Micros, otherwise: f64) -> f64 {
    if here > Micros::ZERO && there > Micros::ZERO {
        there.get() / here.get()
    } else {
        otherwise
    }
}

fn sum(all: &[LayerTimes]) -> LayerTimes {
    let of = |time: fn(&LayerTimes) -> Micros| all.iter().map(time).sum::<Micros>();
    let mut own = LayerTimes::new(
        of(|own| own.forward),
        of(|own| own.backward_input),
        of(|own| own.backward_weight),
    );
    own.backward = Some(of(LayerTimes::joint));
    own
}

impl Profile {
    /// Returns the same model's costs on the device of another profile, in which some of its layers were
    /// measured under the same names: forward, input and weight gradient are each multiplied by the ratio of
    /// the times, at this profile's size of micro-batch. A layer in both profiles has its own ratio, the
    /// others that of the sum of those layers. Bytes stay; the host's times, links and doubts are the other
    /// device's.
    ///
    /// # Errors
    /// [`ScaleError`] if no layer is in both.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::{LayerProfile, LayerTimes, Micros, Profile};
    ///
    /// let layer = |name: &str, us: f64| {
    ///     let time = Micros::new(us)?;
    ///     Ok::<_, gpipe_partitioner::Error>(LayerProfile::new(name, LayerTimes::new(time, time, time)))
    /// };
    /// let here = Profile::new("cpu", 4, vec![layer("a", 10.0)?, layer("b", 30.0)?])?;
    /// // Of two samples, and so half as long as those of four.
    /// let there = Profile::new("cuda", 2, vec![layer("a", 1.0)?])?;
    /// let scaled = here.scaled_to(&there)?;
    /// assert_eq!(scaled.device(), "cuda");
    /// assert_eq!(scaled.layers()[1].times.forward.get(), 6.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scaled_to(&self, there: &Profile) -> Result<Self, ScaleError> {
        let costs = there.costs(self.batch);
        let times_there = |name: &str| {
            let index = there.layers.iter().position(|own| own.name == name)?;
            let cost = &costs[index];
            let mut times = LayerTimes::new(cost.forward, cost.input, cost.weight);
            times.backward = Some(cost.backward);
            let takes = cost.forward + cost.backward > Micros::ZERO;
            takes.then_some((times, index))
        };
        let both: Vec<(LayerTimes, LayerTimes)> = (self.layers.iter())
            .filter_map(|own| Some((own.times, times_there(&own.name)?.0)))
            .collect();
        if both.is_empty() {
            return Err(ScaleError::NoLayer {
                layers: self.layers.len(),
                first: self.layers[0].name.clone(),
            });
        }
        let (here, other): (Vec<_>, Vec<_>) = both.iter().copied().unzip();
        let all = Ratio::of(sum(&here), sum(&other));
        let layers = self.layers.iter().map(|own| {
            let found = times_there(&own.name);
            let ratio = found.map_or(all, |(times, _)| Ratio::of(own.times, times));
            let host = found.and_then(|(_, index)| there.layers[index].host);
            scaled(own, ratio, host)
        });
        let how = format!(
            "scaled from {} to {} by {} of {} layers that were measured on both: forwards take {:.3} and \
             backwards {:.3} times as long",
            self.device,
            there.device,
            both.len(),
            self.layers.len(),
            all.forward,
            all.joint
        );
        Ok(Self {
            layers: layers.collect(),
            device: there.device.clone(),
            measured: Some(how),
            libtorch: there.libtorch.clone(),
            link: there.link,
            host_link: there.host_link,
            graph_replay: there.graph_replay,
            doubts: there.doubts.clone(),
            all_cores: None,
            ..self.clone()
        })
    }
}

fn scaled(layer: &LayerProfile, ratio: Ratio, host: Option<LayerTimes>) -> LayerProfile {
    let curve = layer.curve.iter();
    LayerProfile {
        times: ratio.apply(layer.times),
        curve: curve
            .map(|(size, times)| (*size, ratio.apply(*times)))
            .collect(),
        host,
        // The spread belongs to the other device.
        spread: None,
        ..layer.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(forward: f64, input: f64, weight: f64) -> LayerTimes {
        let micros = |value| Micros::new(value).unwrap();
        LayerTimes::new(micros(forward), micros(input), micros(weight))
    }

    fn profile(device: &str, layers: &[(&str, LayerTimes)]) -> Profile {
        let layer = |(name, times): &(&str, LayerTimes)| LayerProfile::new(*name, *times);
        Profile::new(device, 1, layers.iter().map(layer).collect()).unwrap()
    }

    #[test]
    fn a_layer_that_was_measured_there_takes_what_it_takes_there() {
        let here = profile(
            "cpu",
            &[
                ("a", times(10.0, 20.0, 30.0)),
                ("b", times(40.0, 40.0, 40.0)),
                ("c", times(5.0, 0.0, 8.0)),
            ],
        );
        let there = profile(
            "cuda",
            &[("b", times(4.0, 8.0, 2.0)), ("a", times(2.0, 2.0, 2.0))],
        );
        let scaled = here.scaled_to(&there).unwrap();
        assert_eq!(scaled.layers()[0].times.forward.get(), 2.0);
        assert_eq!(scaled.layers()[1].times.joint().get(), 10.0);
        // 6 of 50 for the forward, 4 of 70 for the weights.
        let last = scaled.layers()[2].times;
        assert!((last.forward.get() - 5.0 * 6.0 / 50.0).abs() < 1e-9);
        assert_eq!(last.backward_input.get(), 0.0);
        assert!((last.backward_weight.get() - 8.0 * 4.0 / 70.0).abs() < 1e-9);
        assert!(scaled.measured().unwrap().contains("by 2 of 3 layers"));
    }

    #[test]
    fn curves_keep_their_form() {
        let mut slow = profile("cpu", &[("a", times(10.0, 10.0, 10.0))]);
        slow.layers[0].curve = vec![(8, times(40.0, 40.0, 40.0))];
        let fast = profile("cuda", &[("a", times(1.0, 1.0, 1.0))]);
        let scaled = slow.scaled_to(&fast).unwrap();
        assert_eq!(scaled.costs(8)[0].forward.get(), 4.0);
    }

    #[test]
    fn strangers_are_refused() {
        let here = profile("cpu", &[("a", times(1.0, 1.0, 1.0))]);
        for other in [
            profile("cuda", &[("b", times(1.0, 1.0, 1.0))]),
            profile("cuda", &[("a", times(0.0, 0.0, 0.0))]),
        ] {
            let error = here.scaled_to(&other).unwrap_err().to_string();
            assert!(error.contains("none of the 1 layers"), "{error}");
        }
    }
}
