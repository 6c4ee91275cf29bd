//! A blocking client of an object store.

use std::io;
use std::path::Path;

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path as Key;
use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt as _, parse_url_opts,
};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use crate::DataError;

/// Prefixes of environment variables about stores.
const OF_STORES: [&str; 3] = ["aws_", "azure_", "google_"];

/// Metadata of an object.
pub(super) type Meta = ObjectMeta;

pub(super) struct Store {
    /// The URL up to the store's names.
    base: String,
    url: String,
    objects: Box<dyn ObjectStore>,
    /// The named object or prefix.
    key: Key,
    runtime: Runtime,
}

impl Store {
    pub(super) fn open(url: &str, settings: Vec<(String, String)>) -> Result<Self, DataError> {
        let wrong = |why: &dyn std::fmt::Display| DataError::Settings(format!("{url}: {why}"));
        let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
        let env = std::env::vars_os().filter_map(|(key, value)| {
            let key = key.into_string().ok()?.to_ascii_lowercase();
            // Others of similar names have other meanings: TOKEN, for example.
            let own = OF_STORES.iter().any(|own| key.starts_with(own));
            own.then_some((key, value.into_string().ok()?))
        });
        let mut all: Vec<_> = env.collect();
        if parsed.scheme() == "http" {
            all.push(("allow_http".to_owned(), "true".to_owned()));
        }
        all.extend(settings);
        let (objects, key) = parse_url_opts(&parsed, all).map_err(|error| wrong(&error))?;
        let whole = url.trim_end_matches('/');
        let base = whole.strip_suffix(key.as_ref()).unwrap_or(whole);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("objects")
            .enable_all()
            .build()
            .map_err(DataError::Thread)?;
        Ok(Self {
            base: base.trim_end_matches('/').to_owned(),
            url: url.to_owned(),
            objects,
            key,
            runtime,
        })
    }

    /// Returns whether the URL names a single object, and the object or all below the URL, sorted by
    /// name.
    pub(super) fn all(&self) -> Result<(bool, Vec<Meta>), DataError> {
        let failed = |error| failed(&self.url, error);
        self.runtime.block_on(async {
            if !self.url.ends_with('/') {
                match self.objects.head(&self.key).await {
                    Ok(own) => return Ok((true, vec![own])),
                    // A folder of a file system, or no object of that name: list what is below.
                    Err(Error::NotFound { .. } | Error::Generic { .. }) => {}
                    Err(other) => return Err(failed(other)),
                }
            }
            let found = self.objects.list(Some(&self.key)).try_collect::<Vec<_>>();
            let mut all = found.await.map_err(failed)?;
            // Consoles of stores represent folders by empty objects.
            all.retain(|own| own.size > 0);
            all.sort_by(|one, other| one.location.as_ref().cmp(other.location.as_ref()));
            Ok((false, all))
        })
    }

    /// Passes an object's bytes to `show`, part by part.
    ///
    /// # Errors
    /// The store does not answer, the object has changed, or `show` fails.
    pub(super) fn read(
        &self,
        own: &Meta,
        show: &mut dyn FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let url = self.url_of(own);
        let changed = |now: u64| {
            let what = format!(
                "it has {now} bytes, and had {} when it was listed",
                own.size
            );
            DataError::bad_path(Path::new(&url), what)
        };
        let options = GetOptions {
            if_match: own.e_tag.clone(),
            ..GetOptions::default()
        };
        self.runtime.block_on(async {
            let asked = self.objects.get_opts(&own.location, options).await;
            let answer = asked.map_err(|error| failed(&url, error))?;
            let mut stream = answer.into_stream();
            let mut there = 0;
            while let Some(part) = stream.next().await {
                let part = part.map_err(|error| failed(&url, error))?;
                there += part.len() as u64;
                if there > own.size {
                    return Err(changed(there));
                }
                show(&part)?;
            }
            if there == own.size {
                Ok(())
            } else {
                Err(changed(there))
            }
        })
    }

    pub(super) fn url_of(&self, own: &Meta) -> String {
        format!("{}/{}", self.base, own.location)
    }

    /// Returns an object's name relative to the URL.
    pub(super) fn below(&self, own: &Meta) -> Vec<String> {
        let parts = own.location.parts();
        let mut parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
        // A single object keeps its own name.
        let skipped = self.key.parts().count().min(parts.len().saturating_sub(1));
        parts.drain(..skipped);
        parts
    }
}

fn failed(url: &str, error: Error) -> DataError {
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    DataError::read(Path::new(url), io::Error::new(kind, error))
}
