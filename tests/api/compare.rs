//! Compares the public API of each library with its snapshot in this folder, from the JSON that
//! `make check` has rustdoc write. `make api` writes the snapshots anew.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use anyhow::{Context, ensure};

/// The libraries that a program can name: the facade, and the crates that it re-exports.
const LIBRARIES: [&str; 6] = [
    "gpipe",
    "gpipe_data",
    "gpipe_models",
    "gpipe_partitioner",
    "gpipe_torch",
    "gpipe_train",
];

fn main() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let documents = Path::new(&target).join("doc");
    let mut changed = Vec::new();
    for library in LIBRARIES {
        let json = documents.join(library).with_extension("json");
        let api = public_api::Builder::from_rustdoc_json(&json)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build()
            .with_context(|| format!("{}: run `make check` first", json.display()))?;
        let mut text = String::new();
        for item in api.items() {
            writeln!(text, "{item}")?;
        }
        let snapshot = folder.join(library).with_extension("txt");
        if fs::read_to_string(&snapshot).is_ok_and(|before| before == text) {
            continue;
        }
        if env::var_os("GPIPE_WRITE_API").is_none() {
            changed.push(snapshot.display().to_string());
        }
        fs::write(&snapshot, text)?;
    }
    ensure!(
        changed.is_empty(),
        "the public API is not that of its snapshots. `git diff` shows the changes, which are written to {}: \
         commit them if they are meant",
        changed.join(", ")
    );
    Ok(())
}
