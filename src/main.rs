//! The `gpipe-rs` command: exit code only, everything else is in the library.

use std::process::ExitCode;

#[cfg(feature = "cli")]
use gpipe::cli as command;
#[cfg(not(feature = "cli"))]
use gpipe::decide as command;

fn main() -> ExitCode {
    command::main()
}
