//! Damaged and forged files are refused, without a panic and without allocating the memory that they claim.

use std::panic;
use std::time::{Duration, Instant};

use gpipe::models;
use serde_json::{Value, json};

use crate::fixture::{ALL, path};
use crate::support::single_threaded;

/// An archive that can be changed.
#[derive(Clone)]
pub(crate) struct Zip(pub(crate) Vec<(String, Vec<u8>)>);

fn number(bytes: &[u8], at: usize, count: usize) -> usize {
    let own = bytes[at..at + count].iter().rev();
    own.fold(0, |sum, byte| (sum << 8) | usize::from(*byte))
}

impl Zip {
    /// Reads PyTorch's archive: small, stored, in order.
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

    /// Makes the program declare each parameter as the archive does.
    pub(crate) fn agreed(mut self) -> Self {
        let mut forms = Value::Null;
        self.json("_weights_config.json", |config| {
            forms = config["config"].clone()
        });
        self.program(|program| {
            let module = &mut program["graph_module"];
            let specs = module["signature"]["input_specs"].clone();
            for own in specs
                .as_array()
                .unwrap()
                .iter()
                .map(|spec| &spec["parameter"])
            {
                if let (Some(name), Some(value)) =
                    (own["parameter_name"].as_str(), own["arg"]["name"].as_str())
                {
                    module["graph"]["tensor_values"][value] = forms[name]["tensor_meta"].clone();
                }
            }
        })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in &self.0 {
            let (size, local) = (data.len() as u32, out.len() as u32);
            let common = [
                &crc32fast::hash(data).to_le_bytes()[..],
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

/// Returns a file's error, whether found on reading or on building layers.
pub(crate) fn refusal(bytes: Vec<u8>) -> Option<String> {
    match models::exported_bytes(bytes) {
        Err(error) => Some(error.to_string()),
        Ok(model) => model.variables().err().map(|error| format!("{error:#}")),
    }
}

pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// Changes some bytes of a file, half of them in the directory and the end, or truncates it.
fn with_other_bytes(whole: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=draws.below(4) {
        let from = match draws.below(2) {
            0 => bytes.len().saturating_sub(2500),
            _ => 0,
        };
        let at = from + draws.below(bytes.len() - from);
        bytes[at] = draws.below(256) as u8;
    }
    if draws.below(5) == 0 {
        bytes.truncate(draws.below(whole.len()));
    }
    bytes
}

#[test]
fn bytes_at_random_places_are_refused_or_read() {
    single_threaded();
    for name in ["mlp", "lstm", "unet"] {
        let whole = std::fs::read(path(name)).unwrap();
        for seed in 0..150 {
            let bytes = with_other_bytes(&whole, &mut Draws(seed));
            let read = panic::catch_unwind(|| refusal(bytes));
            assert!(read.is_ok(), "{name}, seed {seed}");
        }
    }
}

/// All positions in a program, as paths.
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

/// The entries that are JSON.
const JSON: [&str; 3] = ["models/", "_weights_config.json", "_constants_config.json"];

/// A file, and every place in its JSON.
struct Forger {
    zip: Zip,
    places: [Vec<String>; 3],
}

impl Forger {
    fn new(name: &str) -> Self {
        let zip = Zip::open(name);
        let mut probe = zip.clone();
        let places = JSON.map(|entry| {
            let mut all = Vec::new();
            probe.json(entry, |json| places(json, "", &mut all));
            all
        });
        Self { zip, places }
    }

    /// The file with other values at some places, and their description.
    fn with_other_values(&self, draws: &mut Draws) -> (Vec<u8>, String) {
        let (mut zip, mut told) = (self.zip.clone(), String::new());
        for _ in 0..=draws.below(3) {
            let entry = [0, 0, 0, 1, 1, 2][draws.below(6)];
            let all = &self.places[entry];
            let place = &all[draws.below(all.len())];
            // A random value, or one from another place.
            let other = &all[draws.below(all.len())];
            let (value, moved) = (forged(draws), draws.below(4) == 0);
            zip.json(JSON[entry], |json| {
                let value = match json.pointer(other) {
                    Some(other) if moved => other.clone(),
                    _ => value,
                };
                if let Some(own) = json.pointer_mut(place) {
                    told = format!("{told}{value} at {place}; ");
                    *own = value;
                }
            });
        }
        (zip.bytes(), told)
    }
}

#[test]
fn programs_with_random_values_are_refused_or_read() {
    single_threaded();
    for name in ["mlp", "lstm", "decoder"] {
        let forger = Forger::new(name);
        for seed in 0..200 {
            let (bytes, told) = forger.with_other_values(&mut Draws(seed + 1000));
            let read = panic::catch_unwind(|| refusal(bytes));
            assert!(read.is_ok(), "{name}, seed {seed}: {told}");
        }
    }
}

/// Does nothing unless `FUZZ_SECONDS` is set (`make fuzz`).
#[test]
fn mutations_for_so_many_seconds_are_refused_or_read() {
    let Ok(seconds) = std::env::var("FUZZ_SECONDS") else {
        return;
    };
    single_threaded();
    let most = Duration::from_secs(seconds.parse().unwrap());
    let files = ALL.map(|name| (name, std::fs::read(path(name)).unwrap(), Forger::new(name)));
    let (begin, mut slowest) = (Instant::now(), Duration::ZERO);
    let (mut seed, mut read, mut refused) = (1_u64 << 32, [0, 0], [0, 0]);
    while begin.elapsed() < most {
        for (name, whole, forger) in &files {
            for kind in 0..2 {
                seed += 1;
                let mut draws = Draws(seed);
                let (bytes, told) = match kind {
                    0 => (with_other_bytes(whole, &mut draws), "bytes".to_owned()),
                    _ => forger.with_other_values(&mut draws),
                };
                let start = Instant::now();
                let ended = panic::catch_unwind(|| refusal(bytes));
                let ended = ended.unwrap_or_else(|_| panic!("{name}, seed {seed}: {told}"));
                match ended {
                    None => read[kind] += 1,
                    Some(_) => refused[kind] += 1,
                }
                slowest = slowest.max(start.elapsed());
            }
        }
    }
    println!(
        "{} mutations of bytes ({} refused) and {} of JSON ({} refused) in {:.0?}, the slowest in \
         {slowest:.1?}: no panic",
        read[0] + refused[0],
        refused[0],
        read[1] + refused[1],
        refused[1],
        begin.elapsed()
    );
}
