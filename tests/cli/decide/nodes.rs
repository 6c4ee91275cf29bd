//! Devices on several machines, and replicas of the pipeline.

use std::fs;

use serde_json::{Value, json};

use super::{folder_with_profile, gpipe, gpipe_in, number, refused, said, simulate, stdout};

/// Whether a time equals the one computed by hand.
fn is(value: &Value, expected: f64) -> bool {
    (number(value) - expected).abs() < 1e-6
}

/// Two replicas of four devices, eight micro-batches each: 11 slots of 3 ms. Each device sends 2 · 1/2 of a
/// megabyte, which takes 1 ms: all but the first stage's ends before the step's last action.
#[test]
fn replicas_add_up_their_gradients_at_the_end() {
    let flags = [
        "--replicas",
        "2",
        "--gradient-bytes",
        "1MB",
        "--link",
        "1GB/s",
    ];
    let found = simulate("1f1b", 8, 16, &flags);
    assert!(is(&found["makespan_us"], 33_000.0 + 1000.0), "{found}");
    assert!(is(&found["exposed_us"], 1000.0), "{found}");
    let asked = [
        &found["devices"],
        &found["micro_batches"],
        &found["replicas"],
    ];
    assert_eq!(asked, [&json!(8), &json!(16), &json!(2)]);
    assert_eq!(found["idle_us"].as_array().unwrap().len(), 4);
    // Replicas of a stage are adjacent: two on each node change nothing.
    let nodes = ["--nodes", "4", "--node-link", "1GB/s"];
    let spread = simulate("1f1b", 8, 16, &[&flags[..], &nodes].concat());
    assert_eq!(spread["makespan_us"], found["makespan_us"]);
    assert_eq!(spread["nodes"], json!([2, 2, 2, 2]));
    // With one on each node, a ten times slower link connects them.
    let nodes = ["--nodes", "8", "--node-link", "100MB/s"];
    let slow = simulate("1f1b", 8, 16, &[&flags[..], &nodes].concat());
    assert!(is(&slow["exposed_us"], 10_000.0), "{slow}");
}

#[test]
fn one_replica_on_one_node_is_as_without() {
    let flags = [
        "--link",
        "1GB/s,100us",
        "--output-bytes",
        "1MB",
        "--gradient-bytes",
        "1MB",
    ];
    let without = simulate("zbv", 4, 8, &flags);
    assert_eq!(without.get("replicas"), None);
    let one = ["--replicas", "1", "--nodes", "1", "--node-link", "1kB/s,1s"];
    let mut with = simulate("zbv", 4, 8, &[&flags[..], &one].concat());
    assert_eq!(with["nodes"], json!([4]));
    with.as_object_mut().unwrap().remove("nodes");
    assert_eq!(with, without);
}

/// GPipe with one micro-batch on three devices: the hop within the node takes 0.1 ms, the one between nodes 1
/// ms in each direction.
#[test]
fn a_hop_between_nodes_takes_its_own_link() {
    let flags = [
        "--link",
        "10GB/s,0us",
        "--output-bytes",
        "1MB",
        "--nodes",
        "2,1",
        "--node-link",
        "8Gbit/s,0us",
    ];
    let found = simulate("gpipe", 3, 1, &flags);
    let hops = 2.0 * 100.0 + 2.0 * 1000.0;
    assert!(is(&found["makespan_us"], 9000.0 + hops), "{found}");
}

/// Two devices per node with two stages each: values of both leave the node.
#[test]
fn devices_share_a_card_unless_they_have_their_own() {
    let flags = [
        "--output-bytes",
        "1MB",
        "--nodes",
        "2",
        "--node-link",
        "1GB/s",
    ];
    let step = |more: &[&str]| {
        let found = simulate("interleaved-1f1b", 4, 8, &[&flags[..], more].concat());
        number(&found["makespan_us"])
    };
    assert!(step(&["--nic-per-device"]) < step(&[]));
}

/// One micro-batch's round trip takes 26 ms. By then process 1 has reported that it is done; it hears of
/// process 0 after 10 ms, and reports so in the vote on the update.
#[test]
fn processes_begin_and_agree_over_the_links() {
    let flags = ["--link", "1GB/s,10ms", "--processes", "2"];
    let found = simulate("gpipe", 2, 1, &flags);
    assert!(is(&found["makespan_us"], 26_000.0), "{found}");
    assert!(is(&found["agreement_us"], 20_000.0), "{found}");
    assert_eq!(found["processes"], json!(2));
    let one = simulate("gpipe", 2, 1, &flags[..2]);
    assert!(is(&one["makespan_us"], 26_000.0), "{one}");
    assert_eq!(one.get("agreement_us"), None);
    let text = "simulate --schedule gpipe --devices 2 --micro 1 --link 1GB/s,10ms --processes 2";
    let text = stdout(&gpipe(&text.split(' ').collect::<Vec<_>>()));
    let line = "2 processes take 20.00 ms more until all have agreed on the step and its update";
    assert_eq!(said(&text, "agreement"), line);
}

#[test]
fn every_rendering_shows_the_exchange() {
    let args = |format: &str| {
        let args = "simulate --schedule 1f1b --devices 4 --micro 8 --replicas 2 --link 1GB/s \
                    --gradient-bytes 5MB --format";
        let words = args.split_whitespace().chain([format]).map(str::to_owned);
        words.collect::<Vec<_>>()
    };
    for (format, sign) in [
        ("text", "all-reduce     5.00 ms for the gradients"),
        ("svg", "all-reduce (A)"),
        ("html", "Exposed all-reduce"),
        ("trace", "\"cat\":\"all-reduce\""),
        ("json", "\"exposed_us\":5000"),
    ] {
        let args = args(format);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let text = stdout(&gpipe(&args));
        assert!(text.contains(sign), "{format}: {text}");
    }
    let text = args("text");
    let text = stdout(&gpipe(&text.iter().map(String::as_str).collect::<Vec<_>>()));
    assert!(
        text.starts_with("1f1b: 2 replicas of 2 devices, 4 micro-batches each\n"),
        "{text}"
    );
    assert!(text.contains("A::"), "{text}");
}

#[test]
fn wrong_spreads_are_told_with_what_to_do() {
    let said = |flags: &str| {
        let all = format!("simulate --schedule 1f1b --devices 8 --micro 16 {flags}");
        refused(&gpipe(&all.split_whitespace().collect::<Vec<_>>()), 2)
    };
    for (flags, hint) in [
        ("--nodes 2", "--node-link <LINK>"),
        ("--node-link 1GB/s", "--nodes <LIST>"),
        ("--nic-per-device", "--nodes <LIST>"),
        (
            "--nodes 3 --node-link 1GB/s",
            "say how many each has, such as 3,3,2",
        ),
        (
            "--nodes 4,2 --node-link 1GB/s",
            "the nodes have 6 devices, and there are 8",
        ),
        ("--nodes 0 --node-link 1GB/s", "must be at least 1"),
        ("--nodes 4,-4 --node-link 1GB/s", "must be at least 1"),
        ("--nodes 4,x --node-link 1GB/s", "`x` is not a whole number"),
        ("--nodes 2 --node-link 10Gbit", "such as 25GB/s,5us"),
        (
            "--replicas 3",
            "8 devices cannot be divided evenly among 3 replicas",
        ),
        ("--replicas 9", "too few for 9 replicas"),
        ("--replicas 0", "must be at least 1"),
        ("--replicas 2 --cores 2", "Cores that the devices share"),
        (
            "--processes 3",
            "3 processes for 8 devices: each must have as many devices",
        ),
    ] {
        let error = said(flags);
        assert!(error.contains(hint), "{flags}: {error}");
    }
    let error = refused(
        &gpipe(
            &"simulate --compare --devices 4 --micro 3 --replicas 2"
                .split(' ')
                .collect::<Vec<_>>(),
        ),
        2,
    );
    assert!(
        error.contains("3 micro-batches cannot be divided evenly"),
        "{error}"
    );
}

#[test]
fn a_plan_for_two_machines_says_so() {
    let folder = folder_with_profile();
    let run = |flags: &str| {
        let all = format!("plan --profile profile.json --devices 4 --micro 8 {flags}");
        gpipe_in(folder.path(), &all.split_whitespace().collect::<Vec<_>>())
    };
    let flags = "--replicas 2 --nodes 2 --node-link 1GB/s,10us --link 10GB/s -o plan.json";
    let text = stdout(&run(flags));
    assert!(text.contains("2 replicas of 2 devices"), "{text}");
    assert!(
        text.contains(" on 2 nodes, 4 micro-batches each of 8 samples"),
        "{text}"
    );
    assert!(text.contains("\nall-reduce     "), "{text}");
    let plan = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(
        (&plan["replicas"], &plan["micro_batches"]),
        (&json!(2), &json!(8))
    );
    let nodes = json!({
        "devices": [2, 2], "nic_per_device": false,
        "link": {"bytes_per_second": 1_000_000_000, "latency_us": 10.0},
    });
    assert_eq!(plan["nodes"], nodes);
    // A network on which the exchange of gradients dominates the step.
    let slow = stdout(&run("--replicas 4 --nodes 4 --node-link 1MB/s"));
    assert!(slow.contains("all-reduce-bound: "), "{slow}");
    let error = refused(&run("--replicas 3"), 2);
    assert!(
        error.contains("4 devices cannot be divided evenly"),
        "{error}"
    );
    let error = refused(&run("--replicas 4 --batch 3"), 2);
    assert!(error.contains("does not make 8 micro-batches"), "{error}");
}
