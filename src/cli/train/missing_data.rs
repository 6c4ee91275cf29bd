//! Advice for configured data that has moved.

use std::path::Path;

use crate::Failure;
use crate::config::{Origin, Origins};
use crate::feed::remote;

/// Adds advice for missing training data: see [`told`].
pub(super) fn data(failure: Failure, path: Option<&Path>, origins: &Origins) -> Failure {
    told(failure, path, ("data.path", "--data"), origins)
}

/// Adds advice for missing evaluation data: see [`told`].
pub(super) fn eval_data(failure: Failure, path: Option<&Path>, origins: &Origins) -> Failure {
    told(failure, path, ("eval.data", "--eval-data"), origins)
}

/// Adds advice to a failure if a configured file no longer exists.
fn told(
    failure: Failure,
    path: Option<&Path>,
    (key, flag): (&str, &str),
    origins: &Origins,
) -> Failure {
    match (failure, path, origins.of(key)) {
        (Failure::Usage(why), Some(path), Some(Origin::File { path: config, .. }))
            if !remote::is_url(path) && !path.exists() =>
        {
            Failure::Usage(format!(
                "{why}; {} names it: if it has moved, say where it is now with {flag} PATH",
                config.display()
            ))
        }
        (failure, ..) => failure,
    }
}
