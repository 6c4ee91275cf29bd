//! Data of object stores, downloaded to this machine.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Whether a path is the URL of a store: `s3://bucket/train/`.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_string_lossy().contains("://")
}

/// Returns the local path of data: the path itself, or a URL's download in the user's cache, which
/// later runs reuse.
///
/// # Errors
/// The store does not answer or has no such object, or this program was built without stores.
pub(crate) fn local(path: &Path) -> Result<Cow<'_, Path>, String> {
    if is_url(path) {
        let url = path.to_string_lossy();
        fetched(&url).map(Cow::Owned)
    } else {
        Ok(Cow::Borrowed(path))
    }
}

#[cfg(feature = "object-store")]
fn fetched(url: &str) -> Result<PathBuf, String> {
    let home = |name: &str| std::env::var_os(name).filter(|own| !own.is_empty());
    let cache = home("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| home("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache.ok_or("there is no folder to bring it to: set XDG_CACHE_HOME")?;
    let fetched = gpipe_data::Objects::open(url)
        .and_then(|objects| objects.fetched(&cache.join("gpipe-rs/objects")));
    fetched
        .map(|own| own.path)
        .map_err(|error| error.to_string())
}

#[cfg(not(feature = "object-store"))]
fn fetched(_: &str) -> Result<PathBuf, String> {
    Err(
        "this program reads nothing from other machines: copy it to this one, or build the program with \
         object stores (cargo build --release --features object-store)"
            .to_owned(),
    )
}
