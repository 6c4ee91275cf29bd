//! Build script for crates that depend on gpipe-rs: lets their binaries and tests find libtorch where
//! gpipe-rs was built against it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(lib) = std::env::var("DEP_GPIPE_SHIM_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
