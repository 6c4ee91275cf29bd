//! The same bits for every cut and schedule, recomputed or not, in reduced precision too.

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::{
    Pipeline, PipelineBuilder,
    settings::{LossScale, Precision, Recompute},
};

use super::SHORT;
use crate::support::models::{self, Model};
use crate::support::reference::{Numbers, pipeline_numbers};
use crate::support::*;

const STEPS: usize = 2;
const MICRO_BATCHES: usize = 3;

fn numbers(builder: PipelineBuilder, model: &Model) -> Numbers {
    let (x, y) = (model.batch)(7);
    let mut pipe = builder.build().unwrap();
    pipeline_numbers(&mut pipe, model, (&x, &y), STEPS).unwrap()
}

fn builder(model: &Model, precision: Precision) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .micro_batches(MICRO_BATCHES)
        .threads_per_stage(1)
        .seed(11)
        .precision(precision)
        // Large enough to have an effect, and small enough to avoid overflow here.
        .loss_scale(LossScale {
            initial: 256.0,
            ..LossScale::default()
        })
}

#[track_caller]
fn assert_same(got: &Numbers, expected: &Numbers, what: &str) {
    assert!(got.output.equal(&expected.output), "{what}: output");
    let bits = |losses: &[f64]| -> Vec<u64> { losses.iter().map(|l| l.to_bits()).collect() };
    assert_eq!(bits(&got.losses), bits(&expected.losses), "{what}: losses");
    assert_same_bits(&got.gradients, &expected.gradients, what);
    let inputs = [&got.input_gradient, &expected.input_gradient];
    match inputs.map(Option::as_ref) {
        [Some(got), Some(expected)] => assert!(got.equal(expected), "{what}: input"),
        [None, None] => {}
        _ => panic!("{what}: a gradient of the input in one of them only"),
    }
    assert_same_bits(&got.after, &expected.after, what);
}

/// All schedules over two devices, recomputed and not, and every number of stages.
fn same_everywhere(model: &Model) {
    single_threaded();
    let layers = model.parts.len();
    for precision in SHORT {
        let expected = numbers(builder(model, precision), model);
        assert!(!expected.gradients.is_empty(), "{precision}: skipped");
        for schedule in ScheduleKind::ALL {
            if schedule == ScheduleKind::ForwardOnly {
                continue;
            }
            let chunks = schedule.default_chunks();
            let recomputes = [Recompute::Never, Recompute::Always];
            for (number, recompute) in recomputes.into_iter().enumerate() {
                // Cuts at other places, so that every layer is the last of some stage.
                let devices = 2 + number;
                let shape = Shape::new(devices, MICRO_BATCHES).with_chunks(chunks);
                if devices * chunks > layers || schedule.generate(shape).is_err() {
                    continue;
                }
                let what = format!("{} {precision} {schedule} {recompute}", model.name);
                let cut = builder(model, precision)
                    .devices(&cpus(devices))
                    .schedule(schedule)
                    .recompute(recompute);
                assert_same(&numbers(cut, model), &expected, &what);
            }
        }
        let flags = (0..layers).map(|layer| layer % 2 == 0).collect();
        let most = builder(model, precision)
            .devices(&cpus(layers))
            .recompute(Recompute::Layers(flags));
        let what = format!("{} {precision}, a stage a layer", model.name);
        assert_same(&numbers(most, model), &expected, &what);
    }
}

#[test]
fn of_linear_layers() {
    same_everywhere(&models::mlp());
}

#[test]
fn of_convolutions() {
    same_everywhere(&models::convnet());
}

#[test]
fn of_a_transformer_with_dropout() {
    same_everywhere(&models::transformer(0.1));
}

#[test]
fn of_skips() {
    same_everywhere(&models::unet());
}

/// A weight is used at each step of the sequence: its reduced-precision copies are not shared, as their
/// gradients would be summed in reduced precision.
#[test]
fn of_a_weight_that_is_used_many_times() {
    same_everywhere(&models::recurrent());
}

#[test]
fn of_several_values_between_layers() {
    same_everywhere(&models::multi_output());
}

#[test]
fn of_tied_weights() {
    same_everywhere(&models::tied());
}
