//! A store that is asked from threads that wait for the answer.

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

/// What variables of the environment begin with that are about stores.
const OF_STORES: [&str; 3] = ["aws_", "azure_", "google_"];

/// What a store says of an object.
pub(super) type Meta = ObjectMeta;

pub(super) struct Store {
    /// The URL up to the store's names.
    base: String,
    url: String,
    objects: Box<dyn ObjectStore>,
    /// What was named.
    key: Key,
    runtime: Runtime,
}

impl Store {
    pub(super) fn open(url: &str, settings: Vec<(String, String)>) -> Result<Self, DataError> {
        let wrong = |why: &dyn std::fmt::Display| DataError::Settings(format!("{url}: {why}"));
        let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
        let env = std::env::vars_os().filter_map(|(key, value)| {
            let key = key.into_string().ok()?.to_ascii_lowercase();
            // Others that are called so mean something else: TOKEN, say.
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

    /// Whether the URL is that of an object; that one, or all below it, by their names.
    pub(super) fn all(&self) -> Result<(bool, Vec<Meta>), DataError> {
        let failed = |error| failed(&self.url, error);
        self.runtime.block_on(async {
            if !self.url.ends_with('/') {
                match self.objects.head(&self.key).await {
                    Ok(own) => return Ok((true, vec![own])),
                    // A folder of a file system, or nothing of that name: what is below it tells.
                    Err(Error::NotFound { .. } | Error::Generic { .. }) => {}
                    Err(other) => return Err(failed(other)),
                }
            }
            let found = self.objects.list(Some(&self.key)).try_collect::<Vec<_>>();
            let mut all = found.await.map_err(failed)?;
            // What stands for a folder in consoles of stores has no bytes, and is none of the data.
            all.retain(|own| own.size > 0);
            all.sort_by(|one, other| one.location.as_ref().cmp(other.location.as_ref()));
            Ok((false, all))
        })
    }

    /// Shows the bytes of an object, part by part.
    ///
    /// # Errors
    /// The store does not answer, or the object is another one by now; or what `show` says.
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

    /// An object's name below what was named.
    pub(super) fn below(&self, own: &Meta) -> Vec<String> {
        let parts = own.location.parts();
        let mut parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
        // Of a single object its name is left.
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
