//! Files of a model: weights, `config.json`, possibly a tokenizer.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gpipe_partitioner::words::path_instead;
use safetensors::tensor::{Dtype, View};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::error::HuggingFaceError;
use super::tensors::Files;
use gpipe_partitioner::files;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Size limit of a JSON file: vocabularies have some megabytes.
const MAX_JSON: u64 = 256 << 20;

/// Location of a model.
#[derive(Debug)]
pub(super) struct Folder {
    /// The path as given.
    path: PathBuf,
    parent: PathBuf,
    /// The named file of weights, if one was named.
    file: Option<PathBuf>,
}

/// A parsed JSON file.
#[derive(Debug)]
pub(super) struct Json {
    pub(super) path: PathBuf,
    pub(super) value: Value,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Self, HuggingFaceError> {
        if path.is_dir() {
            return Ok(Self {
                path: path.to_owned(),
                parent: path.to_owned(),
                file: None,
            });
        }
        if !path.exists() {
            let why = "there is no such file or folder";
            let near = path_instead(path);
            return Err(match hub_name(path).filter(|_| near.is_empty()) {
                Some(name) => wrong(path, format!("{why}; {}", downloaded(name))),
                None => wrong(path, format!("{why}{near}")),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            parent: parent(path),
            file: Some(path.to_owned()),
        })
    }

    /// Returns the path for errors.
    pub(super) fn shown(&self) -> PathBuf {
        self.path.clone()
    }

    /// Reads the configuration.
    pub(super) fn config(&self) -> Result<Json, HuggingFaceError> {
        let path = self.parent.join(CONFIG);
        let value = read_json(&path)?.ok_or_else(|| {
            wrong(
                &self.path,
                format!("there is no {CONFIG} beside the weights, which says their sizes"),
            )
        })?;
        Ok(Json { path, value })
    }

    /// Where its `tokenizer.json` would be.
    pub(super) fn tokenizer(&self) -> PathBuf {
        self.parent.join(TOKENIZER)
    }

    /// Opens the weights: the named file, the only one, or all of an index.
    pub(super) fn tensors(&self) -> Result<Files, HuggingFaceError> {
        if let Some(file) = &self.file {
            return Files::open(std::slice::from_ref(file));
        }
        let whole = self.parent.join(WEIGHTS);
        if whole.exists() {
            return Files::open(&[whole]);
        }
        let index = self.parent.join(INDEX);
        let Some(value) = read_json(&index)? else {
            let why = format!("the folder has neither {WEIGHTS} nor {INDEX}");
            return Err(wrong(&self.path, why));
        };
        let places = value["weight_map"].as_object();
        let places = places.ok_or_else(|| wrong(&index, "has no `weight_map`"))?;
        let mut names: Vec<&str> = places.values().filter_map(Value::as_str).collect();
        names.sort_unstable();
        names.dedup();
        // A name with a path could be any file of the machine.
        let plain = |name: &&str| Path::new(name).file_name().is_some_and(|own| own == *name);
        if let Some(odd) = names.iter().find(|name| !plain(name)) {
            return Err(wrong(
                &index,
                format!("names a file `{odd}` outside of the folder"),
            ));
        }
        let paths: Vec<PathBuf> = names.iter().map(|name| self.parent.join(name)).collect();
        Files::open(&paths)
    }
}

/// Returns the path as a model's name on the hub, if it can be one: `gpt2`, `org/name`.
fn hub_name(path: &Path) -> Option<&str> {
    let name = path.to_str()?;
    let part = |part: &str| {
        let first = part.chars().next();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        first.is_some_and(|c| c.is_ascii_alphanumeric()) && part.chars().all(plain)
    };
    let is_file = path.extension().is_some_and(|end| end == "safetensors");
    (!is_file && name.split('/').count() <= 2 && name.split('/').all(part)).then_some(name)
}

/// Explains how to download a model from the hub.
fn downloaded(name: &str) -> String {
    let folder = name.rsplit('/').next().unwrap_or(name);
    format!("{}: name that folder here", download(name, folder))
}

fn download(name: &str, folder: &str) -> String {
    format!(
        "nothing is downloaded: if it is a model on the Hugging Face hub, \
         `hf download {name} --local-dir {folder}` puts it into the folder `{folder}`"
    )
}

/// Returns advice for a hub name given as a model; `None` if it cannot be one.
pub fn hub_hint(path: &Path) -> Option<String> {
    let name = hub_name(path)?;
    let (_, folder) = name.split_once('/')?;
    let is_file = path.extension().is_some_and(|end| end == "json");
    if is_file {
        return None;
    }
    Some(format!(
        "{}, for --weights {folder}",
        download(name, folder)
    ))
}

/// Writes a model; see [`export`](super::export).
pub(super) fn write(
    path: &Path,
    weights: Vec<(String, Tensor)>,
    config: &Value,
    tokenizer: BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, HuggingFaceError> {
    let is_file = path
        .extension()
        .is_some_and(|extension| extension == "safetensors");
    let (folder, file) = if is_file {
        (parent(path), path.to_owned())
    } else {
        (path.to_owned(), path.join(WEIGHTS))
    };
    fs::create_dir_all(&folder)
        .map_err(|error| wrong(&folder, format!("cannot be made: {error}")))?;
    let mut beside = vec![(folder.join(CONFIG), format!("{config:#}\n"))];
    for (name, text) in tokenizer {
        beside.push((folder.join(name), text));
    }
    for (path, text) in &beside {
        if read_text(path)?.is_some_and(|there| !same(&there, text)) {
            let why = "another one is there already: choose another folder, or remove it";
            return Err(wrong(path, why));
        }
    }
    let weights: Vec<(String, Bytes)> = weights
        .into_iter()
        .map(|(name, tensor)| Ok((name, Bytes::new(&tensor)?)))
        .collect::<Result<_, HuggingFaceError>>()?;
    // Without this, transformers assumes another library's file.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    // With the full path, as the writer puts a temporary file beside it.
    let target = folder.join(file.file_name().unwrap_or_default());
    safetensors::serialize_to_file(weights, Some(metadata), &target)
        .map_err(|error| wrong(&target, format!("cannot be written: {error}")))?;
    let mut written = vec![target];
    for (path, text) in beside {
        fs::write(&path, text)
            .map_err(|error| wrong(&path, format!("cannot be written: {error}")))?;
        written.push(path);
    }
    // The writer's temporary file was readable only for its owner.
    fs::metadata(&written[1])
        .and_then(|config| fs::set_permissions(&written[0], config.permissions()))
        .map_err(|error| wrong(&written[0], format!("cannot be shared: {error}")))?;
    Ok(written)
}

/// Returns a file's folder; never the empty path, which is invalid for the system.
pub(super) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether two files are equal as text or as JSON.
fn same(one: &str, other: &str) -> bool {
    let value = |text| serde_json::from_str::<Value>(text).ok();
    one == other || value(one).is_some_and(|one| Some(one) == value(other))
}

/// Reads a JSON file; `None` if it does not exist.
fn read_json(path: &Path) -> Result<Option<Value>, HuggingFaceError> {
    let text = read_text(path)?;
    text.map(|text| parse(path, &text)).transpose()
}

/// Parses a file's JSON.
pub(super) fn parse(path: &Path, text: &str) -> Result<Value, HuggingFaceError> {
    serde_json::from_str(text).map_err(|error| wrong(path, format!("is no JSON: {error}")))
}

/// Reads a text file; `None` if it does not exist.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, HuggingFaceError> {
    let unreadable = |error: std::io::Error| wrong(path, format!("cannot be read: {error}"));
    let bytes = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(unreadable)?.len(),
    };
    if bytes > MAX_JSON {
        return Err(wrong(
            path,
            format!("has {bytes} bytes, more than {MAX_JSON}"),
        ));
    }
    files::read_text(path).map(Some).map_err(unreadable)
}

pub(super) fn wrong(path: &Path, why: impl Into<String>) -> HuggingFaceError {
    HuggingFaceError::File {
        path: path.to_owned(),
        why: why.into(),
    }
}

/// A CPU tensor as the bytes of its elements, made while writing: for one tensor at a time.
struct Bytes {
    tensor: Tensor,
    shape: Vec<usize>,
}

impl Bytes {
    fn new(tensor: &Tensor) -> Result<Self, HuggingFaceError> {
        let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?;
        let tensor = tensor.f_to_kind(Kind::Float)?.f_contiguous()?;
        let shape = tensor.size().into_iter().map(|side| side as usize);
        Ok(Self {
            shape: shape.collect(),
            tensor,
        })
    }
}

impl View for Bytes {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        // The tensor is contiguous on the CPU, and the buffer has its size.
        self.tensor.copy_data_u8(&mut bytes, self.tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}
