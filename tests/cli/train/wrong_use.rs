//! Invalid flags: exit code 2, and one helpful line.

use super::gpipe;

use std::fs;
use std::path::Path;

/// Checks for exit code 2, nothing on standard output, and one line that names the remedy.
#[track_caller]
pub(crate) fn refused(folder: &Path, args: &[&str], wanted: &[&str]) {
    let output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
    assert!(output.stdout.is_empty());
    let line = errors.lines().next().unwrap_or_default();
    for part in wanted {
        assert!(
            line.contains(part),
            "{args:?}: `{line}` does not say `{part}`"
        );
    }
    assert!(
        !errors.contains("panicked") && !errors.contains("frame #"),
        "{errors}"
    );
}

/// Flags of `train`, and the required parts of the line that refuses them.
type Case = (&'static [&'static str], &'static [&'static str]);

#[track_caller]
fn all_refused(cases: &[Case]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("short.txt"), "too short").unwrap();
    fs::write(folder.path().join("bytes.txt"), b"abc\xff\xfe").unwrap();
    for (flags, wanted) in cases {
        let mut args = vec!["train"];
        args.extend(*flags);
        refused(folder.path(), &args, wanted);
    }
    assert!(
        !folder.path().join("runs").exists(),
        "wrong use leaves nothing behind"
    );
}

const SIZES: [Case; 24] = [
    (
        &["--devices", "gpu"],
        &["unknown device `gpu`", "`cpu` and `cuda:N`"],
    ),
    (&["--devices", "cpu,,cpu"], &["unknown device ``"]),
    (&["--devices", "cuda:99"], &["`cuda:99`"]),
    (&["--micro", "0"], &["--micro", "at least 1"]),
    (&["--micro", "four"], &["`four` is not a whole number"]),
    (
        &["--data", "missing.txt"],
        &["--data", "cannot read missing.txt", "No such file"],
    ),
    (&["--data", "short.txt"], &["too short", "9 characters"]),
    (
        &["--data", "bytes.txt"],
        &["bytes.txt is not UTF-8", "byte 3"],
    ),
    (
        &["--heads", "3"],
        &["d_model 128 is not a multiple of heads 3"],
    ),
    (&["--dropout", "1"], &["--dropout 1", "below 1"]),
    (&["--lr", "nan"], &["--lr", "above 0"]),
    // Regression test: the message was "invalid digit found in string".
    (
        &["--seed", "-1"],
        &["--seed", "`-1` is not a whole number from 0 to"],
    ),
    (&["--micro", "-1"], &["--micro", "at least 1"]),
    (&["--micro", "33"], &["--micro 33 is more than --batch 32"]),
    (&["--lr", "-1"], &["--lr", "above 0"]),
    (
        &["--steps", "99999999999999999999"],
        &["--steps", "at most"],
    ),
    (&["--batch", "1000000000000"], &["--batch", "at most"]),
    (
        &["--batch", "4294967296"],
        &["--batch", "256 values", "a step at most"],
    ),
    (
        &["--layers", "18446744073709551615"],
        &["--layers", "from 1 to 4096"],
    ),
    (
        &["--d-model", "100000000"],
        &["--d-model", "from 1 to 16777216"],
    ),
    (
        &["--threads-per-stage", "100000"],
        &["--threads-per-stage", "at most 1024"],
    ),
    (
        &["--patience", "-1"],
        &["--patience", "above 0, or 0 for none"],
    ),
    (&["--patience", "1e300"], &["--patience", "at most a year"]),
    (&["--micros", "4"], &["--micros"]),
];

const STAGES_AND_FILES: [Case; 22] = [
    (
        &["--balance", "3,4"],
        &["--balance adds up to 7 layers", "has 8"],
    ),
    (&["--balance", "8"], &["--balance names 1 stage,", "2"]),
    (&["--balance", "0,8"], &["--balance", "at least 1"]),
    (
        &["--devices", "cpu,cpu,cpu,cpu", "--layers", "1"],
        &[
            "4 stages",
            "only 3 layers",
            "use fewer devices, or --layers 2",
        ],
    ),
    (
        &["--schedule", "zbv", "--layers", "1"],
        &[
            "2 devices with 2 chunks each (--schedule zbv) make 4 stages",
            "`gpt` has only 3 layers (embed to head)",
            "--layers 2",
        ],
    ),
    (
        &["--schedule", "looped-bfs", "--chunks", "5"],
        &["--chunks 5 make 10 stages", "only 8 layers", "--layers 8"],
    ),
    (
        &["--schedule", "zbv", "--balance", "4,4"],
        &["--balance names 2 stages", "make 4 stages"],
    ),
    (
        &["--schedule", "zbv", "--balance", "2,2,2,1"],
        &["--balance adds up to 7 layers", "has 8"],
    ),
    (
        &["--schedule", "gpipe", "--chunks", "2"],
        &["--schedule gpipe", "one chunk per device"],
    ),
    (
        &["--schedule", "v-half", "--chunks", "1"],
        &["--schedule v-half", "two chunks per device"],
    ),
    (
        &["--schedule", "forward-only"],
        &["--schedule", "no backward", "nothing can be trained"],
    ),
    (&["--chunks", "0"], &["--chunks", "at least 1"]),
    (&["--chunks", "two"], &["`two` is not a whole number"]),
    (
        &["--chunks", "18446744073709551616"],
        &["--chunks", "at most 4096"],
    ),
    (
        &["--recompute", "sometimes"],
        &["--recompute", "one of never, except-last, always"],
    ),
    (
        &["--report", "report.txt"],
        &["--report report.txt", ".html (a page) or .svg (a picture)"],
    ),
    (&["--report", "-"], &["--report -", ".html"]),
    (
        &["--trace", "-"],
        &["--trace -", "standard output has the summary"],
    ),
    (
        &["--trace", "nowhere/trace.json"],
        &["--trace nowhere/trace.json", "no folder nowhere"],
    ),
    (&["--trace", "."], &["--trace .", "a folder"]),
    (
        &["--trace", "same.svg", "--report", "same.svg"],
        &["--trace and --report name the same file"],
    ),
    (
        &["--schedule", "1f2b"],
        &["--schedule", "did you mean `1f1b`?"],
    ),
];

#[test]
fn wrong_sizes_texts_and_devices_are_exit_code_2_and_one_helpful_line() {
    all_refused(&SIZES);
}

const OF_DEVICES: [Case; 11] = [
    (
        &["--memory", "24GiB"],
        &["--memory limits what CUDA devices may hold, and --devices has none"],
    ),
    (
        &["--memory", "1GiB,2GiB,3GiB"],
        &["--memory has 3 values, but --devices names 2"],
    ),
    (
        &["--memory", "much"],
        &["--memory", "an amount of memory such as"],
    ),
    (&["--memory", "0"], &["--memory", "more than nothing"]),
    (
        &["--memory", "none,1GiB", "--devices", "cuda:0,cpu"],
        &["--memory gives 1GiB to device 1, which is a CPU"],
    ),
    (
        &["--offload", "2", "--recompute", "always"],
        &["--offload names stage 2, but there are 2, numbered from 0"],
    ),
    (
        &["--offload", "last"],
        &[
            "--offload",
            "`last` is no stage: give the numbers of stages",
        ],
    ),
    // Words of `plan` that a training without a plan does not know.
    (
        &["--offload", "auto"],
        &["--offload", "into a plan: train by it with --plan"],
    ),
    (
        &["--recompute", "auto"],
        &["--recompute", "into a plan: train by it with --plan"],
    ),
    (&["--tf32=yes"], &["--tf32", "must be true or false"]),
    (
        &["--set", "pipeline.deterministic=1"],
        &["--set pipeline.deterministic=1: must be true or false"],
    ),
];

#[test]
fn what_devices_cannot_do_is_exit_code_2_and_one_helpful_line() {
    all_refused(&OF_DEVICES);
}

#[test]
fn wrong_schedules_stages_and_files_are_exit_code_2_and_one_helpful_line() {
    all_refused(&STAGES_AND_FILES);
}

/// clap only says that two flags cannot be used together; the message must add the reason and a remedy.
const EXCLUDED: [Case; 3] = [
    (
        &["--plan", "p.json", "--micro-batches", "4"],
        &[
            "--plan",
            "--micro",
            "A plan of `profile` or `plan`, which decides schedule,",
        ],
    ),
    (
        &["--plan", "p.json", "--replicas", "2"],
        &["cannot be used with", "CUDA graphs and replicas"],
    ),
    (
        &["--steps", "3", "--epochs", "1"],
        &["cannot be used with", "in place of --steps"],
    ),
];

#[test]
fn flags_that_exclude_each_other_say_why() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, wanted) in EXCLUDED {
        let output = gpipe(folder.path(), &[&["train"], flags].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
        // The reason stands below clap's own line.
        for part in wanted {
            assert!(errors.contains(part), "{flags:?}: {errors}");
        }
    }
}

/// Regression test: it failed after printing the configuration and reading the data.
#[test]
fn a_folder_that_cannot_be_made_is_told_before_anything_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("file"), "").unwrap();
    for out in ["/proc/run", "/proc/a/b/run", "file/run", "/dev/null/run"] {
        let wanted = ["error: --out ", "nothing can be written there: "];
        refused(folder, &["train", "--out", out], &wanted);
    }
    for flag in ["--trace", "--report"] {
        let args = ["train", flag, "/proc/own.html"];
        refused(
            folder,
            &args,
            &["error: ", flag, "/proc/own.html: it cannot be written: "],
        );
    }
    let left: Vec<_> = fs::read_dir(folder).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left behind: {left:?}");
}
