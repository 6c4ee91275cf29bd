//! Limits of a layer's numbers.

use super::{
    LayerProfile, LayerTimes, MAX_BATCH, MAX_LAYERS, MAX_POINTS, MAX_TEXT, MAX_THREADS, MAX_TOTAL,
    Profile,
};
use crate::json::{MAX_BYTES, MAX_MICROS, ReadError};
use crate::units::Bytes;

type Getter<T> = fn(&LayerProfile) -> T;

/// Byte fields of a layer. (At most 10⁵ layers of 2⁵⁰ bytes: sums fit a u64.)
const BYTE_FIELDS: [(&str, Getter<Bytes>); 8] = [
    ("parameter_bytes", |layer| layer.parameters),
    ("activation_bytes", |layer| layer.footprint.activations),
    ("after_input_bytes", |layer| {
        layer.footprint.after_input.unwrap_or_default()
    }),
    ("loss_bytes", |layer| layer.footprint.loss),
    ("output_bytes", |layer| layer.footprint.output),
    ("temporary_bytes", |layer| layer.footprint.temporary),
    ("input_temporary_bytes", |layer| {
        layer.footprint.input_temporary.unwrap_or_default()
    }),
    ("weight_temporary_bytes", |layer| {
        layer.footprint.weight_temporary.unwrap_or_default()
    }),
];

impl Profile {
    /// Checks the rules of any profile, from any source.
    pub(super) fn checked(self, file: &str) -> Result<Self, ReadError> {
        let error = |field: String, rule: String| Err(ReadError::new(file, field, rule));
        if !(1..=MAX_BATCH).contains(&self.batch) {
            let rule = format!("must be from 1 to {MAX_BATCH}, is {}", self.batch);
            return error("batch".into(), rule);
        }
        check_layers(&self.layers, self.batch, file, "layers")?;
        if let Some(own) = &self.all_cores {
            check_layers(&own.layers, self.batch, file, "all_cores.layers")?;
            let names = |layers: &[LayerProfile]| -> Vec<String> {
                layers.iter().map(|layer| layer.name.clone()).collect()
            };
            if names(&own.layers) != names(&self.layers) {
                let rule = "must be the layers of the profile, in their order".to_owned();
                return error("all_cores.layers".into(), rule);
            }
            if !(1..=MAX_THREADS).contains(&own.threads) {
                let rule = format!("must be from 1 to {MAX_THREADS}, is {}", own.threads);
                return error("all_cores.threads".into(), rule);
            }
        }
        Ok(self)
    }
}

fn check_layers(
    layers: &[LayerProfile],
    batch: usize,
    file: &str,
    list: &str,
) -> Result<(), ReadError> {
    let error = |field: String, rule: String| Err(ReadError::new(file, field, rule));
    if !(1..=MAX_LAYERS).contains(&layers.len()) {
        let rule = format!(
            "must have from 1 to {MAX_LAYERS} entries, has {}",
            layers.len()
        );
        return error(list.into(), rule);
    }
    for (index, layer) in layers.iter().enumerate() {
        if let Err((field, rule)) = layer.check(batch) {
            return error(format!("{list}[{index}].{field}"), rule);
        }
    }
    for (field, of) in BYTE_FIELDS {
        let total: u64 = layers.iter().map(|layer| of(layer).0).sum();
        if total > MAX_TOTAL {
            let rule = format!("{field} of all layers must sum to at most {MAX_TOTAL}, is {total}");
            return error(list.into(), rule);
        }
    }
    Ok(())
}

impl LayerProfile {
    fn check(&self, batch: usize) -> Result<(), (String, String)> {
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
        let mut times = (std::iter::once(&self.times).chain(&self.host))
            .chain(self.curve.iter().map(|(_, times)| times));
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
