//! Where libtorch is, and whether it is the right one.
//!
//! A crate of its own so that its build script, which depends on nothing, runs
//! before that of torch-sys: a missing libtorch is then told in a sentence, not
//! in a page of C++ errors.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The version that tch is made for.
const VERSION: &str = "2.11.0";

/// A file that every libtorch has.
const HEADER: &str = "include/ATen/core/Tensor.h";

/// The libtorch folder (with `include` and `lib`) that `LIBTORCH` names.
///
/// # Errors
/// It is missing or of another version: what was found, and what to do.
pub fn find() -> Result<PathBuf, String> {
    let set_up =
        "run `make build` once in the checkout: it installs libtorch and links it as `.libtorch`";
    let path = env::var_os("LIBTORCH").map(PathBuf::from).ok_or_else(|| {
        format!("LIBTORCH is not set: point it at a libtorch {VERSION}; or, to build gpipe-rs itself, {set_up}")
    })?;
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

/// Has cargo look again when libtorch appears, vanishes or changes.
pub fn rerun_if_changed() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // A file that is missing counts as changed at every build: of the two that may
    // tell the version, only those that are there are named; the header always is,
    // so that a libtorch that appears is noticed.
    if let Some(path) = env::var_os("LIBTORCH").map(PathBuf::from) {
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
