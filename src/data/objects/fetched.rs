//! Downloads objects to a folder.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::Objects;
use super::store::Meta;
use crate::DataError;
use gpipe_torch::threads::side_by_side;

/// Number of concurrent downloads.
const AT_A_TIME: usize = 8;

/// Local copies of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The file of a single object, or the folder of all files.
    pub path: PathBuf,
    /// One file per object, in order.
    pub files: Vec<PathBuf>,
}

impl Objects {
    /// Downloads all objects to a folder below `folder`, eight at a time, named as below the URL. The
    /// folder's name depends on the store's metadata: existing files are not downloaded again, and
    /// changed objects go to another folder. Delete `folder` when it is no longer needed.
    ///
    /// # Errors
    /// The store does not answer, an object has changed meanwhile, or the folder cannot be written.
    pub fn fetched(&self, folder: &Path) -> Result<Fetched, DataError> {
        let folder = folder.join(format!("{}-{:08x}", self.name(), self.sum()));
        let fetched = side_by_side(0..self.all.len(), AT_A_TIME, |number| {
            self.fetch(&self.all[number], &folder)
        });
        let files = fetched.into_iter().collect::<Result<Vec<_>, _>>()?;
        let path = match &files[..] {
            [one] if self.single => one.clone(),
            _ => folder,
        };
        Ok(Fetched { path, files })
    }

    /// Returns the last nonempty part of the URL.
    fn name(&self) -> String {
        let mut parts = self.url.rsplit(['/', ':']).filter(|part| !part.is_empty());
        let name = parts.next().unwrap_or("objects");
        let safe = |own: char| match own {
            own if own.is_ascii_alphanumeric() || "-_.".contains(own) => own,
            _ => '_',
        };
        name.chars().map(safe).collect()
    }

    fn fetch(&self, own: &Meta, folder: &Path) -> Result<PathBuf, DataError> {
        let mut path = folder.to_owned();
        path.extend(self.store.below(own));
        if path.metadata().is_ok_and(|there| there.len() == own.size) {
            return Ok(path);
        }
        let written = |source| DataError::write(&path, source);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(written)?;
        }
        // Named after this process, as another one may download the same object.
        let mut partial = path.clone().into_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        let fetched = File::create(&partial)
            .map_err(written)
            .and_then(|mut file| {
                let mut show = |part: &[u8]| file.write_all(part).map_err(written);
                self.store.read(own, &mut show)?;
                file.sync_all().map_err(written)?;
                fs::rename(&partial, &path).map_err(written)
            });
        if fetched.is_err() {
            // The incomplete file is useless; if it cannot be deleted, it is never read either.
            let _ = fs::remove_file(&partial);
        }
        fetched.map(|()| path)
    }
}
