//! Additions of `gpipe-rs plan` to the plan: runners-up, the pipeline's purpose, the gain from more devices
//! or memory.

use serde_json::Value;

use super::{flat, folder_with_profile, gpipe_in, number, stdout};

fn planned(flags: &str) -> String {
    let folder = folder_with_profile();
    let all = format!("plan --profile profile.json {flags}");
    let args: Vec<&str> = all.split_whitespace().collect();
    stdout(&gpipe_in(folder.path(), &args))
}

/// Rows of the table of runners-up, up to the column of the reasons.
fn rows(text: &str) -> Vec<&str> {
    let (_, table) = text.split_once("runner-up").unwrap();
    let table = table.split("\n\n").next().unwrap();
    let rows = table.lines().skip(1);
    rows.filter(|line| !line.starts_with([' ', '('])).collect()
}

/// Regression test: the table had twenty or more rows, with reasons such as `idle 0.6 % instead of 0.6 %`.
#[test]
fn a_few_runners_up_are_named_with_reasons_that_tell_something() {
    for flags in ["--devices 2 --micro 4", "--devices 2 --micro 8"] {
        let text = planned(flags);
        let few = rows(&text);
        assert!((2..=6).contains(&few.len()), "{text}");
        assert!(few.iter().any(|row| row.starts_with("1f1b")), "{text}");
        let all = planned(&format!("{flags} --explain"));
        assert!(rows(&all).len() > few.len(), "{all}");
        let more = rows(&all).len() - few.len();
        assert!(
            text.contains(&format!("plan --explain has {more} more)")),
            "{text}"
        );
        let plan: Value = serde_json::from_str(&planned(&format!("{flags} --json"))).unwrap();
        let alternatives = plan["alternatives"].as_array().unwrap();
        assert!(alternatives.len() >= rows(&all).len());
        for own in alternatives.iter().filter(|own| own["step_us"].is_number()) {
            let reason = own["reason"].as_str().unwrap();
            let slower = number(&own["step_us"]) / number(&plan["step_us"]) - 1.0;
            if slower > 1e-9 {
                assert!(reason.contains(" slower: "), "{own}");
                assert!(!reason.starts_with("0.0 %"), "{own}");
            } else {
                assert!(reason.starts_with("as fast"), "{own}");
            }
        }
    }
}

#[test]
fn a_pipeline_says_what_replicas_alone_would_take() {
    let text = planned("--per-node 4 --batch 64 --replicas 4 --pipeline 1 --chunks 1");
    assert!(
        text.contains("\npipeline       none: each of the 4 replicas is one device\n"),
        "{text}"
    );
    // The plan has a pipeline although each card could hold all layers.
    let slow = "--nodes 2 --per-node 2 --batch 16 --link-inside 1GB/s,5us \
                --link-between 10MB/s,20us";
    let text = flat(&planned(slow));
    assert!(
        text.contains("the model fits one device: it alone would take 8.40 ms a step, "),
        "{text}"
    );
    // No card can hold all layers.
    let text = flat(&planned(&format!("{slow} --memory 40MiB")));
    assert!(
        text.contains("no device holds the whole model: without a pipeline it does not fit"),
        "{text}"
    );
}

/// Several stages per device, in a plan without a pipeline.
#[test]
fn several_stages_on_one_device_say_what_they_are_for() {
    let linked = "--per-node 4 --batch 64 --pipeline 1 --link-inside 10GB/s,5us";
    let text = flat(&planned(linked));
    assert!(
        text.contains("stages take turns, so that the gradients"),
        "{text}"
    );
    assert!(
        text.contains("with one stage on each of the devices a step would take"),
        "{text}"
    );
    // Free links leave nothing to gain.
    let free: Value =
        serde_json::from_str(&planned("--per-node 4 --batch 64 --pipeline 1 --json")).unwrap();
    assert_eq!(
        (&free["chunks"], &free["schedule"]),
        (&1.into(), &"1f1b".into()),
        "{free}"
    );
}

#[test]
fn one_more_device_and_gigabyte_are_explained() {
    let flags = "--devices 2 --micro 8 --memory 64MiB --explain";
    let text = flat(&planned(flags));
    assert!(
        text.contains("more with one more device: a step of "),
        "{text}"
    );
    assert!(
        text.contains("; with 1.0 GiB more on each device: "),
        "{text}"
    );
    let plan: Value = serde_json::from_str(&planned(&format!("{flags} --json"))).unwrap();
    let more = plan["more"].as_array().unwrap();
    assert_eq!(more.len(), 2, "{plan}");
    // The promised step time is that of the actual plan with more devices.
    let three: Value =
        serde_json::from_str(&planned("--devices 3 --micro 8 --memory 64MiB --json")).unwrap();
    assert_eq!(more[0]["step_us"], three["step_us"]);
    assert!(number(&more[0]["step_us"]) < number(&plan["step_us"]));
    let plain: Value =
        serde_json::from_str(&planned("--devices 2 --micro 8 --memory 64MiB --json")).unwrap();
    assert!(plain["more"].is_null());
}
