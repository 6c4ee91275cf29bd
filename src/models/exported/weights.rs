//! Tensors of an archive: their metadata, and reading them one by one.

use std::collections::{BTreeSet, HashMap};

use tch::{Device, Tensor, nn};

use super::archive::Archive;
use super::error::{Result, damaged, unsupported};
use super::form::{Form, place};
use super::program::Program;
use super::schema::{Payload, PayloadConfig};

/// The folder of the `state_dict`.
const WEIGHTS: &str = "weights";

/// All tensors of an archive.
#[derive(Debug)]
pub(super) struct Weights {
    archive: Archive,
    stored: HashMap<String, Stored>,
    /// Names in the `state_dict`.
    kept: BTreeSet<String>,
}

/// A tensor: part of an entry's bytes.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    entry: String,
    pub(super) form: Form,
    offset: i64,
    /// Number of elements in the entry.
    elements: i64,
    pub(super) requires_grad: bool,
}

impl Weights {
    /// Opens the tensors; `model` is the program's name in the archive.
    pub(super) fn open(archive: Archive, model: &str) -> Result<Self> {
        let (mut stored, mut kept) = (HashMap::new(), BTreeSet::new());
        for folder in [WEIGHTS, "constants"] {
            let name = format!("data/{folder}/{model}_{folder}_config.json");
            if !archive.has(&name) {
                continue;
            }
            let config: PayloadConfig = serde_json::from_slice(&archive.read(&name)?)
                .map_err(|error| damaged(&name, error.to_string()))?;
            for (own, payload) in config.config {
                let entry = format!("data/{folder}/{}", payload.path_name);
                // Objects other than tensors matter only if the program uses them.
                if let Some(one) = Stored::of(&own, entry, &payload, &archive)? {
                    if folder == WEIGHTS {
                        kept.insert(own.clone());
                    }
                    stored.insert(own, one);
                }
            }
        }
        Ok(Self {
            archive,
            stored,
            kept,
        })
    }

    /// Returns the names in the `state_dict`, including those that the program does not use.
    pub(super) fn kept(&self) -> impl Iterator<Item = &str> {
        self.kept.iter().map(String::as_str)
    }

    /// Returns a checksum of the file's contents.
    pub(super) fn fingerprint(&self) -> u32 {
        self.archive.fingerprint()
    }

    /// Checks that each variable of a program is in the archive in the form that the program states.
    ///
    /// # Errors
    /// The first variable that is not.
    pub(super) fn check(&self, program: &Program) -> Result<()> {
        program.variables.iter().try_for_each(|variable| {
            let stored = self.get(&variable.name)?;
            variable.form.check(&stored.form, &variable.name)
        })
    }

    pub(super) fn get(&self, name: &str) -> Result<&Stored> {
        let missing = || damaged(place(name), "is not in the archive");
        self.stored.get(name).ok_or_else(missing)
    }

    /// Makes the tensor on the device of `path`. If tensors are made without elements
    /// (`Sequential::variables`), nothing is read.
    pub(super) fn load(&self, name: &str, path: &nn::Path<'_>) -> anyhow::Result<Tensor> {
        self.load_to(name, path.device())
    }

    /// Makes the tensor on a device.
    pub(super) fn load_to(&self, name: &str, device: Device) -> anyhow::Result<Tensor> {
        let stored = self.get(name)?;
        let Form {
            kind,
            sizes,
            strides,
        } = &stored.form;
        let made = Tensor::f_empty_strided(sizes, strides, (*kind, device))?;
        // tch has no `meta` device, and reports this one.
        if made.device() == Device::Mps || stored.numel() == 0 {
            return Ok(made);
        }
        // The elements in memory order, and in the entry from the offset on: filled piece by piece, so
        // that there is no second copy, however large the tensor is.
        let span = stored.span();
        let flat = made.f_as_strided([span], [1], 0)?;
        let _no_grad = tch::no_grad_guard();
        self.archive.read_in_pieces(&stored.entry, |at, bytes| {
            let element = kind.elt_size_in_bytes();
            // Pieces begin and end with whole elements, except for bytes after the last one.
            let first = at as i64 / element as i64;
            let end = first + (bytes.len() / element) as i64;
            let own = first.max(stored.offset)..end.min(stored.offset + span);
            if own.is_empty() {
                return Ok(());
            }
            let count = own.end - own.start;
            let from = (own.start - first) as usize * element;
            let bytes = &bytes[from..from + count as usize * element];
            let piece = Tensor::f_from_data_size(bytes, &[count], *kind)?;
            flat.f_narrow(0, own.start - stored.offset, count)?
                .f_copy_(&piece)?;
            Ok(())
        })?;
        Ok(made)
    }
}

impl Stored {
    fn of(name: &str, entry: String, payload: &Payload, archive: &Archive) -> Result<Option<Self>> {
        let Some(meta) = &payload.tensor_meta else {
            return Ok(None);
        };
        if payload.use_pickle {
            let what = "is pickled, as tensors of other classes are: only plain tensors are taken";
            return Err(unsupported(place(name), what));
        }
        let form = Form::of(meta, name)?;
        let offset = meta.storage_offset.fixed();
        let offset = offset.ok_or_else(|| unsupported(place(name), "has no fixed offset"))?;
        let bytes = archive.size(&entry);
        let bytes = bytes.ok_or_else(|| damaged(&entry, "the archive does not have it"))?;
        let elements = bytes / form.kind.elt_size_in_bytes() as u64;
        let stored = Self {
            entry,
            form,
            offset,
            elements: i64::try_from(elements).unwrap_or(0),
            requires_grad: meta.requires_grad,
        };
        if stored.fits().is_none() {
            return Err(damaged(
                place(name),
                format!(
                    "has sizes {:?}, strides {:?} and offset {}, but `{}` holds {elements} elements",
                    stored.form.sizes, stored.form.strides, stored.offset, stored.entry
                ),
            ));
        }
        // Kernels of libtorch assume that a weight's elements do not overlap in memory.
        if stored.numel() > 0 && !stored.form.is_apart() {
            let Form { sizes, strides, .. } = &stored.form;
            let why = format!("has sizes {sizes:?} and strides {strides:?}: elements share memory");
            return Err(unsupported(place(name), why));
        }
        Ok(Some(stored))
    }

    /// Whether all elements lie within the entry, and none is repeated excessively.
    fn fits(&self) -> Option<()> {
        let Form { sizes, strides, .. } = &self.form;
        let right = strides.len() == sizes.len() && sizes.len() <= 64;
        let whole = |all: &[i64]| all.iter().all(|number| *number >= 0);
        let fine = right && whole(sizes) && whole(strides);
        if !fine || self.offset < 0 {
            return None;
        }
        let mut count = 1i64;
        let mut last = self.offset;
        for (size, stride) in sizes.iter().zip(strides) {
            count = count.checked_mul(*size)?;
            last = last.checked_add((size - 1).max(0).checked_mul(*stride)?)?;
        }
        (count == 0 || (last < self.elements && count <= self.elements)).then_some(())
    }

    /// Number of elements from the first to the last in memory; there is at least one.
    fn span(&self) -> i64 {
        let steps = self.form.sizes.iter().zip(&self.form.strides);
        // They fit the entry, and so does their sum.
        1 + steps.map(|(size, stride)| (size - 1) * stride).sum::<i64>()
    }

    fn numel(&self) -> i64 {
        self.form.sizes.iter().product()
    }

    /// Whether this is the same tensor under another name.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.entry == other.entry && self.form == other.form && self.offset == other.offset
    }

    /// Returns the archive entry with its bytes.
    pub(super) fn entry(&self) -> &str {
        &self.entry
    }
}
