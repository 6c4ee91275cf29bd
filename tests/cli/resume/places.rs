//! Two processes that use one folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use gpipe::checkpoint::Checkpointer;

use super::{command, fails, gpt, losses, place, trained};

fn signal(name: &str, child: &Child) {
    let sent = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// All files below a folder, with their contents.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            all.insert(path.display().to_string(), bytes);
        }
    }
    all
}

/// Regression test: a forgotten process pruned the checkpoints of the run that had replaced its own, and put
/// its own there.
#[test]
fn a_process_whose_folder_was_removed_ends_and_leaves_the_next_run_alone() {
    let folder = place();
    let folder = folder.path();
    let run = folder.join("run");
    let long = ["--steps", "400", "--checkpoint-every", "1", "--out", "run"];
    let mut old = command(folder, &gpt(&long));
    let old = old.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut old = old.spawn().unwrap();
    while !run.join("checkpoints/step-00000003").exists() {
        assert!(old.try_wait().unwrap().is_none(), "it failed");
        thread::yield_now();
    }
    signal("-STOP", &old);
    fs::remove_dir_all(&run).unwrap();
    let new = ["--seed", "4", "--steps", "3", "--out", "run"];
    let flags = gpt(&[]);
    let flags = flags[..flags.len() - 2].iter().copied().chain(new);
    trained(folder, &flags.collect::<Vec<_>>());
    let before = files(&run);
    signal("-CONT", &old);
    let output = old.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let last = errors.lines().last().unwrap();
    for part in ["run/checkpoints: the folder", "removed, moved or replaced"] {
        assert!(last.contains(part), "{errors}");
    }
    assert_eq!(files(&run), before);
    trained(folder, &["--resume", "run", "--steps", "4"]);
}

/// Regression test: the configuration was replaced, and the metrics cut off, before the folder was locked, so
/// two concurrent starts damaged the winner's run.
#[test]
fn whoever_does_not_get_the_folder_has_written_nothing_there() {
    let folder = place();
    let folder = folder.path();
    let begin = gpt(&["--devices", "cpu", "--steps", "2", "--out", "run"]);
    // Another process that has locked the folder, and written nothing yet.
    let other = Checkpointer::new(folder.join("run/checkpoints")).unwrap();
    let wanted = ["another process is writing checkpoints here"];
    fails(folder, &begin, 2, &wanted);
    let names = |path: &Path| {
        let entries = fs::read_dir(path).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&folder.join("run")), ["checkpoints"]);
    assert_eq!(names(&folder.join("run/checkpoints")), [".lock"]);
    // The folder also survives if that process ends here.
    drop(other);
    trained(folder, &begin);
    assert_eq!(losses(folder, "run").len(), 2);
    // Metrics without other files may belong to somebody.
    fs::create_dir(folder.join("own")).unwrap();
    fs::copy(
        folder.join("run/metrics.jsonl"),
        folder.join("own/metrics.jsonl"),
    )
    .unwrap();
    let begin = gpt(&["--devices", "cpu", "--steps", "2", "--out", "own"]);
    fails(folder, &begin, 2, &["already holds a run"]);
    assert_eq!(losses(folder, "own").len(), 2);
}
