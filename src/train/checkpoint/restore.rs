//! Restores a pipeline of any partition from a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use super::header::{self, Header};
use super::open::Checkpoint;
use super::shard_file::ShardFile;
use gpipe_torch::pipeline::{Fitting, Form, LocalState};
use gpipe_torch::{Optimizer, Pipeline, Role};

impl Checkpoint {
    /// Restores `pipe` and `optimizer` from this checkpoint.
    ///
    /// The pipeline may have another partition, other devices, another schedule or other micro-batches
    /// than the saved one. With the same micro-batches and threads per stage on the same kind of
    /// device, training continues with the same bits as without interruption. The random state of
    /// layers comes from the checkpoint too, so the pipeline's own seed does not matter.
    ///
    /// If several processes have the checkpoint open, all must call this: each reads the shards with
    /// tensors of its stages of `pipe`, and all return the same.
    ///
    /// The optimizer must be of the same kind, with the same groups. It keeps its own learning rates
    /// and other settings.
    ///
    /// # Errors
    /// [`CheckpointError::Fit`] if the model or the optimizer is another one: nothing has been changed
    /// then. If a file has changed since it was verified, or a device runs out of memory, a part may
    /// have been restored.
    pub fn restore(
        &self,
        pipe: &mut Pipeline,
        optimizer: &mut Optimizer,
    ) -> Result<(), CheckpointError> {
        let model = pipe.fitting(optimizer).map_err(CheckpointError::from);
        let fits = model.and_then(|model| Ok((self.fits(&model)?, model)));
        let (fits, model) = match fits {
            Ok((fits, model)) => (Ok(fits), Some(model)),
            Err(error) => (Err(error), None),
        };
        let all = self.together().collect(fits);
        let local = pipe.check_local(self.local());
        let local = local.map_err(|why| CheckpointError::fit(self.path(), why));
        self.together().tell(|| self.check_fit(&all?).and(local))?;
        // If this process has no model, it failed above.
        let put = model.map_or(Ok(()), |model| self.put(&model, pipe, optimizer));
        self.together().agree(put)?;
        let gone_on = pipe.go_on(self.draws());
        pipe.go_on_locally(self.local());
        self.together()
            .agree(gone_on.map_err(CheckpointError::from))
    }

    /// Loads the tensors of this process's stages.
    fn put(
        &self,
        model: &Fitting,
        pipe: &mut Pipeline,
        optimizer: &mut Optimizer,
    ) -> Result<(), CheckpointError> {
        let is_own = |role: &Role, name: &str| model.forms.contains_key(&owner(role, name));
        pipe.forget(optimizer)?;
        for (file, header) in self.shards() {
            if header.keys().any(|(role, name)| is_own(role, name)) {
                let mut tensors = header::tensors(file)?;
                tensors.retain(|one| is_own(&one.role, &one.name));
                pipe.put(optimizer, &tensors, self.local())?;
            }
        }
        Ok(())
    }

    /// Returns the saved state of local steps; `None` if replicas did not train independently.
    fn local(&self) -> Option<LocalState> {
        let saved = self.extras().get(LOCAL_PART)?;
        serde_json::from_value(saved.clone()).ok()
    }

    /// Compares the checkpoint with the stages of this process.
    fn fits(&self, model: &Fitting) -> Result<Fits, CheckpointError> {
        let mut missing: BTreeSet<&(Role, String)> = model.forms.keys().collect();
        let mut own = String::new();
        for (ShardFile { path, .. }, header) in self.shards() {
            for (key, form) in header {
                missing.remove(key);
                let is_own = check_form(key, form, &model.forms);
                let is_own = is_own.map_err(|why| CheckpointError::fit(path, why))?;
                own.push(if is_own { '1' } else { '0' });
            }
            check_optimizer(path, header, model)?;
        }
        let missing = missing.first().map(|(role, name)| {
            let what = role.in_words();
            format!("it lacks {what} `{name}`, which the model has{OTHER_MODEL}")
        });
        Ok(Fits { own, missing })
    }

    /// Checks that every tensor has a place in some process, and every process finds what it needs.
    fn check_fit(&self, all: &[Fits]) -> Result<(), CheckpointError> {
        let mut place = 0;
        for (ShardFile { path, .. }, header) in self.shards() {
            for (role, name) in header.keys() {
                let is_own = |fits: &Fits| fits.own.as_bytes().get(place) == Some(&b'1');
                if !all.iter().any(is_own) {
                    let what = role.in_words();
                    let why =
                        format!("it has {what} `{name}`, which the model has not{OTHER_MODEL}");
                    return Err(CheckpointError::fit(path, why));
                }
                place += 1;
            }
        }
        match all.iter().find_map(|fits| fits.missing.as_ref()) {
            Some(why) => Err(CheckpointError::fit(self.path(), why)),
            None => Ok(()),
        }
    }
}

/// The part of the extras with the state of local steps.
pub(super) const LOCAL_PART: &str = "local_steps";

/// The match of a checkpoint with the stages of one process.
#[derive(Debug, Serialize, Deserialize)]
struct Fits {
    /// A digit per tensor of the checkpoint, in the order of shards and labels: `1` if it belongs to
    /// this process.
    own: String,
    /// A tensor that is missing in the checkpoint.
    missing: Option<String>,
}

const OTHER_MODEL: &str =
    ": it is another model's; build the model with the sizes it was saved with";

/// Returns the parameter or buffer that a tensor belongs to.
fn owner(role: &Role, name: &str) -> (Role, String) {
    let role = match role.plain() {
        Role::Buffer => Role::Buffer,
        _ => Role::Parameter,
    };
    (role, name.to_owned())
}

/// Whether a tensor belongs to this model.
fn check_form(
    (role, name): &(Role, String),
    (kind, shape): &Form,
    model: &BTreeMap<(Role, String), Form>,
) -> Result<bool, String> {
    let Some((own_kind, own_shape)) = model.get(&owner(role, name)) else {
        return Ok(false);
    };
    // Optimizer state may differ from the parameter in shape and type.
    if matches!(role.plain(), Role::Optimizer(_)) || (kind, shape) == (own_kind, own_shape) {
        return Ok(true);
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
        if let Role::Optimizer(part) = role.plain() {
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
