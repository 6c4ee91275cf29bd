//! What ends the work of all processes.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::engine::{self, EngineError};

/// Exit code of a process that ends since another one is gone: a new start may help
/// (`EX_TEMPFAIL`).
pub const RESTART_MAY_HELP: u8 = 75;

/// The process that failed first, as all processes of the world name it.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lost {
    /// Its rank; none where it is the launcher's own store that is gone.
    pub rank: Option<usize>,
    /// Its host.
    pub host: String,
    /// What happened, in the words of whoever noticed.
    pub why: String,
    /// Whether the process is gone, or silent. Else it has said itself that it failed, is
    /// there, and all can go on with [`World::renew`](super::World::renew).
    pub gone: bool,
    /// How far it was, by a count of its own: what others had done together before is done.
    #[serde(default)]
    pub(super) at: u64,
    /// Whether nothing tells that it is gone but its silence.
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

/// In the engine's words.
impl From<Lost> for engine::Lost {
    fn from(lost: Lost) -> Self {
        Self {
            rank: lost.rank.unwrap_or_default(),
            why: format!("{} (on `{}`)", lost.why, lost.host),
        }
    }
}

/// Who is gone is lost; who is there has failed.
impl From<Lost> for EngineError {
    fn from(lost: Lost) -> Self {
        let gone = lost.gone;
        let lost: engine::Lost = lost.into();
        if gone {
            return Self::Lost(lost);
        }
        let engine::Lost { rank, why } = lost;
        Self::Elsewhere { rank, why }
    }
}

impl Lost {
    /// What a process that ends for this reason leaves as its exit code: [`RESTART_MAY_HELP`]
    /// where the other one is gone, else 1, as what failed there would fail again.
    pub fn exit_code(&self) -> u8 {
        if self.gone { RESTART_MAY_HELP } else { 1 }
    }
}

/// How a generation of the world ends, as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// All are done.
    Left,
    /// Somebody failed first.
    Lost(Lost),
}

/// The longest text that is told to the others, in bytes.
const LONGEST: usize = 16 << 10;

impl End {
    pub(super) fn written(&self) -> Vec<u8> {
        // Plain data, of which JSON leaves nothing out.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What another process has written, which may be anything.
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

    /// Whether nothing can come after it.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::Lost(Lost { gone: false, .. }))
    }
}

/// Not longer than what is told to others.
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
