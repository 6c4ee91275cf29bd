//! Where the page about a profile and its plan goes.

use std::path::Path;

use crate::decide::{Failure, output};

/// Whether a page can be written to `path`, which must be none of the other files, each
/// with its flag: told before any work is done.
pub(crate) fn check(path: &Path, others: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
    let wrong = |why: &str| {
        Err(Failure::Usage(format!(
            "--report {}: {why}",
            path.display()
        )))
    };
    let extension = path.extension().and_then(|extension| extension.to_str());
    let extension = extension.map(str::to_lowercase);
    if !matches!(extension.as_deref(), Some("html" | "htm")) {
        return wrong("the name must end in .html: the report is a page for a browser");
    }
    if let Err(why) = output::writable(path) {
        return wrong(&why);
    }
    let same = |other: &Path| std::path::absolute(other).ok() == std::path::absolute(path).ok();
    for (flag, other) in others {
        if other.is_some_and(same) {
            return wrong(&format!("this is the file of {flag}: choose another"));
        }
    }
    Ok(())
}
