//! Suggestions for a path that leads to no run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpipe_partitioner::words::path_meant;

/// Files of a run folder.
const OF_A_RUN: [&str; 2] = ["metrics.jsonl", "config.toml"];
/// Default folder of runs.
const RUNS: &str = "runs";

/// Returns a hint for a path that leads to no run: the run with nearly the same name, or the newest
/// in the folder that the path names or would be in; empty if there is none.
pub fn run(path: &Path) -> String {
    if path.is_dir() {
        return newest(path).map_or_else(String::new, |run| {
            format!("; did you mean {}?", run.display())
        });
    }
    let near = path_meant(path).filter(|near| is_run(near));
    if let Some(near) = near {
        return format!("; did you mean {}?", near.display());
    }
    let beside = path.parent().and_then(newest);
    let newest = beside.or_else(newest_run);
    newest.map_or_else(String::new, |run| {
        format!("; the newest run is {}", run.display())
    })
}

/// Returns the newest run in the default folder.
pub(crate) fn newest_run() -> Option<PathBuf> {
    newest(Path::new(RUNS))
}

/// Whether `folder` is that of a run.
pub fn is_run(folder: &Path) -> bool {
    OF_A_RUN.iter().any(|file| folder.join(file).is_file())
}

/// Whether `folder` contains folders of runs.
#[cfg(feature = "torch")]
pub fn has_runs(folder: &Path) -> bool {
    newest(folder).is_some()
}

/// Returns the run in `folder` that was written to last; on a tie the one with the largest number.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let runs = entries
        .map(|entry| entry.path())
        .filter(|path| is_run(path));
    let number = |run: &Path| run.file_name()?.to_str()?.parse::<u64>().ok();
    runs.max_by_key(|run| (written(run), number(run)))
}

/// Returns when a run was last written to, if the system tells.
fn written(run: &Path) -> Option<SystemTime> {
    let files = OF_A_RUN.iter().map(|file| run.join(file));
    let times = files.filter_map(|file| file.metadata().ok()?.modified().ok());
    times.max()
}
