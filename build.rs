//! Compiles the C++ shim against libtorch and makes the binaries find it.
//!
//! libtorch is looked for where `LIBTORCH` points: `.libtorch` in this checkout
//! unless the environment says otherwise (see `.cargo/config.toml`). Without the
//! feature `torch` there is nothing to do.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

const VERSION: &str = "2.11.0";
const SHIM: &str = "src/torch/shim";
const SOURCES: [&str; 3] = ["graph.cpp", "runtime.cpp", "optim.cpp"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let torch = match libtorch() {
        Ok(path) => path,
        Err(message) => {
            eprintln!("\nerror: {message}\n");
            process::exit(1);
        }
    };
    compile(&torch);
    let lib = torch.join("lib");
    for name in ["torch_cpu", "c10"] {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    println!("cargo:rustc-env=GPIPE_LIBTORCH_LIB={}", lib.display());
    // For the build scripts of crates that depend on this one: their binaries
    // need the same rpath (DEP_GPIPE_SHIM_LIBTORCH_LIB).
    println!("cargo:libtorch_lib={}", lib.display());
}

/// The libtorch folder, or what is wrong with it and what to do.
fn libtorch() -> Result<PathBuf, String> {
    let set_up = "run `make build` once: it installs libtorch and links it as `.libtorch`";
    let path = env::var_os("LIBTORCH").map(PathBuf::from).ok_or_else(|| {
        format!("LIBTORCH is not set; inside a checkout of gpipe-rs, {set_up}; elsewhere, point it at a libtorch {VERSION}")
    })?;
    println!("cargo:rerun-if-changed={}", path.join("version.py").display());
    println!("cargo:rerun-if-changed={}", path.join("build-version").display());
    if !path.join("include/ATen/core/Tensor.h").exists() {
        return Err(format!("no libtorch at {}: {set_up}, or set LIBTORCH", path.display()));
    }
    match version(&path) {
        Some(found) if found.split('+').next() == Some(VERSION) => Ok(path),
        Some(found) => Err(format!(
            "libtorch at {} is version {found}, but this crate needs {VERSION}: remove `.libtorch` and {set_up}",
            path.display()
        )),
        None => Err(format!(
            "cannot tell the version of libtorch at {}: it has neither `version.py` nor `build-version`; {set_up}",
            path.display()
        )),
    }
}

/// A wheel says its version in `version.py`, a libtorch archive in `build-version`.
fn version(path: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(path.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    let text = fs::read_to_string(path.join("version.py")).ok()?;
    let line = text.lines().find(|line| line.starts_with("__version__"))?;
    Some(line.split(['\'', '"']).nth(1)?.to_owned())
}

fn compile(torch: &Path) {
    println!("cargo:rerun-if-changed={SHIM}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .flag("-D_GLIBCXX_USE_CXX11_ABI=1")
        .include(torch.join("include"))
        .include(torch.join("include/torch/csrc/api/include"))
        .files(SOURCES.map(|file| format!("{SHIM}/{file}")))
        .compile("gpipe_shim");
}
