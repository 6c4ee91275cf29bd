//! The sites as the sources have them: none is to be missed because no part reaches it.

use std::path::Path;

/// A call of what asks `left_out`, as it stands in a line, and how a site names it.
const CALLS: [(&str, &str); 11] = [
    ("backend.wait(", "wait"),
    ("backend.record(", "record"),
    (".point(", "record"),
    ("backend.finish(", "finish"),
    ("self.finish(&", "finish"),
    ("backend.used_by(", "used_by"),
    ("backend.enter(", "enter"),
    ("backend.submit_guard(", "submit_guard"),
    (".guard_of_other(", "submit_guard"),
    (".submit_scope(", "submit_scope"),
    ("left_out(\"", ""),
];

/// Where these are, below `src`.
const FOLDERS: [&str; 4] = ["data/loader", "pipeline", "torch/stage", "torch/streams"];

/// The functions that pass on where they were called, not themselves sites.
const PASS_ON: [&str; 2] = ["self.point(stream)", "Some(backend.submit_guard(device))"];

pub(super) fn sites() -> impl Iterator<Item = String> {
    let mut all = Vec::new();
    for folder in FOLDERS {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        of_folder(root, &root.join("src").join(folder), &mut all);
    }
    all.into_iter()
}

fn of_folder(root: &Path, folder: &Path, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        if path.is_dir() && !name.ends_with("recorder") {
            of_folder(root, &path, all);
        } else if name.ends_with(".rs") && !name.ends_with("left_out.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().enumerate();
            all.extend(lines.flat_map(|(number, line)| of_line(name, number + 1, line)));
        }
    }
}

fn of_line(file: &str, number: usize, line: &str) -> Vec<String> {
    let words = line.trim();
    // In the backend itself, and where the lock is, `left_out` is asked for the caller.
    let asks = file.ends_with("backend.rs") || file.ends_with("submit.rs");
    let own = ["non_blocking", "capture lock", "hold"];
    if words.starts_with("//") || PASS_ON.contains(&words) {
        return Vec::new();
    }
    let calls = CALLS.iter().filter(|(call, _)| line.contains(call));
    calls
        .filter_map(|(call, what)| {
            if !what.is_empty() {
                return Some(*what);
            }
            let asked = line.split_once(call)?.1.split_once('"')?.0;
            (!asks || own.contains(&asked)).then_some(())?;
            own.into_iter().find(|what| *what == asked)
        })
        .map(|what| format!("{what} {file}:{number}"))
        .collect()
}
