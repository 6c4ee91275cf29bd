//! Errors of joining a world.

use std::io;
use std::time::Duration;

use thiserror::Error;

use super::WordsError;
use crate::TorchError;

/// Reason why a process cannot join its world.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorldError {
    /// The launcher's environment variables are invalid.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// Rank 0 cannot serve the store.
    #[error(
        "rank 0 cannot serve the store at {host}:{port}: {source} (MASTER_ADDR must be this host, and \
         MASTER_PORT a port that nobody else has)"
    )]
    Serve {
        /// Host in the environment.
        host: String,
        /// Port in the environment.
        port: u16,
        /// Error of the system.
        r#source: TorchError,
    },
    /// The store cannot be reached.
    #[error(
        "no store at {host}:{port} after {} s: {why} (rank 0, or the launcher, must run there, and \
         this host must reach that port)",
        .after.as_secs_f64()
    )]
    Unreachable {
        /// Host in the environment.
        host: String,
        /// Port in the environment.
        port: u16,
        /// How long the process tried.
        after: Duration,
        /// Error of the last attempt.
        why: String,
    },
    /// Something else is at the store's address.
    #[error(
        "what is at {host}:{port} is no store of a run: {why} (MASTER_PORT must be a port of the host \
         MASTER_ADDR that nobody else has)"
    )]
    NoStore {
        /// Host in the environment.
        host: String,
        /// Port in the environment.
        port: u16,
        /// Its behaviour.
        why: String,
    },
    /// Some processes have not come.
    #[error(
        "of {size} processes, rank{} {} did not come within {} s: look at what they printed",
        if ranks.len() == 1 { "" } else { "s" },
        listed(ranks),
        .after.as_secs_f64()
    )]
    Absent {
        /// Missing ranks.
        ranks: Vec<usize>,
        /// Number of processes expected.
        size: usize,
        /// How long they were awaited.
        after: Duration,
    },
    /// Another process has the same rank.
    #[error(
        "rank {rank} is there already, as {other}: two runs meet at the same MASTER_ADDR and \
         MASTER_PORT, or two processes have the same RANK"
    )]
    Taken {
        /// The rank of both.
        rank: usize,
        /// Host and process id of the other process.
        other: String,
    },
    /// The processes disagree on size or version.
    #[error("this process is one of {own}, and the one that came first is one of {other}")]
    Differ {
        /// Size and version of this process.
        own: String,
        /// Size and version of the first process.
        other: String,
    },
    /// The store is reachable, but fails.
    #[error("the store fails: {0}")]
    Store(#[from] TorchError),
    /// The system provides no thread.
    #[error("no thread that watches the other processes: {0}")]
    Thread(io::Error),
}

impl WorldError {
    /// Returns whether the environment is wrong, as opposed to a failure at run time.
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
