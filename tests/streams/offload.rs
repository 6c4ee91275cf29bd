//! Activations that stages keep for their backwards may be offloaded to host memory.

use gpipe::partitioner::{Bytes, MicroId, Plan, ScheduleKind, Shape, StageId};
use gpipe::torch::streams::Recorder;
use gpipe::{Pipeline, PipelineBuilder, Sequential, settings::Recompute};

use crate::setup::{Numbers, Setup, train};
use crate::support::everywhere::{failing_at, plain_linear, with_linear};
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, batch, cpus, cross_entropy};

fn builder(model: &Model, schedule: ScheduleKind, recompute: Recompute) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&cpus(2))
        .schedule(schedule)
        .micro_batches(4)
        .recompute(recompute)
        .offload_at_least(Bytes(1))
        .threads_per_stage(1)
        .seed(5)
}

fn same(one: &Numbers, other: &Numbers, case: &str) {
    assert_eq!(one.0, other.0, "{case}");
    assert_same_bits(&one.1, &other.1, case);
}

#[test]
fn no_number_changes_and_copies_are_waited_for() {
    for model in [
        models::mlp(),
        models::unet(),
        models::transformer(0.2),
        models::moving(),
    ] {
        let by_layer = (0..model.parts.len()).map(|layer| layer % 2 == 0).collect();
        let recomputes = [
            Recompute::Always,
            Recompute::Never,
            Recompute::ExceptLast,
            Recompute::Layers(by_layer),
        ];
        for (turn, recompute) in recomputes.into_iter().enumerate() {
            let schedule = [ScheduleKind::GPipe, ScheduleKind::ZbH1][turn / 2];
            let case = format!("{} {schedule} {recompute}", model.name);
            let build = || builder(&model, schedule, recompute.clone());
            let plain = train(&mut build().build().unwrap(), &model);
            let on_cpu = build().offload(&[0, 1]).build();
            same(&plain, &train(&mut on_cpu.unwrap(), &model), &case);
            let copies = |offload: &[usize]| {
                let recorder = Recorder::new(&[Some(0), Some(1)]);
                let pipe = build().offload(offload).record_streams(&recorder).build();
                same(&plain, &train(&mut pipe.unwrap(), &model), &case);
                let summary = recorder
                    .check()
                    .unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
                (0..8).for_each(|seed| recorder.play(seed).unwrap());
                assert_eq!(summary.host_waits, 0, "{case}");
                summary.copies
            };
            assert!(copies(&[0, 1]) > copies(&[1]), "{case}");
            // In ZB-H1 the last stage uses its results immediately.
            let moves = copies(&[1]) > copies(&[]);
            assert_eq!(moves, schedule == ScheduleKind::GPipe, "{case}");
        }
    }
}

/// A schedule may name the micro-batches to offload: no others are, and no number changes.
#[test]
fn a_schedule_that_names_micro_batches_offloads_those_alone() {
    let model = models::transformer(0.2);
    for kind in [ScheduleKind::GPipe, ScheduleKind::ZbH1] {
        let plain = train(
            &mut builder(&model, kind, Recompute::Never).build().unwrap(),
            &model,
        );
        let copies = |micro_batches: &[usize]| {
            let schedule = kind.generate(Shape::new(2, 4)).unwrap().schedule().clone();
            let own = micro_batches
                .iter()
                .map(|&micro| (StageId(0), MicroId(micro)));
            let schedule = schedule.with_offloads(own).check().unwrap();
            let build = || {
                let builder = Pipeline::builder(model.sequential()).devices(&cpus(2));
                let builder = builder
                    .custom_schedule(schedule.clone())
                    .threads_per_stage(1);
                builder.offload_at_least(Bytes(1)).seed(5)
            };
            let case = format!("{kind} {micro_batches:?}");
            same(&plain, &train(&mut build().build().unwrap(), &model), &case);
            let recorder = Recorder::new(&[Some(0), Some(1)]);
            let pipe = build().record_streams(&recorder).build();
            same(&plain, &train(&mut pipe.unwrap(), &model), &case);
            let checked = recorder.check();
            let summary = checked.unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
            (0..8).for_each(|seed| recorder.play(seed).unwrap());
            summary.copies
        };
        let none = copies(&[]);
        let [one, two] = [&[0][..], &[0, 1]].map(|own| copies(own) - none);
        assert!(one > 0 && two == 2 * one, "{kind}: {one} {two}");
    }
}

/// With recomputing and other stages side by side.
#[test]
fn no_number_changes_under_any_schedule() {
    let model = models::unet();
    let mut seen = 0;
    for schedule in ScheduleKind::ALL {
        for (turn, places) in [
            vec![Some(0), Some(1)],
            vec![Some(0); 2],
            vec![None, Some(0)],
        ]
        .into_iter()
        .enumerate()
        {
            let chunks = schedule.default_chunks();
            let stages: Vec<usize> = (0..2 * chunks).collect();
            let setup = Setup {
                schedule,
                chunks,
                micro_batches: 4,
                recompute: Recompute::Stages(stages.iter().map(|s| (s + turn) % 3 == 0).collect()),
                places,
            };
            if !setup.exists(model.parts.len()) {
                continue;
            }
            seen += 1;
            let case = format!("{setup:?}");
            let plain = train(&mut setup.pipeline(&model, None), &model);
            let recorder = Recorder::new(&setup.places);
            let offloading = setup
                .builder(&model, Some(&recorder))
                .offload(&stages)
                .offload_at_least(Bytes(1));
            same(
                &plain,
                &train(&mut offloading.build().unwrap(), &model),
                &case,
            );
            let checked = recorder.check();
            assert!(checked.is_ok(), "{case}: {checked:?}");
            for seed in 0..4 {
                assert_eq!(recorder.play(seed), Ok(()), "{case}, clock {seed}");
            }
        }
    }
    assert!(seen >= 15, "{seen}");
}

#[test]
fn nothing_that_keeps_what_moves_in_order_can_be_left_out() {
    let model = models::mlp();
    let waits = |offload: &[usize]| {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let builder = builder(&model, ScheduleKind::GPipe, Recompute::Never).offload(offload);
        train(
            &mut builder.record_streams(&recorder).build().unwrap(),
            &model,
        );
        let broken = (0..).map_while(|index| recorder.without(index));
        let told = broken.filter_map(|broken| broken.check().err());
        told.map(|wrong| wrong.to_string()).collect::<Vec<_>>()
    };
    let (with, without) = (waits(&[0, 1]), waits(&[]));
    assert!(with.len() > without.len());
    // The wait for returned values, and the wait for copies out before their memory is freed.
    let came_back = "what was kept on the host, in stream";
    assert!(with.iter().any(|wrong| wrong.starts_with(came_back)));
    assert!(!without.iter().any(|wrong| wrong.starts_with(came_back)));
    let freed = |all: &[String]| all.iter().filter(|w| w.contains("was freed")).count();
    assert!(freed(&with) > freed(&without));
}

#[test]
fn small_pieces_stay() {
    let model = models::mlp();
    let copies = |least| {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let builder = builder(&model, ScheduleKind::GPipe, Recompute::Never)
            .offload(&[0, 1])
            .offload_at_least(Bytes(least))
            .record_streams(&recorder);
        train(&mut builder.build().unwrap(), &model);
        recorder.check().unwrap().copies
    };
    assert!(copies(1) > copies(256 << 10));
}

/// If every forward is followed by its own backward, nothing is moved.
#[test]
fn what_is_taken_up_directly_stays() {
    let model = models::mlp();
    let copies = |stages: &[usize]| {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let builder = builder(&model, ScheduleKind::OneFOneB, Recompute::Never)
            .offload(stages)
            .record_streams(&recorder);
        train(&mut builder.build().unwrap(), &model);
        recorder.check().unwrap().copies
    };
    assert_eq!(copies(&[1]), copies(&[]));
    assert!(copies(&[0]) > copies(&[]));
}

/// Three layers, the second of which changes a value in place that the first has saved.
fn spoiling() -> Sequential {
    let model = plain_linear(Sequential::new(), "in");
    let model = with_linear(model, "spoils", |x, linear, _| {
        let saved = x.apply(linear).exp();
        let out = &saved * 2.0;
        let _ = saved.shallow_clone().g_mul_scalar_(3.0);
        Ok(out)
    });
    plain_linear(model, "out")
}

#[test]
fn a_change_in_place_of_what_was_saved_is_an_error_as_ever() {
    let (x, y) = batch(&[6, 8], 6);
    let message = |offload: &[usize]| {
        let mut pipe = Pipeline::builder(spoiling())
            .devices(&cpus(1))
            .micro_batches(2)
            .schedule(ScheduleKind::GPipe)
            .offload(offload)
            .offload_at_least(Bytes(1))
            .build()
            .unwrap();
        let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
        error.to_string()
    };
    for message in [message(&[]), message(&[0])] {
        for part in [
            "layer `spoils`",
            "modified by an inplace operation",
            "is at version 1",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn a_step_that_fails_leaves_the_streams_in_order() {
    let (x, y) = batch(&[6, 8], 6);
    for time in [2, 4, 7] {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let mut pipe = Pipeline::builder(failing_at(time))
            .devices(&cpus(2))
            .micro_batches(4)
            .schedule(ScheduleKind::GPipe)
            .offload(&[0, 1])
            .offload_at_least(Bytes(1))
            .record_streams(&recorder)
            .build()
            .unwrap();
        let steps = (0..3).map(|_| pipe.train_step(&x, &y, cross_entropy).is_err());
        assert_eq!(steps.filter(|failed| *failed).count(), 1, "run {time}");
        recorder.check().unwrap();
        (0..8).for_each(|seed| recorder.play(seed).unwrap());
    }
}

/// Regression test: the builder ignored a plan's offloads and its choice of graphs.
#[test]
fn a_plan_says_what_is_offloaded_and_whether_there_are_graphs() {
    let model = models::mlp();
    let layers = model.parts.len();
    let plan = |offload: [bool; 2], graphs: bool| {
        let text = format!(
            r#"{{"version": 1, "balance": [1, {}], "placement": [0, 1], "schedule": "gpipe",
                "micro_batches": 4, "chunks": 1, "micro_batch_size": 2, "recompute": [false, false],
                "offload": {offload:?}, "cuda_graphs": {graphs}, "bottleneck_us": 1, "step_us": 1,
                "bubble_fraction": 0, "peak_bytes": [1, 1], "alternatives": []}}"#,
            layers - 1
        );
        Plan::from_json(text, "plan.json").unwrap()
    };
    let ran = |offload, graphs| {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let builder = builder(&model, ScheduleKind::OneFOneB, Recompute::Always)
            .plan(&plan(offload, graphs))
            .unwrap();
        let mut pipe = builder.record_streams(&recorder).build().unwrap();
        // Twice, since the first steps capture nothing.
        train(&mut pipe, &model);
        train(&mut pipe, &model);
        let uses = pipe.cuda_graphs().unwrap();
        let tried = uses.iter().any(|used| used.captured > 0);
        (recorder.check().unwrap().copies, tried)
    };
    let (none, no_graphs) = ran([false, false], false);
    let (first, _) = ran([true, false], false);
    let (both, _) = ran([true, true], false);
    assert!(none < first && first < both, "{none} {first} {both}");
    assert!(!no_graphs && ran([false, false], true).1);
}

#[test]
fn only_stages_that_there_are_can_offload() {
    let model = models::mlp();
    let built = builder(&model, ScheduleKind::GPipe, Recompute::Never).offload(&[2]);
    let message = built.build().unwrap_err().to_string();
    assert!(message.contains("but there are 2"), "{message}");
}
