//! Trained weights under their Python names.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use safetensors::tensor::{Dtype, View};
use tch::{Device, Kind, Tensor};

use super::Exported;
use super::error::Result;
use super::weights::Stored;
use crate::loss_kind::is_float;
use crate::wrapped;

/// Returns names, shapes and types.
pub(super) fn layout(own: &Exported) -> Result<Vec<(String, Vec<i64>, Kind)>> {
    let one = |name: &str| {
        let stored = own.weights.get(name)?;
        Ok((name.to_owned(), stored.form.sizes.clone(), stored.form.kind))
    };
    own.weights.kept().map(one).collect()
}

/// See [`ExportedModel::state_dict`](super::ExportedModel::state_dict).
pub(super) fn with(
    own: &Exported,
    weights: &[(String, Tensor)],
) -> anyhow::Result<Vec<(String, Tensor)>> {
    let homes = homes(own)?;
    let given: HashMap<&str, &Tensor> = weights
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let mut all = Vec::new();
    for name in own.weights.kept() {
        let stored = own.weights.get(name)?;
        let home = homes.iter().find(|(_, other)| stored.is(other));
        let tensor = match home {
            None => own.weights.load_to(name, Device::Cpu)?,
            Some((home, _)) => {
                let tensor = given.get(home.as_str());
                let tensor = tensor.with_context(|| format!("the weights have no `{home}`"))?;
                anyhow::ensure!(
                    tensor.size() == stored.form.sizes,
                    "`{home}` has shape {:?}, and in the exported program {:?}",
                    tensor.size(),
                    stored.form.sizes
                );
                tensor.f_detach()?.f_to_kind(stored.form.kind)?
            }
        };
        all.push((name.to_owned(), tensor));
    }
    Ok(all)
}

/// See [`ExportedModel::weights`](super::ExportedModel::weights).
pub(super) fn without(
    own: &Exported,
    mut given: Vec<(String, Tensor)>,
) -> anyhow::Result<Vec<(String, Tensor)>> {
    // Files have no order: sort, so that the same one of several errors is reported each time.
    given.sort_by(|(one, _), (other, _)| one.cmp(other));
    let kept: Vec<&str> = own.weights.kept().collect();
    if let Some(prefix) = prefix(own, &given).map(str::to_owned) {
        for (name, _) in &mut given {
            name.drain(..prefix.len());
        }
    } else if let Some(prefix) = missing_prefix(own, &given).map(str::to_owned) {
        for (name, _) in &mut given {
            name.insert_str(0, &prefix);
        }
    }
    let there: HashSet<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    let same = |name: &str, other: &str| match (own.weights.get(name), own.weights.get(other)) {
        (Ok(one), Ok(other)) => one.is(other),
        _ => false,
    };
    // transformers saves only one of tied weights.
    let lacks = |name: &&&str| {
        let twin = |other: &&str| there.contains(*other) && same(name, other);
        !there.contains(**name) && !kept.iter().any(twin)
    };
    let missing: Vec<&str> = kept.iter().filter(lacks).copied().collect();
    let others = given.iter().map(|(name, _)| name.as_str());
    let others: Vec<&str> = others.filter(|name| !kept.contains(name)).collect();
    anyhow::ensure!(
        missing.is_empty() && others.is_empty(),
        "its names are not those of the model's state_dict.{}{}",
        listed("The model has no", &others),
        listed("Missing are", &missing)
    );
    let homes = homes(own)?;
    let mut all: Vec<(String, String, Tensor)> = Vec::new();
    for (name, tensor) in given {
        let stored = own.weights.get(&name)?;
        anyhow::ensure!(
            tensor.size() == stored.form.sizes
                && is_float(tensor.kind()) == is_float(stored.form.kind),
            "`{name}` has shape {:?} and elements of kind {:?}, and in the exported program {:?} and \
             {:?}",
            tensor.size(),
            tensor.kind(),
            stored.form.sizes,
            stored.form.kind
        );
        let home = homes.iter().find(|(_, other)| stored.is(other));
        // The program never uses the others.
        let Some((home, _)) = home else { continue };
        let tensor = tensor.f_to_kind(stored.form.kind)?;
        match all.iter().find(|(_, other, _)| other == home) {
            Some((other, _, own)) => anyhow::ensure!(
                own.equal(&tensor),
                "`{name}` and `{other}` are one tensor in the exported program, but have other \
                 numbers here"
            ),
            None => all.push((name, home.clone(), tensor)),
        }
    }
    Ok(all.into_iter().map(|(_, home, own)| (home, own)).collect())
}

/// See [`ExportedModel::prefix`](super::ExportedModel::prefix).
pub(super) fn prefix<'a>(own: &Exported, given: &'a [(String, Tensor)]) -> Option<&'a str> {
    let first = own.weights.kept().next()?;
    wrapped::prefix(given.iter().map(|(name, _)| name.as_str()), first)
}

/// See [`ExportedModel::missing_prefix`](super::ExportedModel::missing_prefix).
pub(super) fn missing_prefix<'a>(own: &'a Exported, given: &[(String, Tensor)]) -> Option<&'a str> {
    let first = given.iter().map(|(name, _)| name.as_str()).min()?;
    let kept: Vec<&str> = own.weights.kept().collect();
    wrapped::prefix(kept.into_iter(), first)
}

/// Lists the first few names.
fn listed(what: &str, names: &[&str]) -> String {
    const MOST: usize = 6;
    if names.is_empty() {
        return String::new();
    }
    let few = names.iter().take(MOST).map(|name| format!("`{name}`"));
    let few = few.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => format!(" {what} {few}."),
        more => format!(" {what} {few} and {more} more."),
    }
}

/// Returns the pipeline's variables by name, with their tensors in the file.
fn homes(own: &Exported) -> Result<Vec<(String, &Stored)>> {
    let mut homes = Vec::new();
    for variable in own.parts.iter().flat_map(|part| &part.variables) {
        // A tied variable is the same tensor.
        if let (Some(name), None) = (&variable.name, &variable.tied_to) {
            let stored = own.program.variables[variable.variable].name.as_str();
            homes.push((name.clone(), own.weights.get(stored)?));
        }
    }
    Ok(homes)
}

/// Writes tensors as safetensors; replaces an existing file.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> anyhow::Result<()> {
    let tensors = tensors
        .iter()
        .map(|(name, tensor)| Ok((name, Bytes::new(tensor)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let told = || format!("{}: cannot be written", path.display());
    // With the full path: the writer puts a temporary file beside it, readable only for its owner.
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let target = folder.join(path.file_name().unwrap_or_default());
    let beside = tempfile_mode(folder).with_context(told)?;
    safetensors::serialize_to_file(tensors, Some(metadata), &target).with_context(told)?;
    fs::set_permissions(&target, beside).with_context(told)
}

/// Returns the permissions of a new file in a folder.
fn tempfile_mode(folder: &Path) -> std::io::Result<fs::Permissions> {
    let probe = folder.join(format!(".gpipe-rs-{}", std::process::id()));
    let rights = fs::File::create(&probe)?.metadata()?.permissions();
    fs::remove_file(probe)?;
    Ok(rights)
}

/// A CPU tensor as the bytes of its elements, made while writing.
struct Bytes {
    tensor: Tensor,
    shape: Vec<usize>,
    kind: Dtype,
}

impl Bytes {
    fn new(tensor: &Tensor) -> anyhow::Result<Self> {
        let kind = match tensor.kind() {
            Kind::Bool => Dtype::BOOL,
            Kind::Uint8 => Dtype::U8,
            Kind::Int8 => Dtype::I8,
            Kind::Int16 => Dtype::I16,
            Kind::Int => Dtype::I32,
            Kind::Int64 => Dtype::I64,
            Kind::Half => Dtype::F16,
            Kind::BFloat16 => Dtype::BF16,
            Kind::Float => Dtype::F32,
            Kind::Double => Dtype::F64,
            other => anyhow::bail!("safetensors has no elements of kind {other:?}"),
        };
        let shape = tensor.size().into_iter().map(|side| side as usize);
        Ok(Self {
            shape: shape.collect(),
            tensor: tensor.f_to_device(Device::Cpu)?.f_contiguous()?,
            kind,
        })
    }
}

impl View for Bytes {
    fn dtype(&self) -> Dtype {
        self.kind
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
        self.tensor.numel() * self.tensor.kind().elt_size_in_bytes()
    }
}
