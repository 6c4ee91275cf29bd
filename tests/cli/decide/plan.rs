//! `gpipe-rs plan`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{flat, folder_with_profile, gpipe_in, number, refused, stdout};

#[test]
fn a_plan_is_chosen_written_and_read_back() {
    let folder = folder_with_profile();
    let args = [
        "plan",
        "--profile",
        "profile.json",
        "--devices",
        "2",
        "--memory",
        "2GiB",
        "--micro",
        "8",
        "--schedule",
        "1f1b",
        "--chunks",
        "1",
        "--json",
        "-o",
        "plan.json",
    ];
    let text = stdout(&gpipe_in(folder.path(), &args));
    assert_eq!(
        text,
        fs::read_to_string(folder.path().join("plan.json")).unwrap()
    );
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["balance"], json!([7, 5]));
    assert_eq!(
        (&plan["schedule"], &plan["micro_batches"]),
        (&json!("1f1b"), &json!(8))
    );
    assert!((number(&plan["bottleneck_us"]) - 2100.0).abs() < 1e-6);
    assert!((number(&plan["step_us"]) - 9.0 * 2100.0).abs() < 1e-6);
    for key in [
        "chunks",
        "recompute",
        "bubble_fraction",
        "peak_bytes",
        "alternatives",
    ] {
        assert!(!plan[key].is_null(), "{key}");
    }
    let read = gpipe::partitioner::Plan::read(folder.path().join("plan.json")).unwrap();
    assert_eq!(read.partition.balance(), [7, 5]);
}

/// Regression test: a plan without `--batch` was for another mini-batch than the profile's, without a note.
#[test]
fn a_plan_says_for_how_many_samples_it_is() {
    let folder = folder_with_profile();
    let said = |flags: &[&str]| {
        let args = ["plan", "--profile", "profile.json", "--devices", "2"];
        let output = gpipe_in(folder.path(), &[&args, flags].concat());
        let notes = String::from_utf8(output.stderr.clone()).unwrap();
        (stdout(&output), notes)
    };
    let (text, notes) = said(&[]);
    let lead = "note: without --batch this is for mini-batches of ";
    let rest = notes.split(lead).nth(1).expect("a note");
    let samples = rest.split(' ').next().unwrap();
    assert!(
        text.contains(&format!(" for {samples} samples, bubble")),
        "{text}"
    );
    let (text, notes) = said(&["--batch", "24"]);
    assert!(text.contains(" for 24 samples, bubble"), "{text}");
    assert!(!notes.contains(lead), "{notes}");
}

/// Regression test: devices of a profile measured on shared cores were planned with cores of their own.
#[test]
fn cores_that_the_profile_shared_are_named() {
    let folder = folder_with_profile();
    let path = folder.path().join("profile.json");
    let mut profile: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    profile["all_cores"] = json!({"threads": 2, "layers": profile["layers"]});
    fs::write(&path, profile.to_string()).unwrap();
    let noted = |flags: &[&str]| {
        let args = ["plan", "--profile", "profile.json", "--batch", "32"];
        let output = gpipe_in(folder.path(), &[&args, flags].concat());
        let notes = String::from_utf8(output.stderr.clone()).unwrap();
        stdout(&output);
        notes.contains(
            "cores of its own; those of the profile were CPU devices that shared 2 cores \
             (--cores 2 plans for such)\n",
        )
    };
    assert!(noted(&["--devices", "3"]));
    assert!(!noted(&["--devices", "2"]));
    assert!(!noted(&["--devices", "3", "--cores", "2"]));
}

#[test]
fn sizes_that_nobody_measured_are_noted() {
    let folder = folder_with_profile();
    let noted = |batch: &str| {
        let args = [
            "plan",
            "--profile",
            "profile.json",
            "--devices",
            "2",
            "--micro",
            "4",
        ];
        let output = gpipe_in(folder.path(), &[&args[..], &["--batch", batch]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(noted("32"), "");
    let note = "micro-batches of 16 samples are larger than any that was measured (8)";
    assert!(noted("64").contains(note), "{}", noted("64"));
}

/// Step time of a plan for the profile changed by `change`, with `flags`.
fn step(change: impl FnOnce(&mut Value), flags: &[&str]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = super::profile();
    change(&mut profile);
    let path = folder.path().join("profile.json");
    fs::write(path, profile.to_string()).unwrap();
    let args = [
        "plan",
        "--profile",
        "profile.json",
        "--devices",
        "3",
        "--micro",
        "6",
        "--json",
    ];
    let text = stdout(&gpipe_in(folder.path(), &[&args, flags].concat()));
    number(&serde_json::from_str::<Value>(&text).unwrap()["step_us"])
}

#[test]
fn the_measured_link_counts_where_none_is_given() {
    let measured = |profile: &mut Value| {
        profile["link"] = json!({"latency_us": 40.5, "bytes_per_second": 1_000_000_000});
    };
    let own = step(measured, &[]);
    let given = step(|_| {}, &["--link", "1GB/s,40.5us"]);
    assert_eq!(own.to_bits(), given.to_bits());
    let faster = step(measured, &["--link", "100GB/s,1us"]);
    let given = step(|_| {}, &["--link", "100GB/s,1us"]);
    assert_eq!(faster.to_bits(), given.to_bits());
    let free = step(|_| {}, &[]);
    assert!(free < faster && faster < own, "{free} {faster} {own}");
    let no_copy = |profile: &mut Value| profile["link"] = json!({"latency_us": 40.5});
    let waiting = step(no_copy, &[]);
    assert!(free < waiting && waiting < own, "{free} {waiting} {own}");
}

#[test]
fn a_free_plan_is_no_slower_than_a_bound_one() {
    let folder = folder_with_profile();
    let step = |flags: &[&str]| {
        let args = [
            &[
                "plan",
                "--profile",
                "profile.json",
                "--devices",
                "3",
                "--batch",
                "96",
                "--json",
            ],
            flags,
        ];
        let text = stdout(&gpipe_in(folder.path(), &args.concat()));
        number(&serde_json::from_str::<Value>(&text).unwrap()["step_us"])
    };
    let free = step(&[]);
    for flags in [
        &["--schedule", "1f1b"][..],
        &["--schedule", "gpipe"],
        &["--schedule", "zb-h1"],
        &["--schedule", "zbv"],
        &["--micro", "6"],
        &["--recompute", "always"],
        &["--speed", "1,1,0.5"],
        &["--link", "1GB/s,100us"],
    ] {
        assert!(free <= step(flags) + 1e-6, "{flags:?}");
    }
}

#[test]
fn a_plan_that_cannot_be_says_why() {
    let folder = folder_with_profile();
    let plan = |flags: &[&str]| {
        gpipe_in(
            folder.path(),
            &[&["plan", "--profile", "profile.json"], flags].concat(),
        )
    };
    let message = refused(&plan(&["--devices", "2", "--memory", "1MiB"]), 1);
    assert!(
        message.contains("nothing fits the memory") && message.contains("MiB more on device 0"),
        "{message}"
    );
    // More memory is not the only remedy.
    assert!(
        message.contains("more --devices or a smaller --batch may fit as well"),
        "{message}"
    );
    for (flags, hint) in [
        (&["--devices", "20"][..], "12 layers"),
        (&["--devices", "3", "--speed", "1,2"], "2 values of speed"),
        (&["--devices", "3", "--speed", "0"], "must be from 0.001"),
        (&["--devices", "3", "--memory", "-1GiB"], "amount of memory"),
        (
            &["--devices", "3", "--recompute", "sometimes"],
            "never, always, auto",
        ),
        (&["--devices", "3", "--micro", "many"], "whole number"),
        (&["--devices", "1000000000000000000"], "devices"),
        // Regression test: the plan was printed before the run failed.
        (
            &["--devices", "2", "-o", "no/plan.json"],
            "-o no/plan.json: there is no folder no",
        ),
    ] {
        let message = refused(&plan(flags), 2);
        assert!(message.contains(hint), "{flags:?}: {message}");
    }
}

#[test]
fn a_plan_for_devices_that_share_cores_says_so() {
    let folder = folder_with_profile();
    let common = [
        "plan",
        "--profile",
        "profile.json",
        "--devices",
        "4",
        "--micro",
        "8",
    ];
    let with = |more: &[&str]| stdout(&gpipe_in(folder.path(), &[&common[..], more].concat()));
    let step = |more: &[&str]| {
        let plan: Value = serde_json::from_str(&with(&[more, &["--json"]].concat())).unwrap();
        number(&plan["step_us"])
    };
    assert!(step(&["--cores", "2"]) > 1.5 * step(&[]));
    let page = folder.path().join("page.html");
    with(&["--cores", "2", "--report", page.to_str().unwrap()]);
    let page = fs::read_to_string(page).unwrap();
    let (limit, why) = page.split_once("-bound</strong>").unwrap();
    assert!(limit.ends_with("Core"), "{}", &why[..200]);
    assert!(why.starts_with(": 4 devices share 2 cores"));
}

/// A batch norm with one value per channel cannot train on single samples. Regression test: `plan` made
/// micro-batches of one for such a model.
#[test]
fn no_micro_batches_are_planned_that_the_model_does_not_train_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = super::profile();
    profile["fewest_samples"] = json!(2);
    fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
    let planned = |flags: &str| {
        let args = format!("plan --profile profile.json --batch 8 --json {flags}");
        let args: Vec<&str> = args.split_whitespace().collect();
        gpipe_in(folder.path(), &args)
    };
    for flags in ["--devices 2", "--per-node 2"] {
        let output = planned(flags);
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(plan["micro_batches"].as_u64().unwrap() <= 4, "{plan}");
        let notes = String::from_utf8(output.stderr).unwrap();
        let note = "note: no micro-batches of less than 2 samples are planned with";
        assert!(notes.contains(note), "{notes}");
    }
    let error = refused(&planned("--devices 2 --micro 8"), 2);
    assert!(error.contains("trains on no fewer than 2"), "{error}");
    assert!(error.contains("or 4 micro-batches at most"), "{error}");
}

/// Layers of a microsecond on devices whose hand-over takes a millisecond.
#[test]
fn a_plan_that_one_device_would_beat_says_so() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("profile.json"),
        super::profile().to_string(),
    )
    .unwrap();
    let noted = |link: &str| {
        let args = [
            "plan",
            "--profile",
            "profile.json",
            "--devices",
            "2",
            "--link",
            link,
        ];
        let output = gpipe_in(folder.path(), &args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let note = "note: one device alone is predicted to take ";
    assert!(
        !noted("100GB/s,1us").contains(note),
        "{}",
        noted("100GB/s,1us")
    );
    let slow = noted("1GB/s,100000us");
    assert!(
        slow.contains(note) && slow.contains("over 2 takes"),
        "{slow}"
    );
}

/// Two cores either process two micro-batches of a stage, or share one stage.
#[test]
fn one_stage_with_all_cores_is_planned_where_no_pipeline_is_faster() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = super::profile();
    let mut layers = profile["layers"].clone();
    for layer in layers.as_array_mut().unwrap() {
        for (name, value) in layer.as_object_mut().unwrap() {
            if name.ends_with("_us") {
                *value = json!(0.6 * value.as_f64().unwrap());
            }
        }
        layer.as_object_mut().unwrap().remove("curve");
    }
    profile["all_cores"] = json!({"threads": 2, "layers": layers});
    fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
    let planned = |flags: &str| {
        let all = format!("plan --profile profile.json --devices 2 --batch 32 --json {flags}");
        let all: Vec<&str> = all.split(' ').collect();
        let output = gpipe_in(folder.path(), &all);
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let stages = plan["balance"].as_array().unwrap().len();
        (stages, String::from_utf8(output.stderr).unwrap())
    };
    let (stages, notes) = planned("--cores 2 --micro 1");
    assert!(
        stages == 1 && notes.contains("one stage with all 2 cores"),
        "{notes}"
    );
    // With enough micro-batches.
    let (stages, notes) = planned("--cores 2 --micro 16");
    assert!(
        stages > 1 && notes.contains("the plan is the latter"),
        "{notes}"
    );
    let short = "; steps as short as these take longer than predicted";
    // Regression test: for steps of milliseconds such a plan was slower than one stage, without a doubt
    // noted.
    assert!(notes.contains(short), "{notes}");
    let mut long = profile.clone();
    for layers in ["/layers", "/all_cores/layers"] {
        for layer in long.pointer_mut(layers).unwrap().as_array_mut().unwrap() {
            for (name, value) in layer.as_object_mut().unwrap() {
                if name.ends_with("_us") {
                    *value = json!(10.0 * value.as_f64().unwrap());
                }
            }
            layer.as_object_mut().unwrap().remove("curve");
        }
    }
    fs::write(folder.path().join("profile.json"), long.to_string()).unwrap();
    let (_, notes) = planned("--cores 2 --micro 16");
    assert!(!notes.contains(short), "{notes}");
    fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
    // Requested otherwise, on a machine with other cores.
    for flags in [
        "--cores 2 --micro 1 --chunks 1",
        "--micro 1",
        "--cores 4 --micro 1",
    ] {
        let (stages, notes) = planned(flags);
        assert!(
            stages > 1 && !notes.contains("all 2 cores"),
            "{flags}: {notes}"
        );
    }
}

/// Regression test: the text said 42.28 ms, which included transfers, and the page 43.54 ms.
#[test]
fn text_and_page_name_the_same_slowest_stage() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let profile = root.join("examples/data/profiles/gpt.json");
    let args = "--devices 4 --memory 256MiB --link 1GB/s,20us --report page.html";
    let args: Vec<&str> = ["plan", "--profile", profile.to_str().unwrap()]
        .into_iter()
        .chain(args.split(' '))
        .collect();
    let text = flat(&stdout(&gpipe_in(folder.path(), &args)));
    let (_, behind) = text.split_once("slowest stage ").unwrap();
    let (slowest, _) = behind.split_once(" (forward and backward)").unwrap();
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    let stages = page.split("<tr role=\"row\" class=\"stage\">").skip(1);
    let rows: Vec<&str> = stages
        .map(|stage| stage.split("</tr>").next().unwrap())
        .collect();
    // Stages that are nearly as slow are at 100 %, too.
    let together = format!("data-k=\"together\">{slowest}</td>");
    let slow = rows.iter().find(|row| row.contains(&together));
    let slow = slow.unwrap_or_else(|| panic!("{slowest}: {rows:?}"));
    assert!(slow.contains("</span>100 %</td>"), "{slow}");
}
