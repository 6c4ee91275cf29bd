//! The sites in the source: none may be missed because no part reaches it.

use std::path::Path;

/// A call that may be left out, as written in the source, and the kind of its site.
const CALLS: [(&str, &str); 11] = [
    ("cuda::wait(", "wait"),
    ("cuda::record(", "record"),
    ("cuda::finish(", "finish"),
    ("cuda::used_by(", "used_by"),
    ("cuda::enter(", "enter"),
    ("cuda::submit_guard(", "submit_guard"),
    (".guard_of_other(", "submit_guard"),
    (".submit_scope(", "submit_scope"),
    ("left_out(\"hold\")", "hold"),
    ("left_out(\"non_blocking\")", "non_blocking"),
    ("left_out(\"capture lock\")", "capture lock"),
];

/// Folders with such calls, below `src`.
const FOLDERS: [&str; 4] = [
    "data/loader",
    "torch/pipeline",
    "torch/stage",
    "torch/streams",
];

/// Excludes the switch itself, and queries for lost devices, which order nothing.
const NOT: [&str; 2] = ["left_out.rs", "streams/lost.rs"];

/// Functions whose callers are the sites.
const PASS_ON: [&str; 1] = ["Some(cuda::submit_guard(device))"];

pub(super) fn sites() -> Vec<String> {
    let mut all = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in FOLDERS {
        of_folder(root, &root.join("src").join(folder), &mut all);
    }
    all
}

fn of_folder(root: &Path, folder: &Path, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        if path.is_dir() {
            of_folder(root, &path, all);
        } else if !NOT.iter().any(|file| name.ends_with(file)) {
            let text = std::fs::read_to_string(&path).unwrap();
            for (number, line) in text.lines().enumerate() {
                let calls = CALLS.iter().filter(|(call, _)| line.contains(call));
                let calls = calls.filter(|_| !PASS_ON.contains(&line.trim()));
                all.extend(calls.map(|(_, kind)| format!("{kind} {name}:{}", number + 1)));
            }
        }
    }
}
