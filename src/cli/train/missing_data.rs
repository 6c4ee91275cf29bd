//! Data that is not where a configuration says.

use std::path::Path;

use crate::Failure;
use crate::config::{Origin, Origins};
use crate::feed::remote;

/// See [`told`], for the data that is trained on.
pub(super) fn data(failure: Failure, path: Option<&Path>, origins: &Origins) -> Failure {
    told(failure, path, ("data.path", "--data"), origins)
}

/// See [`told`], for the data that a run is evaluated on.
pub(super) fn eval_data(failure: Failure, path: Option<&Path>, origins: &Origins) -> Failure {
    told(failure, path, ("eval.data", "--eval-data"), origins)
}

/// The failure, with what to do where a file that a configuration names is not there any more.
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
