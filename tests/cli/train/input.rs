//! A run's report on its input, and automatic numbers of workers.

use super::{gpipe, losses, metrics, train};
use crate::run::printed;

#[test]
fn a_run_says_what_its_input_has_to_do_with_its_speed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let page = folder.join("report.html");
    let report = page.display().to_string();
    let summary = train(folder, "run", &["--report", &report]);
    let limit = summary["input"]["limit"].as_str().unwrap();
    let measures = &summary["input"]["measures"];
    assert_eq!(measures["batches"], 5, "the first one is not counted");
    assert!(measures["period_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(measures["phases"].as_array().unwrap().len(), 5);
    // The last line and the page agree.
    let lines = metrics(folder, "run");
    assert!(lines[0].get("input_limit").is_none(), "{}", lines[0]);
    assert_eq!(lines[5]["input_limit"], limit);
    assert_eq!(lines[5]["input_ms"].as_array().unwrap().len(), 5);
    let page = std::fs::read_to_string(page).unwrap();
    // Listed as a warning only if the input can be improved.
    let (boxed, verdict) = match limit {
        "not input-bound" => ("<p>", "keeps up ("),
        other => ("<p class=\"say warn\">", other),
    };
    let said = format!("{boxed}Input of the run: {verdict}");
    assert!(page.contains(&said), "{said}");
    // The text output.
    let text = printed(
        folder,
        "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 6 --threads-per-stage 1 \
         --data text.txt --out other --report other.html",
    );
    for part in [
        "\ninput ",
        " of the time is waiting for batches",
        "\nloading ",
        "a batch takes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn made_up_data_has_no_loader_to_speak_of() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 6 --vocab 9 \
                 --threads-per-stage 1 --data synthetic --out run --json";
    let summary: serde_json::Value = serde_json::from_str(&printed(folder.path(), flags)).unwrap();
    assert!(summary.get("input").is_none(), "{summary}");
    let line = &metrics(folder.path(), "run")[5];
    assert!(line.get("input_ms").is_none(), "{line}");
}

#[test]
fn workers_and_batches_ahead_change_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let twelve = ["--steps", "12", "--warmup", "1"];
    train(folder, "plain", &twelve);
    let wanted = losses(folder, "plain");
    let auto = ["--workers", "auto", "--prefetch", "auto"];
    train(folder, "auto", &[&twelve[..], &auto].concat());
    assert_eq!(losses(folder, "auto"), wanted);
    // Started with two workers, and resumed with an automatic number.
    train(folder, "two", &["--workers", "2", "--warmup", "1"]);
    let goes_on = "train --resume two --steps 12 --workers auto --prefetch 4";
    let _ = printed(folder, goes_on);
    assert_eq!(losses(folder, "two"), wanted);
    let config = std::fs::read_to_string(folder.join("two/config.toml")).unwrap();
    for line in ["workers = \"auto\"", "prefetch = 4"] {
        assert!(config.contains(line), "{config}");
    }
    let refused = gpipe(folder, "train --workers some");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("or auto"), "{errors}");
}

/// A text's loader is measured and compared with the planned step.
#[test]
fn a_profile_predicts_the_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "the whale, the whale! up helm, up helm! ".repeat(60);
    std::fs::write(folder.join("text.txt"), text).unwrap();
    let flags = "profile --model gpt --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --quick \
                 --data text.txt --workers 2 --json";
    let report: serde_json::Value = serde_json::from_str(&printed(folder, flags)).unwrap();
    let diagnosis = &report["input"]["diagnosis"];
    let limit = diagnosis["limit"].as_str().unwrap();
    assert_eq!(diagnosis["measures"]["workers"], 2);
    let said = report["limit"].as_str().unwrap();
    let input = said.starts_with("input-bound: ");
    assert_eq!(input, limit != "not input-bound", "{limit}: {said}");
    assert!(!input || said.contains(limit), "{limit}: {said}");
}

/// Regression test: runs whose metrics use an older word for the verdict could not be resumed.
#[test]
fn a_run_with_the_verdict_of_an_older_version_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let limit = train(folder, "run", &[])["input"]["limit"].clone();
    let path = folder.join("run/metrics.jsonl");
    let lines = std::fs::read_to_string(&path).unwrap();
    let now = format!("\"input_limit\":{limit}");
    assert!(lines.contains(&now), "{lines}");
    let formerly = lines.replace(&now, "\"input_limit\":\"compute-bound\"");
    std::fs::write(&path, formerly).unwrap();
    printed(folder, "train --resume run --steps 7");
    assert_eq!(metrics(folder, "run").len(), 7);
}
