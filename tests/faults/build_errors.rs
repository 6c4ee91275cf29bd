//! What cannot be is refused when the pipeline is built, in words.

use crate::support::{cpus, mlp, sequential};
use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::nn;
use gpipe::{Pipeline, PipelineBuilder, Sequential};

fn refusal(builder: PipelineBuilder) -> String {
    let error = builder.build().unwrap_err();
    assert!(error.is_wrong_use(), "{error}");
    error.to_string()
}

fn linear(p: &nn::Path<'_>) -> nn::Linear {
    nn::linear(p, 4, 4, nn::LinearConfig::default())
}

#[test]
fn two_parameters_of_one_name() {
    let model = Sequential::new()
        .layer("a", |p| linear(&(p / "b")))
        .layer("a.b", linear);
    let why = refusal(Pipeline::builder(model).devices(&cpus(2)));
    assert!(why.starts_with("two parameters are named `a.b."), "{why}");
}

#[test]
fn a_schedule_for_other_numbers() {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 4)).unwrap();
    let builder = || {
        Pipeline::builder(sequential(&mlp()))
            .devices(&cpus(2))
            .custom_schedule(schedule.clone())
    };
    let why = refusal(builder().micro_batches(8));
    assert_eq!(why, "the schedule `1f1b` is for 4 micro-batches, not 8");
    let why = refusal(builder().chunks(3));
    assert!(why.contains("is not 3 chunks each"), "{why}");
    let why = refusal(builder().devices(&cpus(3)));
    assert!(why.contains("is for 2 devices, but there are 3"), "{why}");
}

#[test]
fn ties_that_do_not_fit() {
    let model = Sequential::new()
        .layer("a", linear)
        .layer("c", |p| nn::linear(p, 4, 2, nn::LinearConfig::default()));
    let tied = |copy: &str| refusal(Pipeline::builder(model.clone().tie("a.weight", copy)));
    let why = tied("c.weight");
    assert!(why.contains("`c.weight` of shape [2, 4] (Float)"), "{why}");
    assert!(tied("d.weight").contains("`d.weight`"));
    assert!(tied("a.nothing").contains("`a.nothing`"));
    assert!(tied("a.weight").contains("tied already"));
}
