//! Resumes a run on other devices than it started on.

use std::fs;

use super::{GPT, fails, gpt, place, train, trained};
use crate::run::{config, succeeded};

/// Regression test: chunks chosen for two devices made more stages on other devices than there are layers,
/// and the error named a `--chunks` that nobody had given.
#[test]
fn chunks_that_do_not_fit_other_devices_are_left_behind() {
    let folder = place();
    let folder = folder.path();
    let chunked = [
        "--devices",
        "cpu,cpu",
        "--schedule",
        "looped-bfs",
        "--chunks",
        "3",
    ];
    let gpt = GPT.replace("--layers 2", "--layers 4");
    let begin = [&gpt, "--steps 2 --out run"].map(str::split_whitespace);
    let begin: Vec<&str> = begin.into_iter().flatten().collect();
    trained(folder, &[&begin[..], &chunked].concat());
    let three = [
        "--resume",
        "run",
        "--steps",
        "3",
        "--devices",
        "cpu,cpu,cpu",
    ];
    let (summary, said) = succeeded(train(folder, &three), &three);
    // Medians cover only the steps on the present devices.
    assert!(summary.contains("(medians of step 3)"), "{summary}");
    assert!(
        said.contains("pipeline.chunks = 3 (run/config.toml:")
            && said.contains(") went with pipeline.devices = "),
        "{said}"
    );
    let chunks = config(folder, "run")["pipeline"]["chunks"].as_integer();
    assert_eq!(chunks, Some(2), "that of the schedule");
    // Fewer devices: the chunks fit.
    trained(
        folder,
        &["--resume", "run", "--steps", "4", "--devices", "cpu"],
    );
    assert_eq!(
        config(folder, "run")["pipeline"]["chunks"].as_integer(),
        chunks
    );
    // A value from a file is not reported as a flag either.
    fs::write(
        folder.join("c.toml"),
        "[pipeline]\nchunks = 5\nschedule = \"looped-bfs\"\n",
    )
    .unwrap();
    let wanted = ["--chunks 5", "(chunks: c.toml:2)"];
    let own: Vec<&str> = gpt.split_whitespace().collect();
    fails(
        folder,
        &[&own[..], &["--config", "c.toml"]].concat(),
        2,
        &wanted,
    );
}

#[test]
fn replicas_that_do_not_divide_other_devices_are_left_behind() {
    let folder = place();
    let folder = folder.path();
    let replicas = "--tree 2 --replicas 2 --devices cpu,cpu --steps 2 --out run";
    let replicas: Vec<&str> = replicas.split_whitespace().collect();
    trained(folder, &gpt(&replicas));
    let said = trained(
        folder,
        &[
            "--resume",
            "run",
            "--steps",
            "3",
            "--devices",
            "cpu,cpu,cpu",
        ],
    );
    assert!(
        said.contains("parallel.replicas = 2 (run/config.toml:")
            && said.contains("went with pipeline.devices = "),
        "{said}"
    );
    let own = config(folder, "run");
    assert_eq!(own["parallel"]["replicas"].as_integer(), Some(1));
    assert_eq!(
        own["parallel"]["tree"].as_integer(),
        Some(2),
        "it makes the numbers"
    );
}

/// Regression test: the message only said that every run prints its folder when it begins.
#[test]
fn a_run_that_is_not_there_is_answered_with_the_newest_one() {
    let folder = place();
    let folder = folder.path();
    let begin = gpt(&["--devices", "cpu", "--steps", "3"]);
    fails(
        folder,
        &["--resume", "last"],
        2,
        &["every run says its own"],
    );
    trained(folder, &begin);
    trained(folder, &begin);
    // A named run may be the newest, too.
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "3", "--out", "runs/named"]),
    );
    let wanted = ["there is no such folder; the newest run is runs/named"];
    fails(folder, &["--resume", "last"], 2, &wanted);
    std::fs::remove_dir_all(folder.join("runs/named")).unwrap();
    for other in ["last", "latest", "runs/latest", "runs/3"] {
        let wanted = ["there is no such folder; the newest run is runs/2"];
        fails(folder, &["--resume", other], 2, &wanted);
    }
    fails(
        folder,
        &["--resume", "runs"],
        2,
        &["no run folder", "did you mean runs/2?"],
    );
    fails(
        folder,
        &["--resume", "rusn/2"],
        2,
        &["did you mean runs/2?"],
    );
    for verb in [
        "eval --run last",
        "generate --run last --prompt a",
        "plot last",
    ] {
        let output = crate::run::gpipe(folder, verb);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("; the newest run is runs/2"),
            "{verb}: {errors}"
        );
    }
}
