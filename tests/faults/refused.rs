//! Requests that cannot run are refused before anything runs.

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Tensor, nn};
use gpipe::{Pipeline, Sequential};

use crate::brittle::{Fault, setup};
use crate::support::*;

#[test]
fn a_layer_that_cannot_be_built_is_named() {
    let broken = |_: &nn::Path<'_>| -> anyhow::Result<nn::Linear> { anyhow::bail!("no weights") };
    let model = Sequential::new()
        .layer("fine", |p| nn::linear(p, 2, 2, nn::LinearConfig::default()))
        .try_layer("broken", broken);
    for stages in 1..=2 {
        let error = Pipeline::new(model.clone(), &cpus(stages), 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("layer `broken` cannot be built") && error.contains("no weights"),
            "{error}"
        );
    }
    let panics = Sequential::new().layer("panics", |p| {
        nn::linear(p, -1, 2, nn::LinearConfig::default())
    });
    let error = Pipeline::new(panics, &cpus(1), 1).unwrap_err().to_string();
    assert!(
        error.contains("layer `panics`") && !error.contains("frame #"),
        "{error}"
    );
}

#[test]
fn batches_that_do_not_fit_are_refused_in_words() {
    let mut setup = setup(Fault::Error, ScheduleKind::OneFOneB);
    let (x, y) = mlp_batch(8);
    let mut refused = |x: &Tensor, y: &Tensor| {
        setup
            .pipe
            .train_step(x, y, cross_entropy)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&x, &y.narrow(0, 0, 5)).contains("5 samples"));
    assert!(refused(&x.narrow(0, 0, 0), &y.narrow(0, 0, 0)).contains("no samples"));
    assert!(refused(&Tensor::from(1.0), &y).contains("dimension 0"));
}

#[test]
fn settings_that_do_not_fit_are_refused_in_words() {
    let build = |f: &dyn Fn(gpipe::PipelineBuilder) -> gpipe::PipelineBuilder| {
        f(Pipeline::builder(sequential(&mlp())))
            .build()
            .unwrap_err()
            .to_string()
    };
    assert!(build(&|b| b.micro_batches(0)).contains("0 micro-batches"));
    assert!(build(&|b| b.devices(&[])).contains("no devices"));
    assert!(build(&|b| b.devices(&cpus(9))).contains("9 stages"));
    assert!(build(&|b| b.devices(&cpus(2)).balance(&[3, 4])).contains("covers 7 layers"));
    assert!(build(&|b| b.devices(&cpus(2)).balance(&[8])).contains("`devices` makes 2 stages"));
    assert!(build(&|b| b.threads_per_stage(0)).contains("0 threads"));
    let twice = Sequential::new()
        .layers("a", 1, |_, _| nn::func(Tensor::tanh))
        .layer("a.0", |_| nn::func(Tensor::tanh));
    assert!(
        Pipeline::new(twice, &cpus(1), 1)
            .unwrap_err()
            .to_string()
            .contains("two layers are named `a.0`")
    );
    assert!(
        Pipeline::new(Sequential::new(), &cpus(1), 1)
            .unwrap_err()
            .to_string()
            .contains("no layers")
    );
}
