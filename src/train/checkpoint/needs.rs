//! Which shards of a checkpoint a process reads and verifies.

use std::collections::BTreeSet;

use super::error::CheckpointError;
use super::header::{self, Header};
use super::shard_file::ShardFile;
use super::together::Together;
use super::write::all_at_once;
use gpipe_torch::{Pipeline, Role};

/// The shards that one of several processes verifies when they open a checkpoint together; of the
/// others it reads only the headers.
///
/// If any process finds its part damaged, all learn of it. Whatever a process restores is verified
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needs {
    /// An equal share, so that together all processes verify every byte once; for when their needs are
    /// unknown.
    Share,
    /// The shards with these parameters and buffers.
    Names(BTreeSet<String>),
}

impl Needs {
    /// Returns the parameters and buffers of a pipeline in this process.
    ///
    /// # Errors
    /// A stage's thread has ended.
    pub fn of(pipe: &mut Pipeline) -> Result<Self, CheckpointError> {
        let (parameters, buffers) = (pipe.parameters()?, pipe.buffers()?);
        let all = parameters.into_iter().chain(buffers);
        Ok(Self::Names(all.map(|(name, _)| name).collect()))
    }
}

impl Needs {
    /// Returns the needed shards.
    pub(super) fn shards<'a>(
        &'a self,
        together: &Together,
        all: &'a [(ShardFile, Header)],
    ) -> impl Iterator<Item = &'a (ShardFile, Header)> {
        let (rank, size) = (together.rank(), together.size());
        let all = all.iter().enumerate();
        let own = all.filter(move |(shard, (_, header))| match self {
            Self::Share => shard % size == rank,
            Self::Names(names) => holds(header, names),
        });
        own.map(|(_, shard)| shard)
    }
}

fn holds(header: &Header, names: &BTreeSet<String>) -> bool {
    header.keys().any(|(_, name)| names.contains(name))
}

/// Reads the headers of all shards and verifies the needed ones; a single process verifies all.
pub(super) fn headers(
    files: &[ShardFile],
    together: &Together,
    needs: &Needs,
) -> Result<Vec<Header>, CheckpointError> {
    let own = |shard: usize| shard % together.size() == together.rank();
    match needs {
        Needs::Share => all_at_once(files.iter().enumerate(), |(shard, file)| {
            if own(shard) {
                header::verify(file)
            } else {
                header::glance(file)
            }
        }),
        Needs::Names(names) => named(files, names),
    }
}

fn named(files: &[ShardFile], names: &BTreeSet<String>) -> Result<Vec<Header>, CheckpointError> {
    let headers = all_at_once(files.iter(), header::glance)?;
    let mut missing: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    for (role, name) in headers.iter().flat_map(Header::keys) {
        if matches!(role, Role::Parameter | Role::Buffer) {
            missing.remove(name.as_str());
        }
    }
    // Either the model is another one, or a damaged header hides a name, which only the shard's
    // checksum tells.
    let verifies_all = !missing.is_empty();
    all_at_once(files.iter().zip(headers), |(file, header)| {
        if verifies_all || holds(&header, names) {
            return header::verify(file);
        }
        Ok(header)
    })
}
