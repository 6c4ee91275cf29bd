//! Damaged and forged files: refused, without a panic and without taking memory for what they claim.

use std::panic;

use gpipe::models;
use serde_json::{Value, json};

use crate::fixture::path;
use crate::support::single_threaded;

/// An archive that can be changed.
#[derive(Clone)]
pub(crate) struct Zip(pub(crate) Vec<(String, Vec<u8>)>);

fn number(bytes: &[u8], at: usize, count: usize) -> usize {
    let own = bytes[at..at + count].iter().rev();
    own.fold(0, |sum, byte| (sum << 8) | usize::from(*byte))
}

impl Zip {
    /// Reads what PyTorch wrote: small, stored, in order.
    pub(crate) fn open(name: &str) -> Self {
        let bytes = std::fs::read(path(name)).unwrap();
        let end = bytes
            .windows(4)
            .rposition(|own| own == b"PK\x05\x06")
            .unwrap();
        let mut at = number(&bytes, end + 16, 4);
        let mut entries = Vec::new();
        while bytes[at..at + 4] == *b"PK\x01\x02" {
            let [size, local] = [24, 42].map(|place| number(&bytes, at + place, 4));
            let [name, extra, comment] = [28, 30, 32].map(|place| number(&bytes, at + place, 2));
            let own = String::from_utf8(bytes[at + 46..at + 46 + name].to_vec()).unwrap();
            let start = local + 30 + number(&bytes, local + 26, 2) + number(&bytes, local + 28, 2);
            entries.push((own, bytes[start..start + size].to_vec()));
            at += 46 + name + extra + comment;
        }
        Self(entries)
    }

    pub(crate) fn entry(&mut self, end: &str) -> &mut Vec<u8> {
        &mut self
            .0
            .iter_mut()
            .find(|(name, _)| name.ends_with(end))
            .unwrap()
            .1
    }

    /// Changes the program.
    pub(crate) fn program(mut self, change: impl FnOnce(&mut Value)) -> Self {
        self.json("models/model.json", change);
        self
    }

    pub(crate) fn json(&mut self, end: &str, change: impl FnOnce(&mut Value)) {
        let end = if end.starts_with("models/") {
            ".json"
        } else {
            end
        };
        let at = self.0.iter().position(|(name, _)| {
            name.ends_with(end) && (end != ".json" || name.contains("/models/"))
        });
        let bytes = &mut self.0[at.unwrap()].1;
        let mut value = serde_json::from_slice(bytes).unwrap();
        change(&mut value);
        *bytes = serde_json::to_vec(&value).unwrap();
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in &self.0 {
            let (size, local) = (data.len() as u32, out.len() as u32);
            let common = [
                &crc32(data).to_le_bytes()[..],
                &size.to_le_bytes(),
                &size.to_le_bytes(),
                &(name.len() as u16).to_le_bytes(),
                &[0, 0],
            ]
            .concat();
            out.extend(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0");
            out.extend(&common);
            out.extend(name.as_bytes());
            out.extend(data);
            directory.extend(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0");
            directory.extend(&common);
            directory.extend([0; 10]);
            directory.extend(local.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let (start, count) = (out.len() as u32, self.0.len() as u16);
        out.extend(&directory);
        out.extend(b"PK\x05\x06\0\0\0\0");
        out.extend(count.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend((directory.len() as u32).to_le_bytes());
        out.extend(start.to_le_bytes());
        out.extend([0, 0]);
        out
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

/// Says what is wrong with a file, be it found when it is read or when its layers are built.
pub(crate) fn refusal(bytes: Vec<u8>) -> Option<String> {
    match models::exported_bytes(bytes) {
        Err(error) => Some(error.to_string()),
        Ok(model) => model.variables().err().map(|error| format!("{error:#}")),
    }
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

#[test]
fn bytes_at_random_places_are_refused_or_read() {
    single_threaded();
    for name in ["mlp", "lstm", "unet"] {
        let whole = std::fs::read(path(name)).unwrap();
        for seed in 0..150 {
            let mut draws = Draws(seed);
            let mut bytes = whole.clone();
            for _ in 0..=draws.below(4) {
                // Half of them in the directory and the end.
                let from = if draws.below(2) == 0 {
                    bytes.len() - 2500
                } else {
                    0
                };
                let at = from + draws.below(bytes.len() - from);
                bytes[at] = draws.below(256) as u8;
            }
            if draws.below(5) == 0 {
                bytes.truncate(draws.below(whole.len()));
            }
            let read = panic::catch_unwind(|| refusal(bytes));
            assert!(read.is_ok(), "{name}, seed {seed}");
        }
    }
}

/// All places in a program, as paths.
fn places(value: &Value, path: &str, out: &mut Vec<String>) {
    out.push(path.to_owned());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(value, &format!("{path}/{key}"), out);
            }
        }
        Value::Array(all) => {
            for (number, value) in all.iter().enumerate() {
                places(value, &format!("{path}/{number}"), out);
            }
        }
        _ => {}
    }
}

fn forged(draws: &mut Draws) -> Value {
    let all = [
        json!(null),
        json!(-1),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(0),
        json!(7),
        json!(true),
        json!(""),
        json!("linear"),
        json!("torch.ops.aten.add.Tensor"),
        json!("\u{0}"),
        json!([]),
        json!({}),
        json!([i64::MAX, i64::MAX]),
        json!({"as_int": i64::MAX}),
        json!({"as_ints": [-3, i64::MAX]}),
        json!({"as_tensor": {"name": "x"}}),
        json!({"as_none": true}),
        json!({"as_sym_int": {"as_name": "nothing"}}),
    ];
    all[draws.below(all.len())].clone()
}

#[test]
fn programs_with_random_values_are_refused_or_read() {
    single_threaded();
    for name in ["mlp", "lstm", "decoder"] {
        let zip = Zip::open(name);
        let (mut of_program, mut of_weights) = (Vec::new(), Vec::new());
        let mut probe = zip.clone();
        probe.json("models/", |program| places(program, "", &mut of_program));
        probe.json("_weights_config.json", |config| {
            places(config, "", &mut of_weights)
        });
        for seed in 0..200 {
            let mut draws = Draws(seed + 1000);
            let mut zip = zip.clone();
            let in_weights = draws.below(4) == 0;
            let all = if in_weights { &of_weights } else { &of_program };
            let place = all[draws.below(all.len())].clone();
            let value = forged(&mut draws);
            let end = if in_weights {
                "_weights_config.json"
            } else {
                "models/"
            };
            zip.json(end, |json| {
                if let Some(own) = json.pointer_mut(&place) {
                    *own = value.clone();
                }
            });
            let read = panic::catch_unwind(|| refusal(zip.bytes()));
            assert!(read.is_ok(), "{name}, seed {seed}: {value} at {place}");
        }
    }
}
