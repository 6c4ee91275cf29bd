//! What is in an object store: S3, Google Cloud Storage, Azure, a web server, through the crate
//! `object_store`.

mod fetched;
mod store;

use std::fmt;
use std::path::PathBuf;

use super::{DataError, Place, Source};
use store::{Meta, Store};

pub use fetched::Fetched;

/// An object of more bytes is none that anybody wants in memory.
const MOST: u64 = 1 << 31;

/// The objects below a URL, in the order of their names: `s3://bucket/train/`, `gs://`, `az://`,
/// `https://`, `file://`. Who one is to the store the environment says, as for other programs:
/// `AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME` and so on.
///
/// As a source its items are the bytes of whole objects, which workers ask for when they need them: take
/// more workers than there are cores. Files with many items in each are brought to a folder first, by
/// [`Objects::fetched`], and read there by whatever source.
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
    /// Whether the URL is that of an object.
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
    /// Its name in the store, folders and all.
    pub key: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl Objects {
    /// The object of a URL, or all objects below it.
    ///
    /// # Errors
    /// It is no URL of a store; the store does not answer, or knows nothing of that name.
    pub fn open(url: &str) -> Result<Self, DataError> {
        Self::with(url, std::iter::empty::<(String, String)>())
    }

    /// The same with settings of the store, which come before those of the environment: `endpoint`,
    /// `region`, `access_key_id`, `allow_http`, what the crate `object_store` knows.
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

    /// The names of all objects.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|own| own.location.as_ref())
    }

    /// The checksum of names, sizes and what the store says their versions are.
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
