//! Lets this package's binaries find the libtorch that `gpipe-torch` was built against.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(lib) = std::env::var("DEP_GPIPE_TORCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
        // For the build scripts of crates that depend on this one: their binaries need the
        // same rpath (DEP_GPIPE_SHIM_LIBTORCH_LIB).
        println!("cargo:libtorch_lib={lib}");
    }
}
