//! A model description in a file.

use super::{as_json, config, gpipe, printed};

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

#[test]
fn what_models_prints_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sizes = ["d_model=16", "heads=2", "layers=3", "context=6", "vocab=11"];
    let description = printed(
        folder,
        &[&["models", "gpt2"], &sizes[..], &["--json"]].concat(),
    );
    fs::write(folder.join("model.json"), &description).unwrap();
    let of_file = [
        "--model",
        "model.json",
        "--batch",
        "4",
        "--threads-per-stage",
        "1",
    ];
    let profile = ["profile", "--quick", "--plan", "plan.json"];
    let report = as_json(folder, &[&profile[..], &of_file].concat());
    assert_eq!(report["profile"]["layers"].as_array().unwrap().len(), 5);

    // Flags override the file.
    let more = [
        "train", "--layers", "4", "--steps", "1", "--out", "run", "--quiet",
    ];
    as_json(folder, &[&more[..], &of_file].concat());
    let config = config(folder, "run");
    assert_eq!(config["model"]["name"].as_str(), Some("gpt2"));
    assert_eq!(config["model"]["layers"].as_integer(), Some(4));
    assert_eq!(config["model"]["d_model"].as_integer(), Some(16));
    assert_eq!(config["data"]["path"].as_str(), Some("synthetic"));

    let output = gpipe(
        folder,
        &[
            &["train", "--plan", "plan.json", "--layers", "2"],
            &of_file[..],
        ]
        .concat(),
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors
            .contains("it is for `gpt2` with layers=3, not 2: use --layers 3, or profile this one"),
        "{errors}"
    );

    let mut child = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
        .args("train --model - --steps 1 --batch 4 --quiet --json".split_whitespace())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(description.as_bytes()).unwrap();
    drop(stdin);
    assert!(child.wait_with_output().unwrap().status.success());
}
