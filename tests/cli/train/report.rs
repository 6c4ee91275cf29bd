//! The report at the end of a run.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::run::{command, succeeded};

/// Output of a small run on a small text at a terminal of 80 columns, with these flags.
fn printed(folder: &Path, flags: &str) -> Output {
    fs::write(
        folder.join("text.txt"),
        "the whale, the whale! up helm! ".repeat(80),
    )
    .unwrap();
    let small = super::SMALL
        .replace("--steps 6 ", "")
        .replace("--layers 2 ", "");
    let mut command = command(folder, "train --data text.txt --out run");
    command.args(small.split_whitespace());
    command.args(flags.split_whitespace());
    command.env("COLUMNS", "80").output().unwrap()
}

/// Its standard output, with wrapped lines joined.
fn told(output: &Output) -> String {
    let text = succeeded(output.clone(), "train").0;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a line fits a terminal of 80 columns, or is a command, which is never wrapped.
fn fits(line: &str) -> bool {
    let text = line.trim_start_matches("next").trim_start();
    line.chars().count() <= 80 || text.starts_with('`')
}

/// Regression test: the report had 100 columns on any terminal, and was unreadable on 80.
#[test]
fn a_report_keeps_to_the_width_of_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    // Enough steps for a model that generates a sample.
    let flags = "--layers 6 --balance 7,1 --steps 40 --lr 0.03 --devices cpu,cpu";
    let output = printed(folder.path(), flags);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let (sample, report) = text.split_once("\nloss ").unwrap();
    assert!(
        sample.starts_with("\nsample: the held-out text begins \""),
        "{sample}"
    );
    for line in report.lines() {
        assert!(fits(line), "{line}\n{text}");
    }
    // Regression test: the report had 40 lines, mostly timelines and a table of causes.
    for part in [
        "\nmeasured  ",
        "\nengine  ",
        "\ntogether  ",
        "\nactivations  ",
        // Loading that no step waited for is left out, as is a last step disturbed by other load.
        "\nlast step  ",
        "\nloading  ",
    ] {
        assert!(!report.contains(part), "{part}: {report}");
    }
    for part in [
        "\nspeed  ",
        "\nbubble         devices idle ",
        "\nreport  ",
        "\nnext  ",
        "--resume run",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    let output = printed(folder.path(), &format!("{flags} --report page.html"));
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, report) = text.split_once("\nthe last step:\n").unwrap();
    for part in ["\nStep 40 took ", "\ninput  ", "\nloading  "] {
        assert!(report.contains(part), "{part}: {report}");
    }
    for line in report.lines() {
        assert!(fits(line), "{line}\n{text}");
    }
}

/// Regression test: a bad cut was "as predicted", since the prediction uses the same stages' times.
#[test]
fn a_cut_that_the_step_waits_for_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--layers 6 --balance 7,1 --steps 6 --devices cpu,cpu";
    let text = told(&printed(folder.path(), flags));
    let (_, cut) = text.split_once(" cut stage 0 computes ").unwrap();
    assert!(
        cut.contains("times as long as stage 1: by the medians of their times, devices are idle for at least "),
        "{cut}"
    );
    assert!(
        // The command has the run's flags: otherwise its plan, made for another model, is refused.
        cut.contains("gpipe-rs profile --model gpt --layers 6 --d-model 16 ")
            && cut.contains(
                " --data text.txt --threads-per-stage 1 --batch 8 --plan plan.json` cuts by time"
            ),
        "{cut}"
    );
    let folder = tempfile::tempdir().unwrap();
    // Regression test: a run of three devices got the command for two, whose plan was refused. Kernels and
    // threads of the run are also included, unless they are the defaults of `profile`.
    let kernels = match gpipe::settings::Kernels::auto() {
        gpipe::settings::Kernels::Libtorch => "onednn",
        gpipe::settings::Kernels::OneDnn { .. } => "libtorch",
    };
    let flags = format!(
        "--layers 12 --balance 12,1,1 --steps 6 --devices cpu*3 --precision bf16 --kernels {kernels}"
    );
    let text = told(&printed(folder.path(), &flags));
    let (_, cut) = text.split_once(" cut stage 0 computes ").unwrap();
    assert!(
        cut.contains(&format!(
            " --devices cpu,cpu,cpu --precision bf16 --kernels {kernels} --threads-per-stage 1 --batch 8 \
             --plan plan.json`"
        )),
        "{cut}"
    );
    // A profile's own plan is for one pipeline, and is refused with replicas.
    let folder = tempfile::tempdir().unwrap();
    let flags = "--layers 6 --balance 7,1 --steps 6 --devices cpu*4 --replicas 2 --tree 2";
    let text = told(&printed(folder.path(), flags));
    let (_, cut) = text.split_once(" cut stage 0 computes ").unwrap();
    assert!(
        cut.contains(
            "gpipe-rs plan --profile profile.json --devices 4 --replicas 2 --tree 2 --batch 8 -o plan.json` \
             cut by time"
        ) && cut.contains(" --batch 8 -o profile.json` and `") && !cut.contains("--devices cpu"),
        "{cut}"
    );
}

/// Whether the system counts the cores' load.
fn counts() -> bool {
    let now = || fs::read_to_string("/proc/stat").unwrap_or_default();
    let before = now();
    thread::park_timeout(std::time::Duration::from_millis(100));
    before != now()
}

/// Regression test: the effect of other programs was attributed to the engine.
#[test]
fn other_programs_that_have_the_cores_are_named() {
    if !counts() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let over = AtomicBool::new(false);
    let cores = thread::available_parallelism().unwrap().get();
    let flags = "--layers 2 --steps 150 --devices cpu,cpu --report page.html";
    let output = thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let output = printed(folder.path(), flags);
        over.store(true, Ordering::Relaxed);
        output
    });
    let text = told(&output);
    assert!(text.contains(" Other programs held "), "{text}");
    // Replaces a cause, such as a link between threads, that does not apply.
    assert!(
        text.contains(" longer than predicted (")
            && text.contains(": times of this run say little."),
        "{text}"
    );
    assert!(!text.contains(" of the difference is "), "{text}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    let (_, sentence) = page.split_once("<p id=\"sentence\">").unwrap();
    let (sentence, _) = sentence.split_once("</p>").unwrap();
    assert!(sentence.contains("Other programs held "), "{sentence}");
}

/// Regression test: the suggested command resumed a diverged run, below a sample of its output.
#[test]
fn a_run_that_diverged_says_so_first_and_advises_a_smaller_rate() {
    let folder = tempfile::tempdir().unwrap();
    let output = printed(folder.path(), "--layers 1 --steps 4 --lr 10");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(text.starts_with("\ndiverged "), "{text}");
    assert!(!text.contains("sample: "), "{text}");
    let (_, next) = text.split_once("\nnext ").unwrap();
    assert!(next.contains("smaller --lr, such as 0.003"), "{text}");
}

/// Regression test: it took minutes without output, and could be neither shortened nor skipped.
#[test]
fn the_held_out_loss_is_of_as_many_batches_as_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let run = |held_out: &str| {
        let _ = fs::remove_dir_all(folder.path().join("run"));
        let flags = format!("--layers 2 --steps 2 --json {held_out}");
        let output = printed(folder.path(), &flags);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        (summary["held_out_loss"].as_f64(), errors)
    };
    let (all, said) = run("--held-out-batches 2");
    assert!(
        said.contains("measuring the held-out loss (2 batches"),
        "{said}"
    );
    let (one, said) = run("--held-out-batches 1");
    assert!(
        said.contains("measuring the held-out loss (1 of 2 batches; "),
        "{said}"
    );
    assert!(
        all.is_some() && one.is_some() && all != one,
        "{all:?} {one:?}"
    );
    let (none, said) = run("--held-out-batches 0");
    assert!(none.is_none() && !said.contains("measuring"), "{said}");
}
