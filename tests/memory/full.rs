//! A device without free memory: the error, and that nothing else is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpipe::partitioner::Bytes;
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{Pipeline, Sequential, error::OutOfMemory};

use crate::alone;
use crate::support::apart::apart;
use crate::support::everywhere::{plain_linear, with_linear};
use crate::support::{assert_same_bits, batch, cpus, cross_entropy, gradients};

/// The second layer requests a pebibyte when told to.
fn greedy(told: &Arc<AtomicBool>) -> Sequential {
    let told = Arc::clone(told);
    let model = plain_linear(Sequential::new(), "one");
    let model = with_linear(model, "two", move |x, linear, ctx| {
        if told.load(Ordering::SeqCst) && ctx.micro().index() == 2 {
            drop(Tensor::f_zeros([1 << 50], (Kind::Uint8, Device::Cpu))?);
        }
        Ok(x.apply(linear))
    });
    plain_linear(model, "three")
}

fn pipeline(told: &Arc<AtomicBool>) -> Pipeline {
    Pipeline::builder(greedy(told))
        .devices(&cpus(3))
        .micro_batches(4)
        .threads_per_stage(1)
        .build()
        .unwrap()
}

#[test]
fn out_of_memory_names_the_place_and_the_bytes_and_the_pipeline_lives() {
    let name = "out_of_memory_names_the_place_and_the_bytes_and_the_pipeline_lives";
    apart(&format!("full::{name}"), out_of_memory);
}

/// The counting allocator adds some bytes. Regression test: these were included in the reported request.
#[test]
fn where_bytes_are_counted_those_that_were_asked_for_are_told() {
    let _alone = alone();
    out_of_memory();
}

fn out_of_memory() {
    let told = Arc::new(AtomicBool::new(false));
    let (x, y) = batch(&[8, 8], 8);
    let mut untroubled = pipeline(&told);
    let expected = untroubled
        .train_step(&x, &y, cross_entropy)
        .unwrap()
        .read()
        .unwrap()
        .loss;

    let mut pipe = pipeline(&told);
    told.store(true, Ordering::SeqCst);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    told.store(false, Ordering::SeqCst);
    let text = error.to_string();
    let parts = [
        "stage 1",
        "layer `two`",
        "micro-batch 2",
        "forward",
        "cpu is out of memory: 1.0 PiB asked for",
        "free",
        "more micro-batches",
        "recompute",
        "fewer layers",
    ];
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    let source = &error.stage_error().unwrap().source;
    let out = source.downcast_ref::<OutOfMemory>().unwrap();
    assert_eq!(out.asked, Some(Bytes(1 << 50)));
    assert!(out.free.is_some_and(|free| free > Bytes(0)));

    let loss = pipe
        .train_step(&x, &y, cross_entropy)
        .unwrap()
        .read()
        .unwrap()
        .loss;
    assert_eq!(loss.to_bits(), expected.to_bits());
    let (one, other) = (gradients(&mut pipe), gradients(&mut untroubled));
    assert_same_bits(&one, &other, "after the error");
}

#[test]
fn a_limit_without_a_gpu_is_refused_in_words() {
    let _alone = alone();
    let told = Arc::new(AtomicBool::new(false));
    let built = Pipeline::builder(greedy(&told))
        .memory_limit(Bytes(1 << 30))
        .build();
    let error = built.unwrap_err();
    assert!(error.is_wrong_use());
    let text = error.to_string();
    assert!(
        text.contains("memory_limit") && text.contains("CUDA devices"),
        "{text}"
    );
}

/// With a GPU there is nothing to report.
#[test]
fn a_device_that_is_not_there_is_told_with_what_to_install() {
    let _alone = alone();
    if gpipe::device::cuda_available().is_ok() {
        return;
    }
    let told = Arc::new(AtomicBool::new(false));
    let built = Pipeline::builder(greedy(&told))
        .devices(&[Device::Cuda(0)])
        .build();
    let text = built.unwrap_err().to_string();
    let driver = text.contains("install one for CUDA 13.0") || text.contains("nvidia-smi");
    let library = text.contains("TORCH=full make build");
    assert!(
        text.contains("device `cuda:0`") && (driver || library),
        "{text}"
    );
}
