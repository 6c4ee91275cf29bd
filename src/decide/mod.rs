//! The command line's verbs that need no tensors: `launch`, `plan`, `plot`, `schedule`,
//! `simulate`, and what shells and `man` are told, one file or folder a verb; and what every verb needs, those of
//! [`cli`](crate::cli) too: reading, writing, refusing.
//!
//! Data goes to standard output, everything else to standard error. Exit code 0
//! is success, 1 a run that failed, 2 wrong use; `launch` has that of the process that failed.

mod command;
mod failure;
pub(crate) mod input;
mod launch;
pub(crate) mod names;
pub(crate) mod near;
pub(crate) mod output;
pub(crate) mod plan;
mod plot;
pub(crate) mod reserve;
pub(crate) mod said;
mod schedule;
pub(crate) mod shell;
mod simulate;
mod singles;
mod spread;
pub(crate) mod table;
mod waiting;

use std::io::{IsTerminal as _, Write as _};

pub use command::main;
pub(crate) use command::{Cli, NAME, Verb, execute, run};
pub(crate) use failure::{BY_SIGNAL, Failure, ended};

/// A line on standard error, broken between words where that is a terminal; where it is closed
/// or full, nobody can be told.
pub(crate) fn say(line: &str) {
    let mut err = std::io::stderr().lock();
    let line = output::plain(line);
    let _ = if err.is_terminal() {
        writeln!(err, "{}", output::wrapped(&line, output::width(None)))
    } else {
        writeln!(err, "{line}")
    };
}
