//! Why a process cannot join its world.

use std::io;
use std::time::Duration;

use thiserror::Error;

use super::WordsError;
use crate::torch::TorchError;

/// Why a process cannot join its world.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The launcher's words are not right.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// Rank 0 cannot serve the store.
    #[error(
        "rank 0 cannot serve the store at {host}:{port}: {source} (MASTER_ADDR must be this host, and \
         MASTER_PORT a port that nobody else has)"
    )]
    Serve {
        /// As the words have it.
        host: String,
        /// As the words have it.
        port: u16,
        /// What the system says.
        r#source: TorchError,
    },
    /// The store is not there.
    #[error(
        "no store at {host}:{port} after {} s: {why} (rank 0, or the launcher, must run there, and \
         this host must reach that port)",
        .after.as_secs_f64()
    )]
    Unreachable {
        /// As the words have it.
        host: String,
        /// As the words have it.
        port: u16,
        /// How long it was tried.
        after: Duration,
        /// What the last try said.
        why: String,
    },
    /// Something else is where the store should be.
    #[error(
        "what is at {host}:{port} is no store of a run: {why} (MASTER_PORT must be a port of the host \
         MASTER_ADDR that nobody else has)"
    )]
    NoStore {
        /// As the words have it.
        host: String,
        /// As the words have it.
        port: u16,
        /// What it did.
        why: String,
    },
    /// Not all processes have come.
    #[error(
        "of {size} processes, rank{} {} did not come within {} s: look at what they printed",
        if ranks.len() == 1 { "" } else { "s" },
        listed(ranks),
        .after.as_secs_f64()
    )]
    Absent {
        /// Who is missing.
        ranks: Vec<usize>,
        /// How many should be there.
        size: usize,
        /// How long the others were waited for.
        after: Duration,
    },
    /// There is another process with the same rank.
    #[error(
        "rank {rank} is there already, as {other}: two runs meet at the same MASTER_ADDR and \
         MASTER_PORT, or two processes have the same RANK"
    )]
    Taken {
        /// The rank of both.
        rank: usize,
        /// Host and number of the other process.
        other: String,
    },
    /// The processes do not agree on what they are.
    #[error("this process is one of {own}, and the one that came first is one of {other}")]
    Differ {
        /// Size and version, as this process has them.
        own: String,
        /// As the first one has them.
        other: String,
    },
    /// The store is there, but fails.
    #[error("the store fails: {0}")]
    Store(#[from] TorchError),
    /// The system gives no thread.
    #[error("no thread that watches the other processes: {0}")]
    Thread(io::Error),
}

impl WorldError {
    /// Whether the words are wrong, rather than something failed on the way.
    pub fn is_wrong_use(&self) -> bool {
        matches!(self, Self::Words(_))
    }
}

fn listed(ranks: &[usize]) -> String {
    const MOST: usize = 16;
    let mut names: Vec<_> = ranks.iter().take(MOST).map(ToString::to_string).collect();
    if ranks.len() > MOST {
        names.push(format!("and {} more", ranks.len() - MOST));
    }
    names.join(", ")
}
