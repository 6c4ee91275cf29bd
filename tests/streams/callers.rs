//! Memory that the caller's thread allocates and stages use.

use gpipe::data::{Dataset, Made};
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::torch::streams::Recorder;
use gpipe::{
    Optimizer, Pipeline,
    optim::AdamW,
    settings::{LossScale, Precision, Recompute},
};

use crate::setup::Setup;
use crate::support::cpus;
use crate::support::models::{self, Model};

/// A finite flag, a factor or a sum of tied gradients is allocated in the caller's stream, which all threads
/// share: without a note to the allocator, another thread (a loader's, say) could get the memory while stages
/// still read it.
#[test]
fn the_allocator_is_told_of_every_stage_that_uses_what_the_caller_made() {
    for places in [[Some(0), Some(1)], [Some(0), Some(0)]] {
        for (model, precision) in [
            (models::tied(), Precision::F32),
            (models::tied(), Precision::Fp16),
            (models::mlp(), Precision::Fp16),
        ] {
            let case = format!("{} {precision} {places:?}", model.name);
            let recorder = Recorder::new(&places);
            train(&model, precision, &recorder);
            recorder
                .check()
                .unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
            // Each note is needed.
            let broken = (0..).map_while(|index| recorder.without(index));
            let told = broken.filter_map(|broken| broken.check().err());
            let told: Vec<String> = told.map(|wrong| wrong.to_string()).collect();
            let default = |told: &String| told.contains("of stream 0 of device");
            assert!(told.iter().any(default), "{case}: {told:?}");
        }
    }
}

fn train(model: &Model, precision: Precision, recorder: &Recorder) {
    let mut pipe = Pipeline::builder(model.sequential())
        .devices(&cpus(2))
        .micro_batches(2)
        .precision(precision)
        .loss_scale(LossScale {
            initial: 256.0,
            growth_interval: 2,
        })
        .record_streams(recorder)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (model.batch)(8);
    for _ in 0..3 {
        pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.clip_gradients(0.1).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
}

/// Regression test: the batching thread copied in the device's default stream, which waits for the current
/// step and delays the next one, so no copy ran during a step.
#[test]
fn batches_that_come_ahead_have_a_stream_of_their_own() {
    let recorder = Recorder::new(&[Some(0), Some(0)]);
    let model = models::mlp();
    let mut pipe = Pipeline::builder(model.sequential())
        .devices(&cpus(2))
        .micro_batches(2)
        .record_streams(&recorder)
        .build()
        .unwrap();
    let own = recorder.streams();
    let items = Made::new(32, move |_| {
        let (x, y) = (models::mlp().batch)(1);
        Ok((x.squeeze_dim(0), y.squeeze_dim(0)))
    });
    let loader = Dataset::new(items).batch(8).record_streams(&recorder, 0);
    for batch in loader.load().unwrap() {
        let (x, y): (Tensor, Tensor) = batch.unwrap();
        pipe.train_step(&x, &y, model.loss).unwrap();
        pipe.zero_grad().unwrap();
    }
    assert!(recorder.streams() > own);
    recorder.check().unwrap();
    (0..8).for_each(|seed| recorder.play(seed).unwrap());
    let broken = (0..).map_while(|index| recorder.without(index));
    let told = broken.filter_map(|broken| broken.check().err());
    let told: Vec<String> = told.map(|wrong| wrong.to_string()).collect();
    // The wait for the copy, and the allocator note for the consumer of a batch.
    let early = "who takes a batch, in stream 0 of device 0, reads";
    assert!(
        told.iter().any(|wrong| wrong.starts_with(early)),
        "{told:?}"
    );
}

/// A device has 32 streams, which libtorch hands out in turn. Regression test: each entry of the device list
/// took five of them, used or not.
#[test]
fn streams_are_taken_where_something_goes_through_them() {
    let streams = |offload: &[usize]| {
        let setup = Setup {
            schedule: ScheduleKind::GPipe,
            chunks: 1,
            micro_batches: 4,
            recompute: Recompute::Never,
            places: vec![Some(0), Some(0)],
        };
        let recorder = Recorder::new(&setup.places);
        let model = models::mlp();
        let builder = setup.builder(&model, Some(&recorder)).offload(offload);
        let least = gpipe::partitioner::Bytes(1);
        let mut pipe = builder.offload_at_least(least).build().unwrap();
        crate::setup::train(&mut pipe, &model);
        recorder.streams()
    };
    // The main streams, and those for inputs and targets.
    assert_eq!(streams(&[]), 4);
    assert_eq!(streams(&[0]), 6);
}
