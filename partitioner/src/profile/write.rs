//! Writer of `profile.json`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Footprint, LayerProfile, LayerTimes, PROFILE_VERSION, Profile};
use crate::cost::{HostLink, Link};
use crate::units::Bytes;

impl Profile {
    /// Returns the profile as JSON, one layer per line; optional fields only if they have a value.
    pub fn to_json(&self) -> String {
        let mut head = Map::new();
        head.insert("version".into(), json!(PROFILE_VERSION));
        head.insert("device".into(), json!(self.device));
        head.insert("batch".into(), json!(self.batch));
        if let Some(model) = &self.model {
            head.insert("model".into(), model.to_value());
        }
        let texts = [
            ("libtorch", &self.libtorch),
            ("measured", &self.measured),
            ("precision", &self.precision),
            ("kernels", &self.kernels),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                head.insert(name.into(), json!(text));
            }
        }
        optional_bytes(&mut head, "input_bytes", self.input);
        if self.fewest_samples > 1 {
            head.insert("fewest_samples".into(), json!(self.fewest_samples));
        }
        if let Some(link) = &self.link {
            head.insert("link".into(), link_value(link));
        }
        if let Some(HostLink { to_host, to_device }) = &self.host_link {
            let both = json!({"to_host": link_value(to_host), "to_device": link_value(to_device)});
            head.insert("host_link".into(), both);
        }
        if let Some(time) = self.graph_replay {
            head.insert("graph_replay_us".into(), json!(time));
        }
        if let Some(doubts) = &self.doubts {
            head.insert("doubts".into(), json!(doubts));
        }
        if let Some(own) = &self.all_cores {
            let layers: Vec<Value> = own.layers.iter().map(layer_value).collect();
            let value = json!({"threads": own.threads, "layers": layers});
            head.insert("all_cores".into(), value);
        }
        // Writing to a String cannot fail.
        let mut text = String::from("{\n");
        for (name, value) in &head {
            let _ = writeln!(text, "  {}: {value},", Value::from(name.as_str()));
        }
        text.push_str("  \"layers\": [");
        for (index, layer) in self.layers.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let _ = write!(text, "{separator}\n    {}", layer_value(layer));
        }
        text.push_str("\n  ]\n}\n");
        text
    }
}

pub(crate) fn link_value(link: &Link) -> Value {
    let mut map = Map::new();
    map.insert("latency_us".into(), json!(link.latency()));
    if let Some(bandwidth) = link.bandwidth() {
        map.insert("bytes_per_second".into(), json!(bandwidth.0));
    }
    Value::Object(map)
}

fn layer_value(layer: &LayerProfile) -> Value {
    let mut map = Map::new();
    map.insert("name".into(), json!(layer.name));
    times_into(&mut map, &layer.times);
    map.insert("parameter_bytes".into(), json!(layer.parameters.0));
    footprint_into(&mut map, &layer.footprint);
    if !layer.curve.is_empty() {
        let point = |(batch, times): &(usize, LayerTimes)| {
            let mut map = Map::new();
            map.insert("batch".into(), json!(batch));
            times_into(&mut map, times);
            let footprint = layer.footprints.iter().find(|(size, _)| size == batch);
            if let Some((_, footprint)) = footprint {
                footprint_into(&mut map, footprint);
            }
            Value::Object(map)
        };
        map.insert("curve".into(), layer.curve.iter().map(point).collect());
    }
    if let Some(spread) = &layer.spread {
        map.insert("repeats".into(), json!(spread.repeats()));
        map.insert("forward_spread".into(), json!(spread.forward()));
        map.insert("backward_spread".into(), json!(spread.backward()));
    }
    if let Some(times) = &layer.host {
        let mut host = Map::new();
        times_into(&mut host, times);
        map.insert("host".into(), Value::Object(host));
    }
    if let Some(why) = &layer.no_graph {
        map.insert("no_graph".into(), json!(why));
    }
    Value::Object(map)
}

fn footprint_into(map: &mut Map<String, Value>, footprint: &Footprint) {
    map.insert("activation_bytes".into(), json!(footprint.activations.0));
    if let Some(bytes) = footprint.after_input {
        map.insert("after_input_bytes".into(), json!(bytes.0));
    }
    optional_bytes(map, "loss_bytes", footprint.loss);
    map.insert("output_bytes".into(), json!(footprint.output.0));
    optional_bytes(map, "temporary_bytes", footprint.temporary);
    let halves = [
        ("input_temporary_bytes", footprint.input_temporary),
        ("weight_temporary_bytes", footprint.weight_temporary),
    ];
    for (name, bytes) in halves {
        if let Some(bytes) = bytes {
            map.insert(name.into(), json!(bytes.0));
        }
    }
}

fn times_into(map: &mut Map<String, Value>, times: &LayerTimes) {
    map.insert("forward_us".into(), json!(times.forward));
    map.insert("backward_input_us".into(), json!(times.backward_input));
    map.insert("backward_weight_us".into(), json!(times.backward_weight));
    let optional = [
        ("backward_us", times.backward),
        ("recompute_us", times.recompute),
    ];
    for (name, time) in optional {
        if let Some(time) = time {
            map.insert(name.into(), json!(time));
        }
    }
}

fn optional_bytes(map: &mut Map<String, Value>, name: &str, bytes: Bytes) {
    if bytes != Bytes::ZERO {
        map.insert(name.into(), json!(bytes.0));
    }
}
