//! A schedule, its chunks and recomputation are chosen for speed and memory alone.

use super::{losses, metrics, train};

use gpipe_partitioner::ScheduleKind;
use serde_json::Value;
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

/// How many actions the last step had, in all and of recomputes.
fn actions(folder: &Path, out: &str) -> (usize, usize) {
    let trace = fs::read(folder.join(out).join("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = events.iter().filter(|event| event["ph"] == "X");
    let recomputes = spans.clone().filter(|event| event["cat"] == "recompute");
    (spans.count(), recomputes.count())
}

/// Every schedule that trains, with the numbers of chunks that it is tried with.
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
