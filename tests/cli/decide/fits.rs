//! `gpipe-rs simulate --memory`, and the samples of a micro-batch.

use std::fs;

use super::{flat, folder_with_profile, gpipe, gpipe_in, number, refused, simulate, stdout};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Four devices of 1F1B hold four micro-batches, of GPipe all eight.
const KEPT: [&str; 2] = ["--activation-bytes", "1GiB"];

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[test]
fn a_schedule_is_said_to_fit_or_not() {
    for (schedule, memory, fits) in [
        ("1f1b", "4GiB", true),
        ("1f1b", "3GiB", false),
        ("1f1b", "4GiB,3GiB,2GiB,1GiB", true),
        ("gpipe", "4GiB", false),
    ] {
        let json = simulate(schedule, 4, 8, &[&KEPT[..], &["--memory", memory]].concat());
        assert_eq!(json["fits"], fits, "{schedule} {memory}");
        assert_eq!(json["memory"].as_array().unwrap().len(), 4);
    }
    let run = |schedule: &str| {
        let line = format!(
            "simulate --schedule {schedule} --devices 4 --micro 8 --activation-bytes 1GiB --memory 4GiB"
        );
        stdout(&gpipe(&words(&line)))
    };
    assert!(run("1f1b").contains("\nmemory         fits the memory of each device\n"));
    let text = run("gpipe");
    let sentence =
        "\nmemory         does not fit: each device takes 4.0 GiB more than its 4.0 GiB\n";
    assert!(text.contains(sentence), "{text}");
    // Without a limit the output has no `fits`.
    assert!(simulate("1f1b", 4, 8, &KEPT).get("fits").is_none());
}

#[test]
fn auto_keeps_to_the_memory() {
    let with = |memory: &str| simulate("auto", 4, 8, &[&KEPT[..], &["--memory", memory]].concat());
    let free = simulate("auto", 4, 8, &KEPT);
    let peak = |json: &serde_json::Value| {
        let peaks = json["peak_bytes"].as_array().unwrap().iter();
        peaks.map(number).fold(0.0, f64::max)
    };
    assert!(peak(&free) > 2.0 * GIB);
    let tight = with("2GiB");
    assert!(
        peak(&tight) <= 2.0 * GIB && tight["fits"] == true,
        "{tight}"
    );
    assert!(number(&tight["makespan_us"]) > number(&free["makespan_us"]));
    let line =
        "simulate --schedule auto --devices 4 --micro 8 --activation-bytes 1GiB --memory 100MiB";
    assert!(refused(&gpipe(&words(line)), 2).contains("fits the memory"));
}

#[test]
fn a_comparison_says_which_fit_and_marks_the_fastest_of_them() {
    let line = "simulate --compare --devices 4 --micro 8 --activation-bytes 1GiB --memory 3GiB";
    let text = stdout(&gpipe(&words(line)));
    let row = |name: &str| {
        text.lines()
            .find(|line| line[2..].starts_with(name))
            .unwrap()
    };
    assert!(text.contains("* the fastest that fits\n") && row("schedule").ends_with("fits"));
    assert!(
        row("v-half ").ends_with("yes") && row("1f1b ").ends_with("no: 1.0 GiB more"),
        "{text}"
    );
    let marked = text.lines().find(|line| line.starts_with("* ")).unwrap();
    assert!(marked.ends_with("yes"), "{text}");
}

/// Regression test: `forward-only`, which does not train, came first without a note when nothing else fit.
#[test]
fn where_nothing_that_trains_fits_the_nearest_is_named() {
    let line = "simulate --compare --devices 4 --micro 8 --activation-bytes 1GiB \
                --output-bytes 100MiB --memory 512MiB";
    let text = flat(&stdout(&gpipe(&words(line))));
    let wanted = "no schedule that trains fits: the nearest is v-min, 1.6 GiB more; \
                  --recompute always takes less memory";
    assert!(text.contains(wanted), "{text}");
    // The advice leaves out measures that are already taken.
    let tight = line.replace("512MiB", "200MiB") + " --recompute always";
    let again = flat(&stdout(&gpipe(&words(&tight))));
    assert!(again.contains("no schedule that trains fits"), "{again}");
    assert!(!again.contains("takes less memory"), "{again}");
    let (before, _) = text.split_once("forward-only").unwrap();
    assert!(before.contains("gpipe 1 "), "{text}");
}

#[test]
fn a_memory_that_nothing_is_known_of_is_refused() {
    let line = "simulate --schedule 1f1b --devices 4 --micro 8 --memory 4GiB";
    assert!(
        refused(&gpipe(&words(line)), 2)
            .contains("--activation-bytes, such as 1GiB, or a --profile")
    );
    let three = [&words(line)[..7], &KEPT, &["--memory", "1GiB,2GiB,3GiB"]].concat();
    assert!(refused(&gpipe(&three), 2).contains("--memory: "));
}

/// Cuts that fit are preferred; if none fits, the best of all is simulated.
#[test]
fn a_profile_is_cut_for_the_memory() {
    let folder = folder_with_profile();
    let run = |memory: &str, more: &str| {
        let line = format!(
            "simulate --schedule 1f1b --devices 2 --micro 4 --profile profile.json --json --memory {memory}{more}"
        );
        let text = stdout(&gpipe_in(folder.path(), &words(&line)));
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    assert_eq!(run("50MiB", "")["fits"], false);
    assert_eq!(run("50MiB", " --recompute auto")["fits"], true);
    // The fastest cut takes 84 MiB.
    assert_eq!(run("60MiB", "")["fits"], true);
    let makespan = |memory: &str| number(&run(memory, "")["makespan_us"]);
    assert!(makespan("60MiB") > makespan("1GiB"));
    fs::remove_file(folder.path().join("profile.json")).unwrap();
}

/// A profile gives the samples per micro-batch.
#[test]
fn samples_of_a_micro_batch_are_named() {
    let folder = folder_with_profile();
    for what in ["--compare", "--schedule 1f1b"] {
        let line = format!("simulate {what} --devices 2 --micro 4 --profile profile.json");
        let text = stdout(&gpipe_in(folder.path(), &words(&line)));
        let head = text.lines().next().unwrap();
        assert!(
            head.contains("2 devices, 4 micro-batches of 8 samples"),
            "{head}"
        );
    }
    let line = "simulate --compare --devices 2 --micro 4";
    assert!(
        stdout(&gpipe(&words(line))).starts_with("2 devices, 4 micro-batches, the fastest first")
    );
}
