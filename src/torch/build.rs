//! Compiles the C++ shim against libtorch and makes the binaries find it.
//!
//! libtorch is looked for where `LIBTORCH` points: `.libtorch` in this checkout
//! unless the environment says otherwise (see `.cargo/config.toml`), or in an installed PyTorch
//! where `LIBTORCH_USE_PYTORCH` says so.

use std::path::Path;

const FOLDER: &str = "shim";
const SOURCES: &[&str] = &[
    "aliases.cpp",
    "autocast.cpp",
    "cuda_graphs.cpp",
    "driver.cpp",
    "graph.cpp",
    "gradients.cpp",
    "lost.cpp",
    "marks.cpp",
    "memory.cpp",
    "nccl.cpp",
    "onednn.cpp",
    "operators.cpp",
    "optim.cpp",
    "pool.cpp",
    "products.cpp",
    "random.cpp",
    "runtime.cpp",
    "saved_tensors.cpp",
    "simulated.cpp",
    "split.cpp",
    "streams.cpp",
    "walk.cpp",
    "weightless.cpp",
    "world.cpp",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    gpipe_libtorch::rerun_if_changed();
    if gpipe_libtorch::documents() {
        return;
    }
    let torch = match gpipe_libtorch::find() {
        Ok(path) => path,
        Err(message) => {
            eprintln!("\nerror: {message}\n");
            std::process::exit(1);
        }
    };
    compile(&torch);
    let lib = torch.join("lib");
    for name in ["torch_cpu", "c10"] {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // For the build scripts of crates that depend on this one: their binaries
    // need the same rpath (DEP_GPIPE_TORCH_LIBTORCH_LIB).
    println!("cargo:libtorch_lib={}", lib.display());
}

fn compile(torch: &Path) {
    println!("cargo:rerun-if-changed={FOLDER}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .warnings(false)
        .flag("-D_GLIBCXX_USE_CXX11_ABI=1")
        // Stand-ins for the headers of gloo, which are not in the wheel.
        .include(FOLDER)
        .include(torch.join("include"))
        .include(torch.join("include/torch/csrc/api/include"))
        .files(SOURCES.iter().map(|file| format!("{FOLDER}/{file}")))
        .compile("gpipe_shim");
}
