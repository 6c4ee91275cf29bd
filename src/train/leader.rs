//! Work that one process does for all processes of a run.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::TrainError;
use gpipe_torch::{Pipeline, TorchError};

/// Whether this process writes the run's files: rank 0, or a single process.
pub(super) fn leads(pipe: &Pipeline) -> bool {
    pipe.world().is_none_or(|world| world.rank() == 0)
}

/// Makes a value in rank 0 and sends it to all.
///
/// # Errors
/// The error of rank 0, in all.
pub(super) fn made_by_leader<T: Serialize + DeserializeOwned>(
    pipe: &Pipeline,
    what: &str,
    make: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let made = leads(pipe).then(make).transpose();
    let agreed = pipe.agree(what, made.as_ref().err().map(ToString::to_string));
    let made = made?;
    agreed?;
    // As a list: `Some(None)` and `None` are the same in JSON.
    let made: Vec<T> = made.into_iter().collect();
    let all = pipe.share(made)?.into_iter();
    let first = all.flatten().next();
    Ok(first
        .ok_or_else(|| TorchError::new("nobody leads"))
        .map_err(gpipe_torch::Error::from)?)
}
