//! Uses the results of runs: curves, weights for other libraries, text, the held-out loss.

#[cfg(feature = "cli")]
mod at_the_end;
#[cfg(feature = "cli")]
mod book;
#[cfg(feature = "cli")]
mod cuda_at_start;
#[cfg(feature = "cli")]
mod diverged;
#[cfg(feature = "cli")]
mod eval;
#[cfg(feature = "cli")]
mod export;
#[cfg(feature = "cli")]
mod exported;
#[cfg(feature = "cli")]
mod families;
#[cfg(feature = "cli")]
mod from_python;
#[cfg(feature = "cli")]
mod generate;
#[cfg(feature = "cli")]
mod hugging_face;
#[cfg(feature = "cli")]
mod other_files;
mod plot;
#[cfg(feature = "cli")]
mod speak;
#[cfg(feature = "cli")]
mod trained;
#[cfg(feature = "cli")]
mod wrong_use;

use std::path::Path;
use std::process::Output;

use crate::run::{gpipe, printed};

/// Checks standard error of wrong use: exit code 2, no data, no panic.
#[track_caller]
fn refused(folder: &Path, args: &str, wanted: &[&str]) {
    refusal(&gpipe(folder, args), args, wanted);
}

#[track_caller]
fn refusal(output: &Output, args: &str, wanted: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
    assert!(output.stdout.is_empty(), "{args}");
    for part in wanted {
        assert!(
            errors.contains(part),
            "{args}: `{errors}` does not say `{part}`"
        );
    }
    assert!(!errors.contains("panicked"), "{errors}");
}
