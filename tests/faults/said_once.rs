//! An error's text contains its causes, and its chain of sources (as in `anyhow`) does not repeat them.

use std::io;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use gpipe::checkpoint::CheckpointError;
use gpipe::data::{DataError, Place, TextError};
use gpipe::models::zoo::ZooError;
use gpipe::partitioner::{self, Schedule, ScheduleError};
use gpipe::tch::{Kind, Tensor, nn};
use gpipe::train::metrics::MetricsError;
use gpipe::{Error, Layer, Pipeline, Sequential, Values, error::BatchError, layers::Context};

use crate::support::cpus;

/// Checks that a report by `anyhow` contains each of `parts` once: on one line, and on several.
#[track_caller]
fn once(error: impl Into<anyhow::Error>, parts: &[&str]) {
    let error = error.into();
    let display = error.to_string();
    for said in [format!("{error:#}"), format!("{error:?}")] {
        // The rest is a back-trace of functions.
        let said = said.split("Stack backtrace").next().unwrap_or_default();
        for part in parts {
            assert_eq!(said.matches(part).count(), 1, "`{part}` in: {said}");
            assert!(display.contains(part), "`{part}` in: {display}");
        }
    }
}

#[derive(Debug)]
struct Failing;

impl Layer for Failing {
    fn forward(&self, _: Values, _: &Context) -> anyhow::Result<Values> {
        Err(anyhow!("the disk is gone").context("no table"))
    }
}

/// Regression test: the engine's error printed its causes, and returned them as sources, too.
#[test]
fn an_error_of_a_step_is_said_once() {
    let model = Sequential::new().layer("failing", |_| Failing);
    let mut pipe = Pipeline::new(model, &cpus(1), 2).unwrap();
    let x = Tensor::ones([4, 5], (Kind::Float, gpipe::tch::Device::Cpu));
    let loss = |out: &Tensor, _: &Tensor| out.mean(Kind::Float);
    let error = pipe.train_step(&x, &x, loss).unwrap_err();
    let parts = ["layer `failing`", "no table", "the disk is gone"];
    once(error, &parts);
    let error = pipe.train_step(&x, &x, loss).context("step 7");
    let said = format!("{:#}", error.unwrap_err());
    assert_eq!(said.matches("the disk is gone").count(), 1, "{said}");

    let model = Sequential::new().layer("linear", |p| {
        nn::linear(p, 4, 3, nn::LinearConfig::default())
    });
    let mut pipe = Pipeline::new(model, &cpus(1), 2).unwrap();
    let error = pipe.train_step(&x, &x, loss).unwrap_err();
    once(error, &["layer `linear`", "shapes cannot be multiplied"]);
}

#[test]
fn so_is_one_of_a_layer_that_cannot_be_built() {
    let model = Sequential::new().try_layer("broken", |_| -> anyhow::Result<Failing> {
        Err(anyhow!("no weights here"))
    });
    let error = Pipeline::new(model, &cpus(1), 2).unwrap_err();
    once(
        error,
        &["layer `broken` cannot be built", "no weights here"],
    );
}

#[test]
fn so_is_every_error_with_a_cause() {
    let cause = || anyhow!("the cause of it").context("what became of it");
    let refused = || io::Error::other("the cause of it");
    let path = || PathBuf::from("some/file");
    let said = &["the cause of it"];
    once(Error::Build(cause()), said);
    let profile = Error::Profile {
        layer: "norm".to_owned(),
        action: "forward",
        source: cause(),
    };
    once(
        profile,
        &["the cause of it", "what became of it", "layer `norm`"],
    );
    once(
        Error::Batch(BatchError::NoWeight),
        &["leave such batches out"],
    );
    once(CheckpointError::Pipeline(Error::Build(cause())), said);
    let (action, what) = ("write", "write");
    once(
        CheckpointError::Write {
            action,
            path: path(),
            source: refused(),
        },
        said,
    );
    once(
        CheckpointError::Read {
            path: path(),
            source: refused(),
        },
        said,
    );
    once(
        MetricsError::Io {
            what,
            path: path(),
            source: refused(),
        },
        said,
    );
    once(
        TextError::Read {
            path: path(),
            source: refused(),
        },
        said,
    );
    once(
        DataError::File {
            action,
            path: path(),
            source: refused(),
        },
        said,
    );
    let item = || DataError::Item {
        place: Place::Item(3),
        source: cause(),
    };
    once(item(), said);
    once(
        DataError::Batch {
            first: Place::Item(3),
            source: cause(),
        },
        said,
    );
    let last = Box::new(item());
    once(
        DataError::TooManyBad {
            bad: 2,
            epoch: 0,
            allowed: 1,
            last,
        },
        said,
    );
    let model = "gpt".to_owned();
    once(
        ZooError::Sizes {
            model,
            source: cause(),
        },
        said,
    );
    let check = Schedule::new("none", 1, 1, vec![Vec::new()])
        .check()
        .unwrap_err();
    let text = check.to_string();
    once(
        Error::Schedule(ScheduleError::Illegal(check.clone())),
        &[&text],
    );
    once(partitioner::Error::Check(check), &[&text]);
}
