//! A checkpoint of another model, or of another optimizer, changes nothing.

use gpipe::checkpoint::{Checkpoint, CheckpointError};
use gpipe::tch::nn;
use gpipe::{
    Optimizer, Pipeline, Sequential,
    optim::{OptimizerKind, Sgd},
};

use super::run::{adamw, momentum, small};
use crate::support::{assert_same_bits, cpus, snapshot};

fn linear(inputs: i64, outputs: i64) -> impl Fn(&nn::Path<'_>) -> nn::Linear + Send + Sync {
    move |path| nn::linear(path, inputs, outputs, nn::LinearConfig::default())
}

#[track_caller]
fn assert_refused(model: Sequential, kind: impl Into<OptimizerKind>, expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    small().save(folder.path(), 1);
    let mut pipe = Pipeline::new(model, &cpus(1), 2).unwrap();
    let mut optimizer = Optimizer::new(kind);
    let before = snapshot(&mut pipe);
    let checkpoint = Checkpoint::newest(folder.path()).unwrap();
    let error = checkpoint.restore(&mut pipe, &mut optimizer).unwrap_err();
    assert!(matches!(error, CheckpointError::Fit { .. }), "{error}");
    assert!(error.is_wrong_use() && !error.is_damage(), "{error}");
    for expected in expected {
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    assert_same_bits(&snapshot(&mut pipe), &before, "refused");
    assert_eq!(pipe.steps(), 0);
}

fn own() -> Sequential {
    Sequential::new()
        .layer("a", linear(6, 12))
        .layer("b", linear(12, 10))
}

#[test]
fn names_shapes_and_types_of_another_model_are_told() {
    let model = Sequential::new()
        .layer("a", linear(6, 9))
        .layer("b", linear(9, 10));
    assert_refused(
        model,
        adamw(),
        &["`a.bias`", "[12]", "[9]", "stage-0.safetensors"],
    );
    let model = Sequential::new()
        .layer("a", linear(6, 12))
        .layer("c", linear(12, 10));
    assert_refused(
        model,
        adamw(),
        &["`b.bias`, which the model has not", "stage-1"],
    );
    assert_refused(
        own().layer("more", linear(10, 3)),
        adamw(),
        &["lacks the parameter `more.bias`"],
    );
    let model = Sequential::new()
        .layer("a", linear(6, 12))
        .layer("b", |path: &nn::Path<'_>| {
            let mut path = path.clone();
            let linear = nn::linear(&path, 12, 10, nn::LinearConfig::default());
            path.double();
            linear
        });
    assert_refused(model, adamw(), &["`b.bias` is Float", "Double"]);
}

#[test]
fn another_kind_of_optimizer_is_told_and_how_to_go_on_without() {
    for kind in [momentum(), Sgd::default()] {
        assert_refused(own(), kind, &["of `a.bias`", "load the weights alone"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut saved = small();
    saved.save(folder.path(), 1);
    let weights = Checkpoint::newest(folder.path())
        .unwrap()
        .weights()
        .unwrap();
    let mut pipe = Pipeline::new(own(), &cpus(1), 2).unwrap();
    pipe.load(&weights).unwrap();
    assert_same_bits(&snapshot(&mut pipe), &saved.numbers(), "weights alone");
}
