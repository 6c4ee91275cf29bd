//! Offload of activations and CUDA graphs as `plan` chooses them from profiles made by hand.

use std::fs;

use serde_json::{Value, json};

use super::{flat, gpipe_in, stdout};

/// Eight layers on a GPU, each 1 ms forward and 2 ms backward with 64 MiB of activations; the host submits a
/// pass in `host` microseconds.
fn profile(host: f64) -> Value {
    let layer = |index: usize| {
        json!({
            "name": format!("block.{index}"), "forward_us": 1000, "backward_input_us": 1000,
            "backward_weight_us": 1000, "parameter_bytes": 1 << 20,
            "activation_bytes": 64 << 20, "output_bytes": 1 << 10,
            "host": {
                "forward_us": host, "backward_input_us": host, "backward_weight_us": host,
                "backward_us": host,
            },
        })
    };
    let layers: Vec<Value> = (0..8).map(layer).collect();
    json!({"version": 1, "device": "cuda:0", "batch": 8, "layers": layers})
}

/// The plan as JSON, and its printed text as one line.
fn planned(profile: &Value, flags: &str) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
    let mut args = vec!["plan", "--profile", "profile.json"];
    args.extend(flags.split_whitespace());
    args.extend(["-o", "plan.json"]);
    let text = stdout(&gpipe_in(folder.path(), &args));
    let plan = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    (serde_json::from_str(&plan).unwrap(), flat(&text))
}

fn step(plan: &Value) -> f64 {
    super::number(&plan["step_us"])
}

/// GPipe holds eight micro-batches of 256 MiB each: 1 GiB only has room for those in transit.
const TIGHT: &str = "--devices 2 --micro 8 --schedule gpipe --chunks 1 --memory 1GiB";

#[test]
fn offload_is_chosen_where_the_link_is_faster_than_the_recompute() {
    // Moving 256 MiB takes 2.7 ms, a forward 4 ms.
    let (plan, text) = planned(&profile(10.0), &format!("{TIGHT} --host-link 100GB/s,10us"));
    assert_eq!(plan["offload"][0], json!(true), "{text}");
    assert_eq!(plan["recompute"], json!([false, false]), "{text}");
    assert!(
        text.contains("of each micro-batch of stages 0, 1 wait"),
        "{text}"
    );
    assert!(
        text.contains("kept on the devices, device 0 would need"),
        "{text}"
    );
    let (again, _) = planned(
        &profile(10.0),
        &format!("{TIGHT} --host-link 100GB/s,10us --offload never"),
    );
    assert_eq!(again["offload"], Value::Null);
    assert!(step(&plan) < step(&again), "{text}");
}

#[test]
fn where_the_link_is_slow_stages_recompute() {
    let (plan, text) = planned(&profile(10.0), &format!("{TIGHT} --host-link 2GB/s,10us"));
    assert_eq!(plan["offload"], Value::Null, "{text}");
    assert_eq!(plan["recompute"][0], json!(true), "{text}");
    let said = "recomputed, not offloaded: stage";
    assert!(
        text.contains(said) && text.contains("since a step would take"),
        "{text}"
    );
    let (_, text) = planned(&profile(10.0), TIGHT);
    assert!(text.contains("give one with --host-link"), "{text}");
}

#[test]
fn without_need_nothing_is_offloaded() {
    let roomy = "--devices 2 --micro 8 --schedule gpipe --chunks 1 --memory 24GiB";
    let (plan, text) = planned(&profile(10.0), &format!("{roomy} --host-link 100GB/s,10us"));
    assert_eq!(plan["offload"], Value::Null, "{text}");
    assert!(!text.contains("offload"), "{text}");
}

/// The host takes 2 ms for 1 ms of device work.
#[test]
fn graphs_are_chosen_where_the_host_is_the_limit() {
    let flags = "--devices 2 --micro 8 --schedule 1f1b --chunks 1";
    let (plan, text) = planned(&profile(2000.0), flags);
    assert_eq!(plan["cuda_graphs"], json!(true), "{text}");
    assert!(
        text.contains("CUDA graphs on 2 of 2 stages; without, a step would take"),
        "{text}"
    );
    let never = format!("{flags} --cuda-graphs never");
    let (without, text) = planned(&profile(2000.0), &never);
    assert_eq!(without["cuda_graphs"], Value::Null);
    assert!(step(&plan) < 0.8 * step(&without));
    assert!(text.contains("host-bound: "), "{text}");
    assert!(
        text.contains(
            "CUDA graphs none, though the devices wait for the host: --cuda-graphs never"
        ),
        "{text}"
    );
    let (fast, text) = planned(&profile(10.0), flags);
    assert_eq!(fast["cuda_graphs"], Value::Null, "{text}");
    assert!(!text.contains("CUDA graphs"), "{text}");
}

#[test]
fn what_cannot_be_captured_or_does_not_fit_has_no_graphs() {
    let flags = "--devices 2 --micro 8 --schedule 1f1b --chunks 1";
    let mut drawing = profile(2000.0);
    for layer in drawing["layers"].as_array_mut().unwrap() {
        layer["no_graph"] = json!("it draws random numbers");
    }
    let (plan, text) = planned(&drawing, flags);
    assert_eq!(plan["cuda_graphs"], Value::Null);
    let said = "though the devices wait for the host: layer `block.0`: it draws random numbers";
    assert!(text.contains(said), "{text}");
    // 1F1B holds two micro-batches, and each slot has separate working memory.
    let mut large = profile(2000.0);
    for layer in large["layers"].as_array_mut().unwrap() {
        layer["temporary_bytes"] = json!(512 << 20);
    }
    let tight = format!("{flags} --recompute never --memory 1100MiB");
    let (plan, text) = planned(&large, &tight);
    assert_eq!(plan["cuda_graphs"], Value::Null, "{text}");
    assert!(
        text.contains("wait for the host: device 0 would need"),
        "{text}"
    );
}

#[test]
fn simulate_shows_both() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("profile.json"),
        profile(2000.0).to_string(),
    )
    .unwrap();
    let makespan = |flags: &str| {
        let args = "simulate --schedule gpipe --devices 2 --micro 8 --profile profile.json --json";
        let args: Vec<&str> = args.split(' ').chain(flags.split_whitespace()).collect();
        let text = stdout(&gpipe_in(folder.path(), &args));
        let value: Value = serde_json::from_str(&text).unwrap();
        (
            super::number(&value["makespan_us"]),
            super::number(&value["peak_bytes"][0]),
        )
    };
    let (eager, whole) = makespan("");
    let (graphs, _) = makespan("--cuda-graphs");
    assert!(graphs < 0.8 * eager, "{graphs} {eager}");
    let (fast, little) = makespan("--offload always --host-link 100GB/s,10us");
    assert!(little < 0.6 * whole, "{little} {whole}");
    let (slow, _) = makespan("--offload always --host-link 1GB/s,10us");
    assert!(slow > 2.0 * fast, "{slow} {fast}");
}
