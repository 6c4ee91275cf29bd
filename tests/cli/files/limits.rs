//! If the system grants less than a run requests, the run ends with a message and an exit code.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{PROFILE, TRAIN, ends, printed, refused};
use crate::run::command;

/// Runs a process that cannot start further threads: no address space has room for such stacks. The superuser
/// is exempt from a limit on the number of threads.
fn without_threads(folder: &Path, args: &str) -> Output {
    let stack = (1_u64 << 50).to_string();
    ends(command(folder, args).env("RUST_MIN_STACK", stack))
}

/// Regression test: printing panicked if standard error could not be written to, as with a log on a full
/// disk: the run ended with 101, without its remaining files.
#[test]
fn files_are_written_where_standard_error_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full");
    let Ok(_) = full() else {
        println!("there is no /dev/full here");
        return;
    };
    let run = |args: &str| {
        let mut command = command(folder, args);
        let output = command.stderr(full().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args}: {output:?}");
    };
    run(&format!(
        "{PROFILE} -o p.json --plan q.json --report r.html"
    ));
    for file in ["p.json", "q.json", "r.html"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    run("plan --profile p.json --devices 2 --micro 4 -o plan.json --report plan.html");
    assert!(folder.join("plan.html").is_file());
    run("schedule export --schedule 1f1b --devices 2 --micro 4 -o s.csv");
    run(&format!("{TRAIN} --steps 2 --out run"));
    run("plot run -o loss.svg");
}

/// Regression test: reading and writing checkpoints panicked without further threads. They must work without;
/// the stages, which are threads, must report the error.
#[test]
fn a_system_without_threads_to_give_is_told_or_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gpt = "train --model gpt --layers 1 --d-model 8 --heads 2 --context 8 --batch 4 --micro 2 \
               --devices cpu --threads-per-stage 1 --quiet --steps 2 --data t.txt";
    fs::write(folder.join("t.txt"), "the whale, the whale! ".repeat(40)).unwrap();
    printed(folder, &format!("{gpt} --out run"));
    let exported = without_threads(folder, "export --run run -o model");
    assert_eq!(exported.status.code(), Some(0), "{exported:?}");
    for args in [
        "eval --run run",
        "generate --run run --prompt the --tokens 4",
        "train --resume run --steps 4",
        &format!("{gpt} --out other"),
        PROFILE,
    ] {
        let errors = refused(&without_threads(folder, args), 1);
        assert!(errors.contains("thread"), "{args}: {errors}");
        assert!(!errors.contains("panicked"), "{args}: {errors}");
        // Regression test: three errors, each including its cause, repeated it three times.
        let said = errors.matches("os error").count();
        assert_eq!(said, 1, "{args}: {errors}");
    }
    // The run is intact.
    printed(folder, "train --resume run --steps 4 --quiet");
}

/// Regression test: the signal for exceeding the file-size limit ended the process silently, with half a
/// checkpoint left. Ignored, it is an error like that of a full disk.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_as_a_full_disk_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let limited = |args: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "ulimit -f 8; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_gpipe-rs"))
            .args(args.split_whitespace())
            .current_dir(folder);
        ends(&mut shell)
    };
    let large = TRAIN.replace("--hidden 8", "--hidden 64");
    let errors = refused(&limited(&format!("{large} --steps 2 --out run")), 1);
    let warning = "warning: the checkpoint of step 2 could not be written";
    assert!(errors.contains(warning), "{errors}");
    assert!(errors.contains("raise the limit"), "{errors}");
    let left = fs::read_dir(folder.join("run/checkpoints")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);
    let made = "simulate --schedule 1f1b --devices 8 --micro 64 --format trace -o t.json";
    let errors = refused(&limited(made), 1);
    assert!(errors.contains("t.json cannot be written"), "{errors}");
}

/// Regression test: the only message was `error: Too many open files (os error 24)`.
#[test]
fn a_lack_of_open_files_says_for_what_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut failed = 0;
    for most in 8..20 {
        let script = format!("ulimit -n {most}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &script, env!("CARGO_BIN_EXE_gpipe-rs")])
            .args(TRAIN.split_whitespace())
            .args(["--steps", "2", "--out", &format!("run{most}")])
            .current_dir(folder);
        let output = ends(&mut shell);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut lines = errors.lines();
        let bare = lines.find(|line| line.starts_with("error: Too many open files"));
        assert_eq!(bare, None, "{most}: {errors}");
        failed += usize::from(!output.status.success());
    }
    assert!(failed > 0, "no limit was low enough");
}

/// Regression test: the machine's memory was reported and used for planning, though the process may have
/// less.
#[test]
fn a_limit_on_the_memory_of_the_process_counts() {
    let folder = tempfile::tempdir().unwrap();
    let total = |json: &str| {
        let object: serde_json::Value = serde_json::from_str(json).unwrap();
        let room = [&object["cpu_memory_free"], &object["cpu_memory"]];
        room.map(|bytes| bytes.as_u64().unwrap())
    };
    let [_, machine] = total(&printed(folder.path(), "env --json"));
    if machine < 8 << 30 {
        println!("libtorch itself may not find room in less");
        return;
    }
    let limit = machine / 4 * 3;
    let script = format!("ulimit -v {}; exec \"$0\" env --json", limit / 1024);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_gpipe-rs")]);
    let output = ends(&mut shell);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let [free, all] = total(&String::from_utf8(output.stdout).unwrap());
    assert!(free < all && all <= limit, "{free} of {all}, limit {limit}");
}

/// Regression test: if neither the last step's files nor the last checkpoint could be written, the last line
/// named only the former.
#[test]
fn a_disk_that_is_full_at_the_end_also_misses_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let large = TRAIN.replace("--hidden 8", "--hidden 64");
    let many = large.replace("--batch 4 --micro 2", "--batch 64 --micro 64");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, env!("CARGO_BIN_EXE_gpipe-rs")])
        .args(many.split_whitespace())
        .args(["--steps", "2", "--out", "run"])
        .current_dir(folder);
    let errors = refused(&ends(&mut shell), 1);
    let last = errors.lines().last().unwrap();
    assert!(last.contains("trace.json"), "{errors}");
    assert!(last.contains("the last checkpoint, of step 2,"), "{errors}");
}

/// Regression test: truncating a memory-mapped file ended the process by a signal, without a message.
#[test]
fn a_file_of_tokens_that_is_cut_off_meanwhile_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = folder.join("t.u16.bin");
    let tokens = (0..200_000_u32).flat_map(|token| ((token % 50) as u16).to_le_bytes());
    fs::write(&path, tokens.collect::<Vec<u8>>()).unwrap();
    let args = "train --model gpt --layers 1 --d-model 8 --heads 2 --context 8 --batch 8 --micro 2 \
                --devices cpu --threads-per-stage 1 --data t.u16.bin --steps 100000000 --out run";
    let mut child = command(folder, args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = || fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap_or_default();
    while lines().lines().count() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it has not begun");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(1000))
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = refused(&output, 1);
    for part in ["t.u16.bin, byte ", "1000 bytes", "cut off"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}
