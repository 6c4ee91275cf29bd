//! What recomputing stages keep may be in the host's memory meanwhile.

use gpipe::partitioner::ScheduleKind;
use gpipe::streams::Recorder;
use gpipe::{Pipeline, PipelineBuilder, Recompute};

use crate::setup::{Numbers, train};
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, cpus};

fn builder(model: &Model, schedule: ScheduleKind, recompute: Recompute) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&cpus(2))
        .schedule(schedule)
        .micro_batches(4)
        .recompute(recompute)
        .threads_per_stage(1)
        .seed(5)
}

fn same(one: &Numbers, other: &Numbers, case: &str) {
    assert_eq!(one.0, other.0, "{case}");
    assert_same_bits(&one.1, &other.1, case);
}

#[test]
fn no_number_changes_and_copies_are_waited_for() {
    for model in [models::mlp(), models::unet(), models::transformer(0.2)] {
        let by_layer = (0..model.parts.len()).map(|layer| layer % 2 == 0).collect();
        let recomputes = [
            Recompute::Always,
            Recompute::ExceptLast,
            Recompute::Layers(by_layer),
        ];
        for (turn, recompute) in recomputes.into_iter().enumerate() {
            let schedule = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1][turn % 2];
            let case = format!("{} {schedule} {recompute}", model.name);
            let build = || builder(&model, schedule, recompute.clone());
            let plain = train(&mut build().build().unwrap(), &model);
            let on_cpu = build().offload(&[0, 1]).build();
            same(&plain, &train(&mut on_cpu.unwrap(), &model), &case);
            let copies = |offload: &[usize]| {
                let recorder = Recorder::new(&[Some(0), Some(1)]);
                let pipe = build().offload(offload).record_streams(&recorder).build();
                same(&plain, &train(&mut pipe.unwrap(), &model), &case);
                (0..8).for_each(|seed| recorder.play(seed).unwrap());
                let summary = recorder.check().unwrap();
                assert_eq!(summary.host_waits, 0, "{case}");
                summary.copies
            };
            assert!(copies(&[0, 1]) > copies(&[1]), "{case}");
            assert!(copies(&[1]) > copies(&[]), "{case}");
        }
    }
}

#[test]
fn stages_that_keep_everything_cannot_offload() {
    let model = models::mlp();
    let build = |stages: &[usize]| {
        let builder = builder(
            &model,
            ScheduleKind::GPipe,
            Recompute::Stages(vec![true, false]),
        );
        builder.offload(stages).build().map(drop)
    };
    build(&[0]).unwrap();
    let message = build(&[1]).unwrap_err().to_string();
    assert!(
        message.contains("stage 1 is to offload, but recomputes nothing"),
        "{message}"
    );
    let message = build(&[2]).unwrap_err().to_string();
    assert!(message.contains("but there are 2"), "{message}");
}
