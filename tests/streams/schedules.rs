//! Every schedule, over several arrangements of accelerators.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::torch::streams::Recorder;
use gpipe::{Pipeline, Sequential, settings::Recompute};

use crate::setup::{Setup, train};
use crate::support::models::{self, Model};
use crate::support::{assert_same_bits, cpus, single_threaded};

/// Named arrangements of devices: separate accelerators, all on one, pairs sharing one, and the host between
/// accelerators.
fn neighbourhoods(devices: usize) -> Vec<(&'static str, Vec<Option<usize>>)> {
    let places = |place: fn(usize) -> Option<usize>| (0..devices).map(place).collect();
    vec![
        ("each its own", places(Some)),
        ("all on one", places(|_| Some(0))),
        ("in pairs", places(|device| Some(device / 2))),
        (
            "with the host",
            places(|device| (device % 2 == 0).then_some(device)),
        ),
    ]
}

fn in_order_everywhere(model: &Model, devices: usize) {
    let mut seen = 0;
    for schedule in ScheduleKind::ALL {
        for (name, places) in neighbourhoods(devices) {
            let setup = Setup {
                schedule,
                chunks: schedule.default_chunks(),
                micro_batches: 4,
                recompute: [Recompute::Never, Recompute::Always][seen % 2].clone(),
                places,
            };
            if !setup.exists(model.parts.len()) {
                continue;
            }
            seen += 1;
            let case = format!("{}, {schedule}, {name}", model.name);
            let plain = train(&mut setup.pipeline(model, None), model);
            let (recorder, numbers) = setup.recorded(model);
            assert_eq!(plain.0, numbers.0, "{case}");
            assert_same_bits(&plain.1, &numbers.1, &case);
            let summary = recorder
                .check()
                .unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
            assert!(summary.actions > 0 && summary.freed > 0, "{case}");
            let copied = name != "all on one" || summary.copies > 0;
            assert!(copied && summary.waits > 0, "{case}: {summary:?}");
            if name != "with the host" {
                assert_eq!(summary.host_waits, 0, "{case}: the host waited");
            }
            for seed in 0..4 {
                let played = recorder.play(seed);
                assert_eq!(played, Ok(()), "{case}, clock {seed}");
            }
        }
    }
    assert!(seen >= 20, "{seen} cases");
}

#[test]
fn copies_and_consumers_wait_under_every_schedule() {
    in_order_everywhere(&models::mlp(), 2);
    in_order_everywhere(&models::mlp(), 3);
}

#[test]
fn so_do_values_that_skip_stages() {
    in_order_everywhere(&models::unet(), 3);
}

#[test]
fn so_do_parameters_that_several_stages_use() {
    in_order_everywhere(&models::tied(), 2);
}

/// Regression test: the previous stage waited for each backward of an accelerator without getting a gradient,
/// and delayed the accelerator's next input.
#[test]
fn a_stage_of_the_host_waits_for_no_gradient_where_it_gets_none() {
    single_threaded();
    let model = Sequential::new()
        .layer("source", |_| nn::func(|x| x * 2.0))
        .layer("head", |p| nn::linear(p, 4, 1, nn::LinearConfig::default()));
    let recorder = Recorder::new(&[None, Some(0)]);
    let mut pipe = Pipeline::builder(model)
        .devices(&cpus(2))
        .balance(&[1, 1])
        .micro_batches(4)
        .threads_per_stage(1)
        .record_streams(&recorder)
        .build()
        .unwrap();
    let x = Tensor::ones([8, 4], (Kind::Float, Device::Cpu));
    let report = pipe.train_step(&x, &x, |out: &Tensor, _: &Tensor| out.mean(Kind::Float));
    report.unwrap();
    assert_eq!(recorder.check().unwrap().host_waits, 0);
}
