//! When the CUDA half of libtorch is loaded, shown with stand-ins for it and for the driver.

use std::path::Path;
use std::process::{Command, Output};

const DRIVER: &str = "int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }";

/// Leaves a file when it is loaded, and tells libtorch nothing.
const HALF: &str = "#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen(getenv(\"LOADED\"), \"w\")); }";

pub(super) fn compile(folder: &Path, library: &str, source: &str) {
    let path = folder.join("source.c");
    std::fs::write(&path, source).unwrap();
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.join(library))
        .arg(&path)
        .status();
    assert!(done.unwrap().success());
}

/// Runs the command with these libraries; also returns whether the CUDA half was loaded.
fn run(folder: &Path, visible: Option<&str>, command: &str) -> (Output, bool) {
    let loaded = folder.join("loaded");
    let mut run = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    run.arg(command)
        .env("LD_LIBRARY_PATH", folder)
        .env("LOADED", &loaded)
        .env_remove("CUDA_VISIBLE_DEVICES");
    if let Some(visible) = visible {
        run.env("CUDA_VISIBLE_DEVICES", visible);
    }
    let output = run.output().unwrap();
    (output, std::fs::remove_file(loaded).is_ok())
}

/// libtorch remembers its first answer to whether CUDA is available, and a seed, a convolution or a backward
/// on the CPU asks. Regression test: a program that did one of these before building a pipeline had no CUDA
/// devices, and was told to check its driver.
#[test]
fn where_there_is_a_driver_it_is_there_before_anybody_can_ask() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "libtorch_cuda.so", HALF);
    // The machine may have a real driver.
    let (_, loaded) = run(folder.path(), Some(""), "--version");
    assert!(!loaded, "all devices are hidden");
    compile(folder.path(), "libcuda.so.1", DRIVER);
    let (output, loaded) = run(folder.path(), None, "--version");
    assert!(loaded && output.status.success());
    assert!(run(folder.path(), Some("0"), "--version").1);
    for hidden in ["", "-1"] {
        assert!(!run(folder.path(), Some(hidden), "--version").1);
    }
}

#[test]
fn where_it_came_too_late_the_words_say_so() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "libtorch_cuda.so", HALF);
    compile(folder.path(), "libcuda.so.1", DRIVER);
    let (output, _) = run(folder.path(), Some(""), "env");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.contains("call `gpipe::device::cuda_available()` first thing in `main`"),
        "{told}"
    );
}
