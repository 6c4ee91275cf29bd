//! Objects of a store: S3, Google Cloud Storage, Azure or a web server, through the crate
//! `object_store`.

mod fetched;
mod store;

use std::fmt;
use std::path::PathBuf;

use super::{DataError, Place, Source};
use store::{Meta, Store};

pub use fetched::Fetched;

/// Size limit of an object read into memory.
const MOST: u64 = 1 << 31;

/// The objects below a URL, sorted by name: `s3://bucket/train/`, `gs://`, `az://`, `https://`,
/// `file://`. Credentials come from the environment, as for other programs: `AWS_ACCESS_KEY_ID`,
/// `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and so on.
///
/// As a source, its items are the bytes of whole objects, which workers request on demand: use more
/// workers than there are cores. Files with many items each are better downloaded first by
/// [`Objects::fetched`], and read by another source.
///
/// ```no_run
/// use gpipe::data::{Dataset, Objects};
///
/// let sizes = Dataset::new(Objects::open("s3://bucket/train/")?).map(|own| Ok(own.bytes.len() as i64));
/// let batches = sizes.shuffle(usize::MAX, 7).batch(32).workers(16);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Objects {
    url: String,
    store: Store,
    all: Vec<Meta>,
    /// Whether the URL names a single object.
    single: bool,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("url", &self.url)
            .field("objects", &self.all.len())
            .finish_non_exhaustive()
    }
}

/// An object and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Full name in the store.
    pub key: String,
    /// Contents of the object.
    pub bytes: Vec<u8>,
}

impl Objects {
    /// Opens the object of a URL, or all objects below it.
    ///
    /// # Errors
    /// The URL is not of a store, the store does not answer, or it has no object of that name.
    pub fn open(url: &str) -> Result<Self, DataError> {
        Self::with(url, std::iter::empty::<(String, String)>())
    }

    /// Like [`Objects::open`], with settings of the store, which override the environment: `endpoint`,
    /// `region`, `access_key_id`, `allow_http`, and others of the crate `object_store`.
    ///
    /// # Errors
    /// As [`Objects::open`].
    pub fn with<K: Into<String>, V: Into<String>>(
        url: &str,
        settings: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, DataError> {
        let settings = settings
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()));
        let store = Store::open(url, settings.collect())?;
        let (single, all) = store.all()?;
        if all.is_empty() {
            let what = format!("{url}: there is no object of that name, nor below it");
            return Err(DataError::Settings(what));
        }
        let url = url.to_owned();
        Ok(Self {
            url,
            store,
            all,
            single,
        })
    }

    /// Returns the names of all objects.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|own| own.location.as_ref())
    }

    /// Returns the checksum of names, sizes and versions.
    fn sum(&self) -> u32 {
        let mut sum = 0;
        for own in &self.all {
            let changed = match &own.e_tag {
                Some(tag) => tag.clone(),
                None => own.last_modified.to_rfc3339(),
            };
            for part in [own.location.as_ref(), "\0", &changed, "\0"] {
                sum = crc32c::crc32c_append(sum, part.as_bytes());
            }
            sum = crc32c::crc32c_append(sum, &own.size.to_le_bytes());
        }
        sum
    }
}

impl Source for Objects {
    type Item = Object;

    fn len(&self) -> usize {
        self.all.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Object, DataError> {
        let own = &self.all[index];
        if own.size > MOST {
            return Err(DataError::Bad {
                place: self.place(epoch, index),
                what: format!("an object of {} bytes is too large for an item", own.size),
            });
        }
        let mut bytes = Vec::with_capacity(own.size as usize);
        self.store.read(own, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        let key = own.location.to_string();
        Ok(Object { key, bytes })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        Place::Path(PathBuf::from(self.store.url_of(&self.all[index])))
    }

    fn identity(&self) -> String {
        let bytes: u64 = self.all.iter().map(|own| own.size).sum();
        let (objects, sum) = (self.len(), self.sum());
        format!("{objects} objects of {bytes} bytes with checksum {sum:08x}")
    }
}
