//! What a layer's numbers may be.

use super::{LayerProfile, LayerTimes, MAX_BATCH, MAX_POINTS, MAX_TEXT};
use crate::Bytes;
use crate::json::{MAX_BYTES, MAX_MICROS};

type Getter<T> = fn(&LayerProfile) -> T;

/// The fields of a layer in bytes. (At most 10⁵ layers of 2⁵⁰ bytes: sums fit a u64.)
pub(super) const BYTE_FIELDS: [(&str, Getter<Bytes>); 7] = [
    ("parameter_bytes", |layer| layer.parameters),
    ("activation_bytes", |layer| layer.activations),
    ("after_input_bytes", |layer| {
        layer.after_input.unwrap_or_default()
    }),
    ("output_bytes", |layer| layer.output),
    ("temporary_bytes", |layer| layer.temporary),
    ("input_temporary_bytes", |layer| {
        layer.input_temporary.unwrap_or_default()
    }),
    ("weight_temporary_bytes", |layer| {
        layer.weight_temporary.unwrap_or_default()
    }),
];

impl LayerProfile {
    pub(super) fn check(&self, batch: usize) -> Result<(), (String, String)> {
        if self.name.len() > MAX_TEXT {
            return Err(("name".into(), format!("must have at most {MAX_TEXT} bytes")));
        }
        if self.name.contains(char::is_control) {
            let rule = "must have no control characters, such as line ends";
            return Err(("name".into(), rule.to_owned()));
        }
        for (field, of) in BYTE_FIELDS {
            if of(self).0 > MAX_BYTES {
                let rule = format!("must be at most {MAX_BYTES}, is {}", of(self).0);
                return Err((field.into(), rule));
            }
        }
        if self.curve.len() > MAX_POINTS {
            return Err((
                "curve".into(),
                format!("must have at most {MAX_POINTS} entries"),
            ));
        }
        let mut last = 0;
        for (index, &(size, _)) in self.curve.iter().enumerate() {
            if size <= last || size > MAX_BATCH || size == batch {
                let rule = format!(
                    "must be larger than the one before, at most {MAX_BATCH}, \
                     and not the profile's own {batch}, is {size}"
                );
                return Err((format!("curve[{index}].batch"), rule));
            }
            last = size;
        }
        for (index, (size, footprint)) in self.footprints.iter().enumerate() {
            let ordered = index == 0 || self.footprints[index - 1].0 < *size;
            if !ordered || !self.curve.iter().any(|(own, _)| own == size) {
                let rule = format!("has bytes for {size} samples, but no times");
                return Err(("curve".into(), rule));
            }
            if let Some((field, bytes)) = footprint.too_large() {
                let rule = format!("must be at most {MAX_BYTES}, is {}", bytes.0);
                return Err((format!("curve[{index}].{field}"), rule));
            }
        }
        let mut times = std::iter::once(&self.times).chain(self.curve.iter().map(|(_, t)| t));
        if times.any(|times| times.longest() > MAX_MICROS) {
            return Err((
                "forward_us".into(),
                format!("times must be at most {MAX_MICROS}"),
            ));
        }
        Ok(())
    }
}

impl LayerTimes {
    fn longest(&self) -> f64 {
        [
            self.forward,
            self.backward_input,
            self.backward_weight,
            self.joint(),
            self.again(),
        ]
        .into_iter()
        .fold(0.0, |longest, time| time.get().max(longest))
    }
}
