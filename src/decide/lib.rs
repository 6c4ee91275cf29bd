//! The command line's verbs that need no tensors: `launch`, `plan`, `plot`, `schedule`,
//! `simulate`, and what shells and `man` are told, one file or folder a verb; and what every verb needs, those of
//! `gpipe-cli` too: reading, writing, refusing.
//!
//! Data goes to standard output, everything else to standard error. Exit code 0
//! is success, 1 a run that failed, 2 wrong use; `launch` has that of the process that failed.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod command;
mod failure;
pub mod find_run;
pub mod input;
mod launch;
mod micro_batch_counts;
pub mod names;
pub mod output;
pub mod plan;
mod plot;
mod replica_node_flags;
pub mod reserve;
mod schedule;
pub mod shell;
mod simulate;
mod slow_notice;
pub mod table;
pub mod titled_lines;

use std::io::{IsTerminal as _, Write as _};

pub use command::main;
pub use command::{Cli, NAME, Verb, execute, run};
pub use failure::{BY_SIGNAL, Failure, ended};

/// Prints a line on standard error, broken between words on a terminal. If standard error is closed or full,
/// the line is lost.
pub fn say(line: &str) {
    let mut err = std::io::stderr().lock();
    let line = output::plain(line);
    let _ = if err.is_terminal() {
        writeln!(err, "{}", output::wrapped(&line, output::width(None)))
    } else {
        writeln!(err, "{line}")
    };
}
