//! The run that is meant by a path that leads to none.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpipe_partitioner::words::path_meant;

/// What a run folder has.
const OF_A_RUN: [&str; 2] = ["metrics.jsonl", "config.toml"];
/// Where runs are that nobody chose a folder for.
const RUNS: &str = "runs";

/// What is said behind a path that leads to no run: the one whose name is nearly the same, or the
/// newest of the folder of runs that it names or would be in; nothing where there is none.
pub(crate) fn run(path: &Path) -> String {
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

/// The run that was written to last, where nobody chose a folder for it.
pub(crate) fn newest_run() -> Option<PathBuf> {
    newest(Path::new(RUNS))
}

/// Whether it is the folder of a run.
pub(crate) fn is_run(folder: &Path) -> bool {
    OF_A_RUN.iter().any(|file| folder.join(file).is_file())
}

/// Whether it is a folder with folders of runs.
#[cfg(feature = "cli")]
pub(crate) fn has_runs(folder: &Path) -> bool {
    newest(folder).is_some()
}

/// The run in a folder of runs that was written to last; of several at a time that of the largest
/// number, as those that nobody named are counted.
fn newest(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let runs = entries
        .map(|entry| entry.path())
        .filter(|path| is_run(path));
    let number = |run: &Path| run.file_name()?.to_str()?.parse::<u64>().ok();
    runs.max_by_key(|run| (written(run), number(run)))
}

/// When a run was last written to, where the system tells.
fn written(run: &Path) -> Option<SystemTime> {
    let files = OF_A_RUN.iter().map(|file| run.join(file));
    let times = files.filter_map(|file| file.metadata().ok()?.modified().ok());
    times.max()
}
