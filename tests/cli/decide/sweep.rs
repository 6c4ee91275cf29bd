//! `gpipe-rs simulate --sweep`.

use serde_json::Value;

use super::{gpipe, number, refused, simulate, stdout};

fn sweep(flags: &[&str]) -> std::process::Output {
    gpipe(&[&["simulate"], flags].concat())
}

fn as_json(flags: &[&str]) -> Vec<Value> {
    let text = stdout(&sweep(&[flags, &["--json"]].concat()));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_sweep_has_every_combination_once_with_the_numbers_of_each_alone() {
    let all = as_json(&[
        "--sweep",
        "devices=2,4",
        "--sweep",
        "micro=4,8,8",
        "--sweep",
        "schedule=1f1b,zbv",
        "--input-us",
        "1300",
    ]);
    assert_eq!(all.len(), 8);
    for one in &all {
        let [p, m] = ["devices", "micro_batches"].map(|key| one[key].as_u64().unwrap() as usize);
        let schedule = one["schedule"].as_str().unwrap();
        let alone = simulate(schedule, p, m, &["--input-us", "1300"]);
        for key in ["makespan_us", "bubble_fraction", "chunks"] {
            assert_eq!(one[key], alone[key], "{key} {one}");
        }
    }
}

/// `auto` takes the better of one and two stages per device, so a sweep must not fix its chunks at one.
#[test]
fn auto_chooses_its_chunks_in_a_sweep_too() {
    let all = as_json(&[
        "--devices",
        "4",
        "--sweep",
        "micro=4,8",
        "--sweep",
        "schedule=auto",
    ]);
    for (one, m) in all.iter().zip([4, 8]) {
        let alone = simulate("auto", 4, m, &[]);
        assert_eq!(alone["chunks"], 2);
        for key in ["makespan_us", "chunks"] {
            assert_eq!(one[key], alone[key], "{key} {one}");
        }
    }
    let fixed = [
        "--devices",
        "4",
        "--chunks",
        "1",
        "--sweep",
        "micro=4,8",
        "--sweep",
        "schedule=auto",
    ];
    assert!(as_json(&fixed).iter().all(|one| one["chunks"] == 1));
}

/// Schedules that do not fit are left out of a sweep.
#[test]
fn a_sweep_keeps_to_the_memory() {
    let flags = [
        "--devices",
        "4",
        "--sweep",
        "micro=8",
        "--sweep",
        "schedule=gpipe,1f1b,auto",
        "--activation-bytes",
        "1GiB",
        "--memory",
        "4GiB",
    ];
    let all = as_json(&flags);
    assert_eq!(
        all[0]["refused"],
        "each device takes 4.0 GiB more than its 4.0 GiB"
    );
    assert!(
        all[1..]
            .iter()
            .all(|one| number(&one["peak_bytes"]) <= f64::from(1 << 30) * 4.0)
    );
    let text = stdout(&sweep(&flags));
    assert!(
        text.contains("\ngpipe, 4 devices, 1 chunk, 8 micro-batches: each device takes"),
        "{text}"
    );
}

#[test]
fn what_is_not_swept_stays_as_its_flag_says() {
    let fixed = [
        "--devices",
        "4",
        "--micro",
        "8",
        "--schedule",
        "interleaved-1f1b",
    ];
    let all = as_json(&[&fixed[..], &["--sweep", "chunks=1,2,4"]].concat());
    let chunks: Vec<_> = all
        .iter()
        .map(|one| one["chunks"].as_u64().unwrap())
        .collect();
    assert_eq!(chunks, [1, 2, 4]);
    let bubble = |at: usize| number(&all[at]["bubble_fraction"]);
    assert!(bubble(2) < bubble(1) && bubble(1) < bubble(0));
    // Without a schedule, all that train are swept.
    let every = as_json(&["--devices", "4", "--sweep", "micro=4"]);
    assert!(every.len() > 10);
    assert!(every.iter().all(|one| one["schedule"] != "forward-only"));
}

#[test]
fn a_sweep_is_a_table_and_a_page() {
    let flags = [
        "--devices",
        "3",
        "--sweep",
        "micro=4,9",
        "--sweep",
        "schedule=zbv,gpipe",
        "--chunks",
        "2",
    ];
    let text = stdout(&sweep(&flags));
    assert!(
        text.starts_with("all with schedule zbv, devices 3, chunks 2\n"),
        "{text}"
    );
    for row in ["            4  13.00 ms", "            9  28.00 ms"] {
        assert!(text.contains(row), "{text}");
    }
    // GPipe has one stage per device.
    assert!(
        text.contains("not for these numbers:\ngpipe, 3 devices, 2 chunks, 4 micro-batches"),
        "{text}"
    );
    let page = stdout(&sweep(&[&flags[..], &["--format", "html"]].concat()));
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("<polyline"),
        "{page}"
    );
    assert_eq!(page.matches("class=\"mark\"").count(), 2);
    assert_eq!(
        page.matches("<tr role=\"row\"><th role=\"rowheader\" scope=\"row\">")
            .count(),
        4
    );
}

/// Regression test: GPipe's line was hidden by that of 1F1B, and the legend said `1 chunks` and did not fit a
/// narrow screen.
#[test]
fn lines_of_equal_values_are_both_seen() {
    let page = |flags: &[&str]| {
        let own = [
            "--devices",
            "4",
            "--sweep",
            "micro=4,8,16",
            "--format",
            "html",
        ];
        stdout(&sweep(&[&own, flags].concat()))
    };
    let equal = page(&["--sweep", "schedule=gpipe,1f1b,zb-h1"]);
    // Alternating dashes, for both pieces of the two equal lines.
    for offset in ["0", "-9"] {
        let own = format!("stroke-dasharray=\"9 9\" stroke-dashoffset=\"{offset}\"");
        assert_eq!(equal.matches(&own).count(), 2, "{own}");
    }
    assert_eq!(
        equal
            .matches("stroke-dasharray=\"none\" stroke-dashoffset")
            .count(),
        2
    );
    // Concentric points: the first circle is wider than any single point.
    assert!(equal.contains("r=\"6.7\""), "{equal}");
    let (chart, legend) = equal.split_once("<ul class=\"keys\">").unwrap();
    assert!(chart.trim_end().ends_with("</svg>\n</div>"));
    assert!(legend.contains("</svg>gpipe</li>") && legend.contains("</svg>1f1b</li>"));
    assert!(!equal.contains("1 chunks"));

    // Usual chunk counts do not get lines of their own.
    let usual = page(&["--sweep", "schedule=1f1b,zbv"]);
    assert!(usual.contains("1 chunk a device: 1f1b; 2 chunks a device: zbv."));
    let swept = page(&[
        "--sweep",
        "schedule=interleaved-1f1b",
        "--sweep",
        "chunks=1,2",
    ]);
    assert!(swept.contains("interleaved-1f1b, 1 chunk</li>") && swept.contains(", 2 chunks</li>"));
}

#[test]
fn a_wrong_sweep_says_what_is_wrong() {
    for (flags, why) in [
        (&["--sweep", "micro=4"][..], "--devices is missing"),
        (
            &["--sweep", "speed=4", "--devices", "2", "--micro", "2"][..],
            "devices, micro, schedule, chunks, jitter or mtbf",
        ),
        (&["--sweep", "micro=0", "--devices", "2"][..], "at least 1"),
        (
            &["--sweep", "micro=4", "--devices", "2", "--format", "svg"][..],
            "text, json or html",
        ),
        (
            &["--sweep", "jitter=200", "--devices", "2", "--micro", "4"][..],
            "in percent, from 0 to 100",
        ),
        (
            &["--sweep", "mtbf=6h", "--devices", "2", "--micro", "4"][..],
            "--checkpoint-time, such as 30s",
        ),
        (
            &["--sweep", "micro=4", "--devices", "2", "--compare"][..],
            "--compare",
        ),
    ] {
        let error = refused(&sweep(flags), 2);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_computed_schedule_says_how_far_from_the_best_it_can_be() {
    let numbers = simulate("auto", 3, 6, &[]);
    let [step, bound] = ["makespan_us", "lower_bound_us"].map(|key| number(&numbers[key]));
    assert!(bound <= step && number(&numbers["gap"]) >= 0.0, "{numbers}");
    let text = stdout(&sweep(&[
        "--schedule",
        "auto",
        "--devices",
        "3",
        "--micro",
        "6",
    ]));
    assert!(text.contains("no schedule"), "{text}");
    assert!(simulate("1f1b", 3, 6, &[]).get("lower_bound_us").is_none());
    // Regression test: the time of all steps was compared with the bound of one: "at most 1712.3 % from the
    // best".
    let several = simulate("auto", 3, 6, &["--steps", "5"]);
    assert!(several.get("lower_bound_us").is_none() && several.get("gap").is_none());
}
