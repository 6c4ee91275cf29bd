//! Output files of `--trace` and `--report`.

use super::train;

use serde_json::Value;
use std::fs;

#[test]
fn trace_and_report_are_of_the_last_step_and_where_they_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = ["--schedule", "zbv", "--recompute", "always", "--micro", "3"];
    // One file beside the run folder, and one in it before it exists.
    let files = ["--trace", "last step.json", "--report", "run/why.html"];
    let summary = train(folder, "run", &[&flags[..], &files[..]].concat());
    assert_eq!(
        (&summary["chunks"], &summary["recompute"]),
        (&2.into(), &"always".into())
    );

    let trace = fs::read(folder.join("last step.json")).unwrap();
    assert_eq!(trace, fs::read(folder.join("run/trace.json")).unwrap());
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let spans = events.filter(|event| event["ph"] == "X").count();

    let page = fs::read_to_string(folder.join("run/why.html")).unwrap();
    let title = "<h1>gpt, zbv: 2 devices x 2 chunks, 3 micro-batches, recompute always</h1>";
    assert!(page.contains(title));
    assert!(page.contains("<p id=\"sentence\">Step 6 took "));
    for row in [
        "slow stage",
        "warm-up",
        "hand-over",
        "engine",
        "0 recompute",
    ] {
        assert!(page.contains(&format!("scope=\"row\">{row}</th>")), "{row}");
    }
    // Every action is there as measured and as predicted; the page has a title, too.
    assert_eq!(page.matches("<title>").count(), 1 + 2 * spans);
    assert_eq!(page.matches("://").count(), 1, "it loads nothing");
}

#[test]
fn a_report_is_a_picture_where_its_name_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // The schedule is recomputed after the first step, which is also the last.
    let flags = ["--schedule", "auto", "--steps", "1", "--report", "why.svg"];
    train(folder, "run", &flags);
    let picture = fs::read_to_string(folder.join("why.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(picture.contains(">measured</tspan>") && picture.contains(">predicted</tspan>"));
    assert!(picture.contains("aria-label=\"Step 1 took "));
}

#[test]
fn the_last_step_and_its_prediction_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.txt"), "abcdefgh ".repeat(100)).unwrap();
    let mut args = vec!["train", "--data", "t.txt"];
    args.extend(super::SMALL.split_whitespace());
    args.extend(["--report", "page.html"]);
    let output = super::gpipe(folder.path(), &args);
    let text = String::from_utf8(output.stdout).unwrap();
    let wanted = [
        "\nmeasured  ",
        "\npredicted  ",
        "\nengine  ",
        "\nStep 6 took ",
    ];
    for part in wanted {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("\nreport         page.html\n"), "{text}");
}

/// An unwritable file is reported after the training's results.
#[cfg(target_os = "linux")]
#[test]
fn a_trace_that_cannot_be_written_costs_only_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text.txt"), "the whale! ".repeat(200)).unwrap();
    let mut args = vec!["train", "--data", "text.txt", "--json", "--out", "run"];
    args.extend(super::SMALL.split_whitespace());
    args.extend(["--trace", "/dev/full"]);
    let output = super::gpipe(folder.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary["held_out_loss"].is_f64());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cannot write /dev/full"), "{errors}");
}
