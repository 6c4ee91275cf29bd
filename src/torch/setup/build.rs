//! Fails early, with a clear message, if libtorch is missing or of another version.

// The crate itself cannot be its own build dependency: its one file is read twice.
#[path = "lib.rs"]
#[allow(unreachable_pub)]
mod libtorch;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=lib.rs");
    libtorch::rerun_if_changed();
    if libtorch::documents() {
        return;
    }
    if let Err(message) = libtorch::find() {
        eprintln!("\nerror: {message}\n");
        std::process::exit(1);
    }
}
