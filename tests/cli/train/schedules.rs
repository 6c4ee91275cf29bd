//! Schedule, chunks and recomputation affect only speed and memory.

use super::{losses, metrics, train};
use crate::run::printed;

use gpipe_partitioner::{Plan, ScheduleKind};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Six layers: up to three stages on each of two devices.
const MODEL: [&str; 8] = [
    "--layers",
    "4",
    "--dropout",
    "0.1",
    "--seed",
    "1",
    "--steps",
    "3",
];
const MICRO: usize = 4;

/// Numbers of the last step's actions, and of its recomputes.
fn actions(folder: &Path, out: &str) -> (usize, usize) {
    let trace = fs::read(folder.join(out).join("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = events.iter().filter(|event| event["ph"] == "X");
    let recomputes = spans.clone().filter(|event| event["cat"] == "recompute");
    (spans.count(), recomputes.count())
}

/// Every schedule that trains, with the numbers of chunks to test.
fn schedules() -> impl Iterator<Item = (ScheduleKind, usize)> {
    ScheduleKind::ALL
        .into_iter()
        .filter(|kind| *kind != ScheduleKind::ForwardOnly)
        .flat_map(|kind| {
            let chunks = match kind {
                ScheduleKind::Interleaved1F1B
                | ScheduleKind::LoopedBfs
                | ScheduleKind::InterleavedZb => vec![2, 3],
                ScheduleKind::Auto => vec![1, 2],
                _ => vec![kind.default_chunks()],
            };
            chunks.into_iter().map(move |chunks| (kind, chunks))
        })
}

#[test]
fn losses_are_the_same_to_the_last_bit_over_schedules_chunks_and_recomputation() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(
        folder,
        "plain",
        &[&MODEL[..], &["--devices", "cpu"]].concat(),
    );
    let expected = losses(folder, "plain");
    assert_eq!(expected.len(), 3);
    for (kind, chunks) in schedules() {
        for (recompute, recomputed) in [("never", 0), ("except-last", MICRO - 1), ("always", MICRO)]
        {
            let (name, chunks_flag) = (kind.name(), chunks.to_string());
            let out = format!("{name}-{chunks}-{recompute}");
            let flags = [
                "--devices",
                "cpu,cpu",
                "--schedule",
                name,
                "--chunks",
                &chunks_flag,
                "--recompute",
                recompute,
            ];
            let summary = train(folder, &out, &[&MODEL[..], &flags].concat());
            assert_eq!(losses(folder, &out), expected, "{out}");
            assert_eq!(summary["schedule"], name);
            for line in metrics(folder, &out) {
                assert_eq!(
                    (&line["chunks"], &line["recompute"]),
                    (&chunks.into(), &recompute.into())
                );
            }
            let stages = 2 * chunks;
            let (all, recomputes) = actions(folder, &out);
            assert_eq!(recomputes, stages * recomputed, "{out}");
            assert!(
                (2..=3).contains(&((all - recomputes) / (stages * MICRO))),
                "{out}"
            );
        }
    }
}

/// A profile of six equal layers for micro-batches of 4 samples: two devices with 2000 KiB each cannot hold
/// the activations of a good schedule.
fn tight_profile(folder: &Path) {
    let layer = |index: usize| {
        json!({
            "name": format!("block.{index}"), "forward_us": 1000, "backward_input_us": 1000,
            "backward_weight_us": 500, "parameter_bytes": 1 << 10,
            "activation_bytes": 1 << 20, "output_bytes": 1 << 16,
        })
    };
    let layers: Vec<Value> = (0..6).map(layer).collect();
    let profile = json!({"version": 1, "device": "cpu", "batch": 4, "layers": layers});
    fs::write(folder.join("profile.json"), profile.to_string()).unwrap();
}

/// A plan for tight memory recomputes single micro-batches: it says so, and trains with the losses of any
/// other schedule.
#[test]
fn a_plan_that_recomputes_single_micro_batches_trains_to_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tight_profile(folder);
    let plan = "plan --profile profile.json --devices 2 --batch 16 --micro 8 --memory 2000KiB \
                -o plan.json";
    let text = printed(folder, plan);
    let plan = Plan::read(folder.join("plan.json")).unwrap();
    let counts = plan.computed.as_ref().unwrap().recompute_counts();
    let single: Vec<usize> = (counts.iter().copied())
        .filter(|count| (1..8).contains(count))
        .collect();
    assert!(!single.is_empty(), "{counts:?}");
    assert_eq!(plan.recompute, vec![false; counts.len()]);
    for count in &single {
        assert!(text.contains(&format!("{count} of 8")), "{text}");
    }
    let flags = [&MODEL[..], &["--batch", "16", "--micro", "8"]].concat();
    train(
        folder,
        "plain",
        &[&flags[..], &["--devices", "cpu"]].concat(),
    );
    let planned = "train --data text.txt --json --out planned --layers 4 --d-model 16 --heads 2 \
                   --seq 16 --batch 16 --steps 3 --threads-per-stage 1 --dropout 0.1 --seed 1 \
                   --devices cpu,cpu --plan plan.json";
    printed(folder, planned);
    assert_eq!(losses(folder, "planned"), losses(folder, "plain"));
    let (_, recomputes) = actions(folder, "planned");
    assert_eq!(recomputes, counts.iter().sum::<usize>());
}

/// Likewise with a link to host memory, over which single micro-batches are offloaded.
#[test]
fn a_plan_that_offloads_single_micro_batches_trains_to_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tight_profile(folder);
    let plan = "plan --profile profile.json --devices 2 --batch 16 --micro 8 --memory 2000KiB \
                --host-link 10GB/s,1us -o plan.json";
    let text = printed(folder, plan);
    let plan = Plan::read(folder.join("plan.json")).unwrap();
    let schedule = plan.computed.as_ref().unwrap();
    let counts = schedule.offload_counts();
    let most = counts.iter().copied().max().unwrap_or(0);
    assert!(most > 0, "{text}");
    assert_eq!(plan.offload, vec![false; counts.len()]);
    assert!(text.contains(&format!("{most} of 8")), "{text}");
    let flags = [&MODEL[..], &["--batch", "16", "--micro", "8"]].concat();
    train(
        folder,
        "plain",
        &[&flags[..], &["--devices", "cpu"]].concat(),
    );
    let planned = "train --data text.txt --json --out planned --layers 4 --d-model 16 --heads 2 \
                   --seq 16 --batch 16 --steps 3 --threads-per-stage 1 --dropout 0.1 --seed 1 \
                   --devices cpu,cpu --plan plan.json";
    printed(folder, planned);
    assert_eq!(losses(folder, "planned"), losses(folder, "plain"));
}
