//! `-o -`: standard output has only the JSON.

use std::fs;

use gpipe::partitioner::{Plan, Profile};
use serde_json::Value;

use super::{PROFILE, gpipe, printed};

#[test]
fn a_profile_goes_to_standard_output_alone() {
    let folder = tempfile::tempdir().unwrap();
    let output = gpipe(folder.path(), &format!("{PROFILE} -o -"));
    assert!(output.status.success());
    // Notes and progress go to standard error.
    assert!(!output.stderr.is_empty());
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let profile = Profile::from_json(&output.stdout, "-").unwrap();
    assert_eq!(profile.layers().len(), 5);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_plan_goes_to_standard_output_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = printed(
        folder.path(),
        &format!("{PROFILE} --plan - -o profile.json"),
    );
    serde_json::from_str::<Value>(&text).unwrap();
    let plan = Plan::from_json(text, "-").unwrap();
    let decide = "plan --profile profile.json --devices 2 --micro 4";
    let text = printed(folder.path(), &format!("{decide} -o -"));
    serde_json::from_str::<Value>(&text).unwrap();
    let again = Plan::from_json(&text, "-").unwrap();
    // The file has the measured link, so the plan is the same.
    assert_eq!(again, plan);
    printed(folder.path(), &format!("{decide} -o plan.json"));
    let written = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    assert_eq!(written, text);
    // Printed once, also if requested twice.
    assert_eq!(
        printed(folder.path(), &format!("{decide} -o - --json")),
        text
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
