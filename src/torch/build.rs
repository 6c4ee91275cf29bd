//! Compiles the C++ shim against libtorch and makes the binaries find it.
//!
//! libtorch is looked for where `LIBTORCH` points: `.libtorch` in this checkout
//! unless the environment says otherwise (see `.cargo/config.toml`), or in an installed PyTorch
//! where `LIBTORCH_USE_PYTORCH` says so.

use std::path::{Path, PathBuf};
use std::{env, fs};

const FOLDER: &str = "shim";
/// Sources by unit of compilation: libtorch's headers take most of the time, and are read once a unit.
/// Files of a unit have no names of their own in common.
const UNITS: &[&[&str]] = &[
    &[
        "aliases",
        "autocast",
        "cuda_graphs",
        "driver",
        "gradients",
        "lost",
        "marks",
        "memory",
        "nccl",
        "operators",
        "optim",
    ],
    &[
        "graph",
        "pool",
        "products",
        "random",
        "runtime",
        "saved_tensors",
        "simulated",
        "split",
        "streams",
    ],
    &["walk", "weightless", "world"],
    &["onednn"],
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
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let unit = |(number, names): (usize, &&[&str])| {
        let include = |name| format!("#include \"{name}.cpp\"\n");
        let file = out.join(format!("unit_{number}.cpp"));
        fs::write(&file, names.iter().map(include).collect::<String>())
            .expect("cargo made the folder");
        file
    };
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
        .files(UNITS.iter().enumerate().map(unit))
        .compile("gpipe_shim");
}
