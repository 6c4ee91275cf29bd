//! Which shards of a checkpoint a process verifies, and so reads.

use std::collections::BTreeSet;

use super::error::CheckpointError;
use super::header::{self, Header};
use super::shard_file::ShardFile;
use super::together::Together;
use super::write::all_at_once;
use gpipe_torch::{Pipeline, Role};

/// What one of several processes needs of a checkpoint that they open together: those shards it
/// verifies. Of the others it reads the headers alone.
///
/// Where any process finds its part damaged, all know it. What a process restores from it
/// verifies again, whichever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needs {
    /// An equal share, so that all together verify every byte once: where nothing is known yet
    /// of what each will need.
    Share,
    /// The shards that hold these parameters and buffers.
    Names(BTreeSet<String>),
}

impl Needs {
    /// The parameters and buffers that a pipeline has in this process.
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn of(pipe: &mut Pipeline) -> Result<Self, CheckpointError> {
        let (parameters, buffers) = (pipe.parameters()?, pipe.buffers()?);
        let all = parameters.into_iter().chain(buffers);
        Ok(Self::Names(all.map(|(name, _)| name).collect()))
    }
}

impl Needs {
    /// The shards that are needed.
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

/// What is in all shards, those verified that are needed; a process by itself verifies all.
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
    // Another model's; or a damaged header has hidden them, which only that shard's sum tells.
    let verifies_all = !missing.is_empty();
    all_at_once(files.iter().zip(headers), |(file, header)| {
        if verifies_all || holds(&header, names) {
            return header::verify(file);
        }
        Ok(header)
    })
}
