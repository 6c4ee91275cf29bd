//! Failures and losses that end the work of all processes.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use gpipe_engine::EngineError;

/// Exit code of a process that ends because another one is gone: a restart may help
/// (`EX_TEMPFAIL`).
pub const RESTART_MAY_HELP: u8 = 75;

/// The process that failed first, as all processes of the world name it.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lost {
    /// Its rank; `None` if the launcher's own store is gone.
    pub rank: Option<usize>,
    /// Its host.
    pub host: String,
    /// Description of the failure by the process that noticed it.
    pub why: String,
    /// Whether the process is gone or silent. Otherwise it has reported its own failure, is still
    /// alive, and all can continue with [`World::renew`](super::World::renew).
    pub gone: bool,
    /// Its progress in votes: work that all had completed before counts.
    #[serde(default)]
    pub(super) at: u64,
    /// Whether only its silence suggests that it is gone.
    #[serde(default)]
    pub(super) silent: bool,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, why, .. } = self;
        match (self.rank, self.gone) {
            (Some(rank), true) => write!(f, "rank {rank} on `{host}` is lost: {why}"),
            (Some(rank), false) => write!(f, "rank {rank} on `{host}` failed: {why}"),
            (None, _) => write!(f, "the launcher's store on `{host}` is lost: {why}"),
        }
    }
}

/// Converts to the engine's error.
impl From<Lost> for gpipe_engine::Lost {
    fn from(lost: Lost) -> Self {
        Self {
            rank: lost.rank.unwrap_or_default(),
            why: format!("{} (on `{}`)", lost.why, lost.host),
        }
    }
}

/// A process that is gone is lost; one that is alive has failed.
impl From<Lost> for EngineError {
    fn from(lost: Lost) -> Self {
        let gone = lost.gone;
        let lost: gpipe_engine::Lost = lost.into();
        if gone {
            return Self::Lost(lost);
        }
        let gpipe_engine::Lost { rank, why } = lost;
        Self::Elsewhere { rank, why }
    }
}

impl Lost {
    /// Returns the exit code of a process that ends for this reason: [`RESTART_MAY_HELP`] if the
    /// other process is gone, otherwise 1, as the failure would recur.
    pub fn exit_code(&self) -> u8 {
        if self.gone { RESTART_MAY_HELP } else { 1 }
    }
}

/// End of a generation of the world, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// All are done.
    Left,
    /// A process failed first.
    Lost(Lost),
}

/// Longest text sent to the others, in bytes.
const LONGEST: usize = 16 << 10;

impl End {
    pub(super) fn written(&self) -> Vec<u8> {
        // Plain data always serializes.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes the text of another process, which may be anything.
    pub(super) fn read(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_else(|_| {
            Self::Lost(Lost {
                rank: None,
                host: String::new(),
                why: format!("it holds `{}`", String::from_utf8_lossy(bytes)),
                gone: true,
                at: 0,
                silent: false,
            })
        })
    }

    /// Returns whether nothing can come after it.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Lost(Lost { gone: false, .. }))
    }
}

/// Shortens a text to the longest that is sent.
pub(super) fn short(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_as_it_was_written() {
        let lost = Lost {
            rank: Some(3),
            host: "node-3".to_owned(),
            why: "a \"layer\"\nfailed \u{e4}".to_owned(),
            gone: false,
            at: 7,
            silent: true,
        };
        for end in [End::Left, End::Lost(lost)] {
            assert_eq!(End::read(&end.written()), end);
        }
        let odd = End::read(b"\xff{");
        assert!(odd.is_final() && matches!(odd, End::Lost(lost) if lost.rank.is_none()));
        assert_eq!(short(&"\u{e4}".repeat(LONGEST)).len(), LONGEST);
    }
}
