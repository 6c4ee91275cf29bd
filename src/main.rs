//! The `gpipe-rs` command: exit code only, everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpipe::cli::main()
}
