//! A pipeline over two processes, one of which fails: both name the place, nothing is left of it, and later
//! steps have the bits of a training without failures.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::job::{Ended, Job};
use super::parts::PATIENCE;
use super::training::{FAULT, FOLDER, UPDATES};

/// A long patience, so that a busy machine causes no loss of a process.
const PATIENT: (&str, &str) = (PATIENCE, "120000");

fn lines(ended: &Ended, prefix: &str) -> Vec<String> {
    let lines = ended.printed.lines();
    let lines = lines.filter_map(|line| line.strip_prefix(prefix));
    lines.map(str::to_owned).collect()
}

/// Losses and norms, and weights, of a training's processes.
#[track_caller]
fn results(ends: &[Ended]) -> (Vec<String>, BTreeSet<String>) {
    for ended in ends {
        assert_eq!(ended.code(), Some(0), "{}", ended.printed);
        assert_eq!(lines(ended, "number "), lines(&ends[0], "number "));
    }
    let weights = ends.iter().flat_map(|ended| lines(ended, "weight "));
    (lines(&ends[0], "number "), weights.collect())
}

/// Results of a single process without failures.
fn expected() -> &'static (Vec<String>, BTreeSet<String>) {
    static EXPECTED: OnceLock<(Vec<String>, BTreeSet<String>)> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let all = results(&Job::start("train", 1, &[]).all());
        assert_eq!((all.0.len(), all.1.len()), (3 * UPDATES, 7));
        all
    })
}

/// One of two processes fails in this way; each prints these words, and the training has the expected
/// results.
#[track_caller]
fn goes_on(fault: &str, rank: usize, words: &[&str]) {
    let expected = expected();
    let fault = format!("{fault}:{rank}");
    let folder = tempfile::tempdir().unwrap();
    let folder = (FOLDER, folder.path().to_str().unwrap());
    let ends = Job::start("train", 2, &[PATIENT, (FAULT, &fault), folder]).all();
    for (own, ended) in ends.iter().enumerate() {
        let printed = &ended.printed;
        let said = lines(ended, "failed: ");
        assert_eq!(said.len(), 1, "{fault}: rank {own}: {printed}");
        for word in words {
            assert!(
                said[0].contains(word),
                "{fault}: rank {own}: no `{word}`: {}",
                said[0]
            );
        }
        // The error of the other process names the rank.
        let elsewhere = format!("rank {rank}");
        assert!(
            own == rank || said[0].contains(&elsewhere),
            "{fault}: rank {own}: {}",
            said[0]
        );
        assert!(
            !printed.contains("left a trace"),
            "{fault}: rank {own}: {printed}"
        );
        assert!(
            !printed.contains("frame #"),
            "{fault}: rank {own}: {printed}"
        );
    }
    assert_eq!(&results(&ends), expected, "{fault}");
}

#[test]
fn layers_fail_in_any_rank() {
    for (rank, stage, layer) in [(0, "stage 0", "`first`"), (1, "stage 1", "`third`")] {
        let place = [stage, layer, "micro-batch 1"];
        let with = |why| [&place[..], &[why]].concat();
        goes_on("layer.error", rank, &with("the layer gives up"));
        goes_on("layer.panic", rank, &with("the layer panics"));
        goes_on("layer.memory", rank, &with("memory"));
        goes_on(
            "layer.backward",
            rank,
            &["micro-batch 1", stage, "modified by an inplace operation"],
        );
    }
}

#[test]
fn a_loss_function_fails() {
    goes_on(
        "loss",
        1,
        &["stage 1", "micro-batch 1", "the loss gives up"],
    );
}

#[test]
fn a_batch_is_wrong_in_one_rank() {
    for rank in 0..2 {
        goes_on("samples", rank, &["8", "3"]);
        goes_on(
            "size",
            rank,
            &[
                "a training step of 8 samples",
                "a training step of 4 samples",
            ],
        );
    }
}

#[test]
fn a_rank_makes_another_call() {
    for rank in 0..2 {
        goes_on("call", rank, &["zero_grad", "a training step of 8 samples"]);
        goes_on(
            "saves",
            rank,
            &["a checkpoint of step 2", "a training step of 8 samples"],
        );
        goes_on(
            "evaluates",
            rank,
            &["an inference of", "a training step of 8 samples"],
        );
    }
}

#[test]
fn an_optimizer_has_other_numbers_in_one_rank() {
    for rank in 0..2 {
        goes_on("rate", rank, &["Optimizer::step", "lr: 0.02", "lr: 0.01"]);
    }
}

#[test]
fn an_optimizer_cannot_prepare_in_one_rank() {
    for rank in 0..2 {
        goes_on("optimizer", rank, &["NaN"]);
    }
}

#[test]
fn a_name_is_unknown_in_one_rank() {
    for rank in 0..2 {
        goes_on("load", rank, &["nobody.weight"]);
    }
}

#[test]
fn a_norm_is_not_a_number_in_one_rank() {
    for rank in 0..2 {
        let fault = format!("nan:{rank}");
        let ends = Job::start("train", 2, &[PATIENT, (FAULT, &fault)]).all();
        for (own, ended) in ends.iter().enumerate() {
            let said = format!("rank {own} has the norm NaN");
            assert!(ended.printed.contains(&said), "{}", ended.printed);
            assert!(!ended.printed.contains("left a trace"), "{}", ended.printed);
        }
        assert_eq!(&results(&ends), expected());
    }
}

#[test]
fn a_rank_has_other_settings() {
    for rank in 0..2 {
        let fault = format!("settings:{rank}");
        for ended in Job::start("train", 2, &[PATIENT, (FAULT, &fault)]).all() {
            assert_ne!(ended.code(), Some(0), "{}", ended.printed);
            let said = lines(&ended, "error: ");
            assert!(said[0].contains("`micro_batches` is"), "{}", said[0]);
            assert!(said[0].contains("in rank 1"), "{}", said[0]);
        }
    }
}

/// The process ends without a message: the others end, with its name, and may be restarted.
#[test]
fn a_rank_ends_early() {
    for rank in 0..2 {
        for fault in ["ends", "panics", "drops"] {
            let fault = format!("{fault}:{rank}");
            let mut job = Job::start("train", 2, &[PATIENT, (FAULT, &fault)]);
            let ended = job.others(rank).remove(0);
            assert_eq!(ended.code(), Some(75), "{fault}: {}", ended.printed);
            let said = format!("rank {rank} on `");
            assert!(ended.lost().starts_with(&said), "{fault}: {}", ended.lost());
            assert!(
                !ended.printed.contains("frame #"),
                "{fault}: {}",
                ended.printed
            );
        }
    }
}
