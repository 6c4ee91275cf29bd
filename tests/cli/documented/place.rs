//! A folder shaped like a clone after `make build` and `make simulated-gpus`, in which the lines of one page
//! are run.

use std::fs;
use std::iter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::given::Given;
use super::pages::{Line, root};
use crate::models::own::example;

/// Timeout for a hung line; none computes for long.
const SECONDS: &str = "600";

/// A page's folder, in which commands find the files of earlier ones.
#[derive(Debug)]
pub(super) struct Place {
    folder: tempfile::TempDir,
    /// `export` lines so far: each line runs in its own shell.
    exported: String,
    /// Variables that keep runs small where a line sets no size.
    small: toml::Table,
}

impl Place {
    pub(super) fn new(small: &toml::Table) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clone = folder.path().join("clone");
        fs::create_dir(&clone).unwrap();
        for entry in fs::read_dir(root()).unwrap() {
            let name = entry.unwrap().file_name();
            // Not the folders of builds, runs and git.
            if !["target", "runs", ".git"].contains(&name.to_str().unwrap()) {
                symlink(root().join(&name), clone.join(&name)).unwrap();
            }
        }
        fs::create_dir_all(clone.join("target/release")).unwrap();
        let program = shims().join("gpipe-rs");
        symlink(program, clone.join("target/release/gpipe-rs")).unwrap();
        let simulated = target().join("simulated-cuda");
        symlink(simulated, clone.join("target/simulated-cuda")).unwrap();
        // The shells' folders for completions.
        for folder_of_shell in [
            ".config/fish/completions",
            ".zfunc",
            ".local/share/bash-completion/completions",
        ] {
            fs::create_dir_all(folder.path().join("home").join(folder_of_shell)).unwrap();
        }
        Self {
            folder,
            exported: String::new(),
            small: small.clone(),
        }
    }

    pub(super) fn clone(&self) -> PathBuf {
        self.folder.path().join("clone")
    }

    /// Runs a line unchanged, after creating the files that it takes for granted.
    ///
    /// # Errors
    /// The line ends with another code: its output.
    pub(super) fn run(&mut self, line: &Line, given: &Given, code: i32) -> Result<(), String> {
        given.put(&line.text, &self.clone())?;
        let mut words = line.text.split_whitespace();
        if words.next() == Some("cargo") && words.any(|word| word == "--example") {
            words.next().map(example);
        }
        let output = self.shell(&format!("{}{}", self.exported, line.text), &[]);
        if line.text.starts_with("export ") {
            self.exported.extend([&line.text, "\n"]);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let panicked = said.contains("panicked at");
        if output.status.code() == Some(code) && !panicked {
            return Ok(());
        }
        Err(format!("{}: {said}", output.status))
    }

    /// Whether a program is installed.
    pub(super) fn has(&self, program: &str) -> bool {
        self.shell(&format!("command -v {program}"), &[])
            .status
            .success()
    }

    /// Runs shell code, with additional variables.
    pub(super) fn shell(&self, code: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new("timeout");
        command.args([SECONDS, "sh", "-ec", code]);
        command.current_dir(self.clone());
        // Removes variables of this test's own cargo and make, and those that would configure the command.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let foreign = ["CARGO", "GPIPE_", "MAKE", "MFLAGS", "ARGS", "RUST_"];
            if foreign.iter().any(|start| name.starts_with(start)) {
                command.env_remove(&*name);
            }
        }
        let (first, last) = (shims(), shims().join("otherwise"));
        let path = std::env::var_os("PATH").unwrap();
        let path = iter::once(first)
            .chain(std::env::split_paths(&path))
            .chain([last]);
        command
            .env("PATH", std::env::join_paths(path).unwrap())
            .envs(kept())
            .env("HOME", self.folder.path().join("home"))
            .env("PROGRAM", env!("CARGO_BIN_EXE_gpipe-rs"))
            .env("EXAMPLES", target().join("debug/examples"))
            .env("CARGO", env!("CARGO"))
            .envs(
                self.small
                    .iter()
                    .map(|(name, value)| (name, value.as_str().unwrap())),
            );
        if wants_gpus(code) && !simulates(code) {
            command.env("GPIPE_SIMULATE_GPUS", "8");
        }
        command.envs(variables.iter().copied());
        command.output().unwrap()
    }
}

/// Folders outside the temporary home that commands share: the toolchain, and downloads.
fn kept() -> [(&'static str, PathBuf); 3] {
    let folders = [
        ("RUSTUP_HOME", ".rustup"),
        ("CARGO_HOME", ".cargo"),
        ("XDG_CACHE_HOME", ".cache"),
    ];
    folders.map(|(name, folder)| {
        let given = std::env::var_os(name).map(PathBuf::from);
        let own = || Path::new(&std::env::var_os("HOME").unwrap()).join(folder);
        (name, given.unwrap_or_else(own))
    })
}

/// Whether shell code uses GPUs, which are simulated here.
pub(super) fn wants_gpus(code: &str) -> bool {
    code.contains("cuda:") || simulates(code)
}

/// Whether shell code simulates the GPUs itself.
fn simulates(code: &str) -> bool {
    ["simulate-gpus", "SIMULATE_GPUS", "simulated-gpus"]
        .iter()
        .any(|name| code.contains(name))
}

/// Whether `make simulated-gpus` has run, as it does before `make test`.
pub(super) fn has_gpus() -> bool {
    target()
        .join("simulated-cuda/libgpipe_simulated_cuda.so")
        .exists()
}

/// Programs that replace others.
fn shims() -> PathBuf {
    root().join("tests/cli/documented/bin")
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    program.parent().unwrap().parent().unwrap().to_owned()
}
