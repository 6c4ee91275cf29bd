//! The tree of gradient sums is stored with the run.

use std::fs;

use super::{assert_same, gpt, place, train, trained, weights};

#[test]
fn a_run_goes_on_with_its_tree_on_another_cut() {
    let folder = place();
    let folder = folder.path();
    let whole = ["--steps", "6", "--out", "whole", "--devices", "cpu,cpu"];
    let tree = ["--tree", "4"];
    trained(folder, &gpt(&[&whole[..], &tree].concat()));
    let part = ["--steps", "2", "--out", "part", "--devices", "cpu"];
    let rates = ["--set", "lr.steps=6", "--set", "parallel.tree=4"];
    trained(folder, &gpt(&[&part[..], &rates].concat()));
    let configuration = fs::read_to_string(folder.join("part/config.toml")).unwrap();
    assert!(
        configuration.contains("[parallel]\nreplicas = 1\ntree = 4\n"),
        "{configuration}"
    );
    for (steps, devices, schedule) in [("4", "cpu,cpu,cpu", "zb-h1"), ("6", "cpu,cpu", "zbv")] {
        let others = [
            "--steps",
            steps,
            "--devices",
            devices,
            "--schedule",
            schedule,
        ];
        let said = trained(folder, &[&["--resume", "part"], &others[..]].concat());
        assert!(!said.contains("parallel.tree"), "{said}");
    }
    assert_same(folder, "part", "whole");
    // Shows that the test can fail.
    let serial = ["--steps", "6", "--out", "serial", "--devices", "cpu,cpu"];
    trained(folder, &gpt(&serial));
    assert_ne!(weights(folder, "serial"), weights(folder, "whole"));
    let said = trained(folder, &["--resume", "part", "--tree", "2", "--steps", "7"]);
    let wanted = "parallel.tree = 2, where the run had 4: from here on its losses are others";
    assert!(said.contains(wanted), "{said}");
}

#[test]
fn a_tree_that_cannot_be_is_refused() {
    let folder = place();
    let folder = folder.path();
    let refused = |flags: &[&str], wanted: &[&str]| {
        let output = train(folder, &gpt(flags));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        for part in wanted {
            assert!(said.contains(part), "{flags:?}: `{said}` has no `{part}`");
        }
    };
    let rule = "must be a power of two from 1 to 65536";
    for tree in ["0", "3", "131072", "-4", "two"] {
        refused(&["--tree", tree], &["--tree", rule]);
    }
    fs::write(folder.join("own.toml"), "[parallel]\ntree = 6\n").unwrap();
    refused(
        &["--config", "own.toml"],
        &["own.toml:2", "parallel.tree", rule],
    );
}
