//! Which pieces leave a device, by the number of copies.

use gpipe::partitioner::{Bytes, MicroId, Plan, ScheduleKind, Shape, StageId};
use gpipe::{Pipeline, PipelineBuilder, settings::Recompute};

use super::builder;
use crate::harness::Test;
use crate::simulated::counted;
use crate::support::models;

pub(super) fn tests() -> Vec<Test> {
    vec![
        ("offload::small_pieces_stay", small),
        ("offload::what_is_taken_up_directly_stays", direct),
        ("offload::a_schedule_names_micro_batches_of_its_own", named),
        (
            "offload::a_plan_says_what_leaves_and_whether_there_are_graphs",
            planned,
        ),
    ]
}

fn plain(schedule: ScheduleKind) -> PipelineBuilder {
    builder(&models::mlp(), schedule, &Recompute::Never)
}

/// The copies of the fifth step, and whether there were graphs.
fn copies(builder: PipelineBuilder) -> (u64, bool) {
    let model = models::mlp();
    let mut pipe: Pipeline = builder.build().unwrap();
    let (x, y) = (model.batch)(8);
    let mut before = 0;
    for _ in 0..5 {
        before = counted("copy");
        let report = pipe.train_step(&x, &y, model.loss).unwrap();
        report.read().unwrap();
    }
    let uses = pipe.cuda_graphs().unwrap();
    let copies = counted("copy") - before;
    (copies, uses.iter().any(|used| used.captured > 0))
}

fn small() {
    let copies = |least| {
        let builder = plain(ScheduleKind::GPipe).offload(&[0, 1]);
        copies(builder.offload_at_least(Bytes(least))).0
    };
    assert!(copies(1) > copies(256 << 10));
}

/// If every forward is followed by its own backward, nothing is moved.
fn direct() {
    let copies = |stages: &[usize]| copies(plain(ScheduleKind::OneFOneB).offload(stages)).0;
    assert_eq!(copies(&[1]), copies(&[]));
    assert!(copies(&[0]) > copies(&[]));
}

fn named() {
    let copies = |micro_batches: &[usize]| {
        let kind = ScheduleKind::GPipe;
        let schedule = kind.generate(Shape::new(2, 4)).unwrap().schedule().clone();
        let own = micro_batches.iter().map(|&own| (StageId(0), MicroId(own)));
        let schedule = schedule.with_offloads(own).check().unwrap();
        copies(plain(kind).custom_schedule(schedule)).0
    };
    let none = copies(&[]);
    let [one, two] = [&[0][..], &[0, 1]].map(|own| copies(own) - none);
    assert!(one > 0 && two == 2 * one, "{one} {two}");
}

/// The builder took everything of a plan but these.
fn planned() {
    let layers = models::mlp().parts.len();
    let ran = |offload: [bool; 2], graphs: bool| {
        let text = format!(
            r#"{{"version": 1, "balance": [1, {}], "placement": [0, 1], "schedule": "gpipe",
                "micro_batches": 4, "chunks": 1, "micro_batch_size": 2, "recompute": [false, false],
                "offload": {offload:?}, "cuda_graphs": {graphs}, "bottleneck_us": 1, "step_us": 1,
                "bubble_fraction": 0, "peak_bytes": [1, 1], "alternatives": []}}"#,
            layers - 1
        );
        let plan = Plan::from_json(text, "plan.json").unwrap();
        copies(plain(ScheduleKind::OneFOneB).plan(&plan).unwrap())
    };
    let (none, no_graphs) = ran([false, false], false);
    let (first, _) = ran([true, false], false);
    let (both, _) = ran([true, true], false);
    assert!(none < first && first < both, "{none} {first} {both}");
    assert!(!no_graphs && ran([false, false], true).1);
}
