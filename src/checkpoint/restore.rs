//! From a checkpoint back into a pipeline, however that is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::error::CheckpointError;
use super::header::{self, Header};
use super::open::Checkpoint;
use super::shard_file::ShardFile;
use crate::pipeline::{Fitting, Form};
use crate::torch::Role;
use crate::{Optimizer, Pipeline};

impl Checkpoint {
    /// Has `pipe` and `optimizer` go on from this checkpoint.
    ///
    /// The pipeline may have another partition, other devices, another schedule or
    /// other micro-batches than the one that was saved. With the same micro-batches
    /// and threads per stage on the same kind of device, what follows has the same
    /// bits as if nothing had been interrupted. What random layers draw from is
    /// the checkpoint's too, so the pipeline's own seed does not matter.
    ///
    /// The optimizer must be of the same kind, with the same groups. Learning rates
    /// and other numbers stay its own.
    ///
    /// # Errors
    /// [`CheckpointError::Fit`] where the model or the optimizer is another one:
    /// nothing has been changed then. A file that was changed since it was
    /// verified, or a device that runs out of memory, may leave a part restored.
    pub fn restore(
        &self,
        pipe: &mut Pipeline,
        optimizer: &mut Optimizer,
    ) -> Result<(), CheckpointError> {
        self.check_fit(&pipe.fitting(optimizer)?)?;
        pipe.forget(optimizer)?;
        for (file, _) in self.shards() {
            pipe.put(optimizer, header::tensors(file)?)?;
        }
        pipe.go_on(self.draws())?;
        Ok(())
    }

    fn check_fit(&self, model: &Fitting) -> Result<(), CheckpointError> {
        let mut missing: BTreeSet<&(Role, String)> = model.forms.keys().collect();
        for (ShardFile { path, .. }, header) in self.shards() {
            for (key, form) in header {
                missing.remove(key);
                check_form(key, form, &model.forms)
                    .map_err(|why| CheckpointError::fit(path, why))?;
            }
            check_optimizer(path, header, model)?;
        }
        let Some((role, name)) = missing.first() else {
            return Ok(());
        };
        let why = format!(
            "it lacks {} `{name}`, which the model has{}",
            role.in_words(),
            OTHER_MODEL
        );
        Err(CheckpointError::fit(self.path(), why))
    }
}

const OTHER_MODEL: &str =
    ": it is another model's; build the model with the sizes it was saved with";

fn check_form(
    (role, name): &(Role, String),
    (kind, shape): &Form,
    model: &BTreeMap<(Role, String), Form>,
) -> Result<(), String> {
    let owner = match role {
        Role::Buffer => Role::Buffer,
        _ => Role::Parameter,
    };
    let Some((own_kind, own_shape)) = model.get(&(owner, name.clone())) else {
        return Err(format!(
            "it has {} `{name}`, which the model has not{OTHER_MODEL}",
            role.in_words()
        ));
    };
    // What an optimizer remembers need not have the parameter's form.
    if matches!(role, Role::Optimizer(_)) || (kind, shape) == (own_kind, own_shape) {
        return Ok(());
    }
    Err(format!(
        "its {} `{name}` is {kind:?} of shape {shape:?}, the model's {own_kind:?} of shape \
         {own_shape:?}{OTHER_MODEL}",
        role.in_words()
    ))
}

fn check_optimizer(path: &Path, header: &Header, model: &Fitting) -> Result<(), CheckpointError> {
    let mut parts: BTreeMap<&str, Vec<(&str, &Form)>> = BTreeMap::new();
    for ((role, name), form) in header {
        if let Role::Optimizer(part) = role {
            parts.entry(name).or_default().push((part, form));
        }
    }
    for (name, parts) in parts {
        let key = (Role::Parameter, name.to_owned());
        let Some((kind, shape)) = model.forms.get(&key) else {
            continue;
        };
        let update = model.groups.kind(model.groups.of(name));
        let parts = parts
            .into_iter()
            .map(|(part, (kind, shape))| (part, *kind, shape.as_slice()));
        update
            .check_parts((*kind, shape), parts)
            .map_err(|why| CheckpointError::fit(path, format!("of `{name}`: {why}")))?;
    }
    Ok(())
}
