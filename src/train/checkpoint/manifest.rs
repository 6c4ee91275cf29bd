//! `manifest.json`: the contents of a checkpoint.
//!
//! The last field is the BLAKE3 checksum of all bytes before it, so that any change of a manifest is
//! detected before it is used.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::error::CheckpointError;
use super::extras::Extras;
use gpipe_torch::pipeline::{Draws, ShardOf};

pub(super) const FILE: &str = "manifest.json";

/// The version written, and the only one read.
pub(super) const VERSION: u64 = 1;
/// Part of the names of files for tensors of a single replica other than the first.
const OF_REPLICA: &str = "-replica-";

const FORMAT: &str = "gpipe checkpoint";

/// Size limit of a manifest.
pub(super) const MOST_BYTES: u64 = 256 << 20;

/// Upper bound of the number of steps.
const MOST_STEPS: u64 = 1 << 53;

/// Beginning and end of the last field.
const SEAL: (&[u8], &[u8]) = (b",\n  \"blake3\": \"", b"\"\n}\n");
const DIGITS: usize = 2 * blake3::OUT_LEN;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: String,
    version: u64,
    /// Completed steps.
    pub(super) step: u64,
    pub(super) random: Random,
    pub(super) libtorch: String,
    pub(super) config: String,
    #[serde(deserialize_with = "parts")]
    pub(super) parts: BTreeMap<String, Value>,
    pub(super) shards: Vec<ShardEntry>,
}

/// Random state of layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Random {
    pub(super) seed: u64,
    pub(super) steps: u64,
}

/// A file of tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShardEntry {
    pub(super) file: String,
    pub(super) bytes: u64,
    /// In lowercase hexadecimal digits.
    pub(super) blake3: String,
    pub(super) tensors: u64,
}

/// Fields checked first: other versions have other fields.
#[derive(Deserialize)]
struct Kind {
    format: String,
    version: u64,
}

impl Manifest {
    pub(super) fn new(extras: Extras, draws: Draws, shards: Vec<ShardEntry>) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            step: extras.step,
            random: Random {
                seed: draws.seed,
                steps: draws.steps,
            },
            libtorch: gpipe_torch::libtorch_version(),
            config: extras.config,
            parts: extras.parts,
            shards,
        }
    }

    /// Returns the file's contents, sealed.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        // The closing brace follows the seal.
        bytes.truncate(bytes.trim_ascii_end().len() - 1);
        bytes.truncate(bytes.trim_ascii_end().len());
        let sum = blake3::hash(&bytes).to_hex();
        bytes.extend_from_slice(SEAL.0);
        bytes.extend_from_slice(sum.as_bytes());
        bytes.extend_from_slice(SEAL.1);
        Ok(bytes)
    }

    /// Parses a file.
    ///
    /// # Errors
    /// The seal is broken, the version is another one, or the contents are invalid.
    pub(super) fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        let sealed = unsealed(bytes, path)?;
        // The seal replaces the brace.
        let text = [sealed, b"}"].concat();
        let wrong = |error: serde_json::Error| {
            CheckpointError::foreign(path, format!("not a manifest: {error}"))
        };
        let kind: Kind = serde_json::from_slice(&text).map_err(wrong)?;
        if kind.format != FORMAT {
            let why = format!("its format is `{}`, not `{FORMAT}`", kind.format);
            return Err(CheckpointError::foreign(path, why));
        }
        if kind.version != VERSION {
            return Err(CheckpointError::Version {
                path: path.to_owned(),
                found: kind.version,
                known: VERSION,
            });
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(wrong)?;
        manifest.check(path)?;
        Ok(manifest)
    }

    fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        if let Some(steps) = [self.step, self.random.steps]
            .iter()
            .find(|n| **n >= MOST_STEPS)
        {
            let why = format!("it says that {steps} steps were done, which no run has");
            return Err(CheckpointError::foreign(path, why));
        }
        let mut seen = HashSet::new();
        for shard in &self.shards {
            if !is_plain(&shard.file) {
                let why = format!(
                    "it names the file `{}`, which is not one of its own folder",
                    shard.file.escape_debug()
                );
                return Err(CheckpointError::foreign(path, why));
            }
            if !seen.insert(&shard.file) {
                let why = format!("it names the file `{}` twice", shard.file);
                return Err(CheckpointError::foreign(path, why));
            }
        }
        Ok(())
    }

    pub(super) fn draws(&self) -> Draws {
        Draws {
            seed: self.random.seed,
            steps: self.random.steps,
        }
    }

    pub(super) fn extras(self) -> Extras {
        let mut extras = Extras::new(self.step).config(self.config);
        extras.parts = self.parts;
        extras
    }
}

/// Reads the parts by name; duplicate names are an error, as for other fields.
fn parts<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Value>, D::Error> {
    struct Parts;

    impl<'de> Visitor<'de> for Parts {
        type Value = BTreeMap<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("parts by their names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut parts = BTreeMap::new();
            while let Some((name, part)) = map.next_entry::<String, Value>()? {
                if parts.insert(name.clone(), part).is_some() {
                    let why = format!("the part `{}` is given twice", name.escape_debug());
                    return Err(A::Error::custom(why));
                }
            }
            Ok(parts)
        }
    }

    from.deserialize_map(Parts)
}

/// Returns the name of the file of a stage's tensors, or of those of a single replica other than the
/// first.
pub(super) fn shard_file(ShardOf { stage, replica }: ShardOf) -> String {
    match replica {
        0 => format!("stage-{stage}.safetensors"),
        _ => format!("stage-{stage}{OF_REPLICA}{replica}.safetensors"),
    }
}

/// Whether a file's name is that of a stage's tensors.
pub(super) fn is_of_stage(file: &str) -> bool {
    !file.contains(OF_REPLICA)
}

/// Whether a name is that of a shard in the manifest's own folder.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.ends_with(".safetensors")
        && name.len() <= 128
        && name.chars().all(allowed)
        && !name.starts_with('.')
}

/// Returns the bytes before the seal, if it is unbroken.
fn unsealed<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a [u8], CheckpointError> {
    let without_end = bytes.strip_suffix(SEAL.1);
    let found = without_end.and_then(|rest| rest.split_at_checked(rest.len().checked_sub(DIGITS)?));
    let found = found.and_then(|(rest, sum)| Some((rest.strip_suffix(SEAL.0)?, sum)));
    let Some((sealed, sum)) = found else {
        let why = "it does not end with a checksum: it was cut off, damaged, or changed by hand";
        return Err(CheckpointError::foreign(path, why));
    };
    if blake3::hash(sealed).to_hex().as_bytes() != sum {
        return Err(CheckpointError::Checksum {
            path: path.to_owned(),
        });
    }
    Ok(sealed)
}
