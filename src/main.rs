//! The `gpipe-rs` command: exit code only, everything else is in the library.
fn main() {}
