//! Location and version check of libtorch.
//!
//! A separate crate so that its build script, which has no dependencies, runs before that of
//! torch-sys: a missing libtorch is then reported in a sentence, not in a page of C++ errors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The version that tch is made for.
const VERSION: &str = "2.11.0";

/// A file that every libtorch has.
const HEADER: &str = "include/ATen/core/Tensor.h";

/// Selects the libtorch of an installed PyTorch; torch-sys reads this variable, too.
const USE_PYTORCH: &str = "LIBTORCH_USE_PYTORCH";

/// The libtorch folder (with `include` and `lib`) that `LIBTORCH` names; where
/// `LIBTORCH_USE_PYTORCH` is set, that of the Python environment's PyTorch.
///
/// # Errors
/// It is missing or of another version: what was found, and what to do.
pub fn find() -> Result<PathBuf, String> {
    let set_up =
        "run `make build` once in the checkout: it installs libtorch and links it as `.libtorch`";
    let named = env::var_os("LIBTORCH").map(PathBuf::from);
    let path = match env::var_os(USE_PYTORCH) {
        Some(_) => of_python()?,
        None => named.ok_or_else(|| {
            format!(
                "LIBTORCH is not set: point it at a libtorch {VERSION}; or set {USE_PYTORCH}=1 to take that \
                 of an installed PyTorch; or, to build gpipe-rs itself, {set_up}"
            )
        })?,
    };
    if !path.join(HEADER).exists() {
        return Err(format!(
            "no libtorch at {}: {set_up}; or point LIBTORCH at a libtorch {VERSION}",
            path.display()
        ));
    }
    match version(&path) {
        Some(found) if found.split('+').next() == Some(VERSION) => Ok(path),
        found => Err(format!(
            "libtorch at {} is version {}, but {VERSION} is needed: remove `.libtorch` and {set_up}",
            path.display(),
            found
                .as_deref()
                .unwrap_or("unknown (it has neither `version.py` nor `build-version`)"),
        )),
    }
}

/// Returns the folder of PyTorch in the Python that torch-sys uses; it need not be importable.
fn of_python() -> Result<PathBuf, String> {
    const WHERE: &str = "import importlib.util as i; s = i.find_spec('torch'); \
                         print(s.submodule_search_locations[0] if s else '')";
    // The same choice as torch-sys makes.
    let python = match env::var_os("VIRTUAL_ENV") {
        Some(_) => "python",
        None => "python3",
    };
    let told = Command::new(python).args(["-c", WHERE]).output();
    let told = told
        .map_err(|error| format!("{USE_PYTORCH} is set, and `{python}` does not start: {error}"))?;
    let path = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    if path.is_empty() {
        return Err(format!(
            "{USE_PYTORCH} is set, and `{python}` has no PyTorch: `{python} -m pip install torch=={VERSION}`, or \
             unset it"
        ));
    }
    Ok(PathBuf::from(path))
}

/// Returns whether only documentation is built, for which nothing is compiled: docs.rs has no
/// libtorch.
pub fn documents() -> bool {
    env::var_os("DOCS_RS").is_some()
}

/// Makes cargo rebuild when libtorch appears, vanishes or changes.
pub fn rerun_if_changed() {
    for name in ["LIBTORCH", USE_PYTORCH, "DOCS_RS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let path = if env::var_os(USE_PYTORCH).is_some() {
        println!("cargo:rerun-if-env-changed=VIRTUAL_ENV");
        of_python().ok()
    } else {
        env::var_os("LIBTORCH").map(PathBuf::from)
    };
    // A missing file counts as changed in every build: of the two files that may contain the
    // version, only existing ones are named; the header always is, so that a new libtorch is
    // noticed.
    if let Some(path) = path {
        println!("cargo:rerun-if-changed={}", path.join(HEADER).display());
        for file in ["version.py", "build-version"].map(|file| path.join(file)) {
            if file.exists() {
                println!("cargo:rerun-if-changed={}", file.display());
            }
        }
    }
}

/// A wheel says its version in `version.py`, a libtorch archive in `build-version`.
fn version(path: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(path.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    let text = fs::read_to_string(path.join("version.py")).ok()?;
    let line = text.lines().find(|line| line.starts_with("__version__"))?;
    Some(line.split(['\'', '"']).nth(1)?.to_owned())
}
