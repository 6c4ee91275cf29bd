//! Devices that fail at work and do not respond any more.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::torch::streams::Recorder;
use gpipe::{Optimizer, Pipeline, PipelineBuilder, Sequential, error::DeviceLost, optim::AdamW};

use crate::support::everywhere::{plain_linear, with_linear};
use crate::support::{batch, cpus, cross_entropy};

const ASSERT: &str = "CUDA error: device-side assert triggered";

/// Two stages; in the last micro-batch the second one's kernel fails, while the first one has no work left
/// that could fail earlier.
fn failing(recorder: &Recorder) -> PipelineBuilder {
    let model = plain_linear(Sequential::new(), "one");
    let device = recorder.clone();
    let model = with_linear(model, "two", move |x, linear, ctx| {
        if ctx.micro().index() == 3 {
            device.fail_devices(ASSERT);
            anyhow::bail!("{ASSERT}");
        }
        Ok(x.apply(linear))
    });
    Pipeline::builder(model)
        .devices(&cpus(2))
        .balance(&[1, 1])
        .micro_batches(4)
        .schedule(ScheduleKind::GPipe)
        .record_streams(recorder)
}

/// Regression test: the end of the step failed on the stages as well, and its error (without layer or
/// micro-batch) replaced the step's own. Later calls each failed in a different way.
#[test]
fn a_device_that_fails_is_named_and_what_comes_later_is_refused_in_one_sentence() {
    let recorder = Recorder::new(&[Some(0), Some(1)]);
    let mut pipe = failing(&recorder).build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = batch(&[8, 8], 8);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    let text = error.to_string();
    for part in [
        "stage 1, layer `two`, micro-batch 3, forward",
        "start the process anew",
        ASSERT,
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    let source = &error.stage_error().unwrap().source;
    let lost = source.downcast_ref::<DeviceLost>().unwrap().to_string();
    assert_eq!(
        pipe.train_step(&x, &y, cross_entropy)
            .unwrap_err()
            .to_string(),
        lost
    );
    assert_eq!(pipe.forward(&x).unwrap_err().to_string(), lost);
    assert_eq!(pipe.clip_grad_norm(1.0).unwrap_err().to_string(), lost);
    assert_eq!(optimizer.step(&mut pipe).unwrap_err().to_string(), lost);
    assert!(pipe.parameters().unwrap_err().to_string().contains(&lost));
}

/// A CUDA error does not always disable the device.
#[test]
fn a_device_that_still_answers_is_used_on() {
    let recorder = Recorder::new(&[Some(0), Some(1)]);
    let runs = Arc::new(AtomicUsize::new(0));
    let model = with_linear(Sequential::new(), "one", move |x, linear, _| {
        let first = runs.fetch_add(1, Ordering::SeqCst) == 1;
        anyhow::ensure!(!first, "CUDA error: invalid configuration argument");
        Ok(x.apply(linear))
    });
    let mut pipe = Pipeline::builder(plain_linear(model, "two"))
        .devices(&cpus(2))
        .micro_batches(2)
        .record_streams(&recorder)
        .build()
        .unwrap();
    let (x, y) = batch(&[8, 8], 8);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    let source = &error.stage_error().unwrap().source;
    assert!(source.downcast_ref::<DeviceLost>().is_none(), "{error}");
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    recorder.check().unwrap();
}

/// The next release of memory may end the process, so the error is printed at once.
#[test]
fn the_first_sight_of_it_is_printed_at_once() {
    const CHILD: &str = "GPIPE_TEST_DEVICE_FAILS";
    if std::env::var_os(CHILD).is_some() {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let mut pipe = failing(&recorder).build().unwrap();
        let (x, y) = batch(&[8, 8], 8);
        let abort = |out: &Tensor, y: &Tensor| cross_entropy(out, y);
        assert!(pipe.train_step(&x, &y, abort).is_err());
        assert!(pipe.train_step(&x, &y, abort).is_err());
        std::process::abort();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lost::the_first_sight_of_it_is_printed_at_once"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    let place = "stage 1, layer `two`, micro-batch 3, forward";
    assert_eq!(told.matches(place).count(), 1, "{told}");
    assert!(told.contains(ASSERT), "{told}");
}
