//! Replicas of a pipeline: their stages' exchanges are ordered, on the same devices and on others.

use gpipe::torch::streams::Recorder;
use gpipe::{Optimizer, Pipeline, error::NonFinite, optim::AdamW};

use crate::support::{cpus, cross_entropy, mlp, mlp_batch, sequential, single_threaded, snapshot};

type Places = [Option<usize>; 4];

/// Two replicas of two devices; the first two entries are the places of stage 0.
const PLACES: [Places; 5] = [
    [Some(0), Some(0), Some(0), Some(0)],
    [Some(0), Some(1), Some(0), Some(1)],
    [Some(0), Some(1), Some(2), Some(3)],
    [Some(0), None, Some(1), Some(1)],
    [None, None, Some(0), None],
];

/// Losses of some steps, and the final state.
fn run(
    recorder: Option<&Recorder>,
    (non_finite, sharded): (NonFinite, bool),
) -> (Vec<u64>, Vec<(String, gpipe::tch::Tensor)>) {
    let replicas = if recorder.is_some() { 2 } else { 1 };
    let builder = Pipeline::builder(sequential(&mlp()))
        .devices(&cpus(2 * replicas))
        .replicas(replicas)
        .shard_optimizer(sharded)
        .tree(4)
        .micro_batches(6)
        .on_non_finite(non_finite)
        .threads_per_stage(1)
        .seed(2);
    let builder = match recorder {
        Some(recorder) => builder.record_streams(recorder),
        None => builder,
    };
    let mut pipe = builder.build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut numbers = Vec::new();
    // The last batch is short: the first replica has one micro-batch of its three.
    for samples in [12, 12, 3] {
        let (x, y) = mlp_batch(samples);
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        let norm = pipe.clip_gradients(0.1).unwrap();
        optimizer.step(&mut pipe).unwrap();
        numbers.push(report.read().unwrap().loss.to_bits());
        numbers.push(norm.read().unwrap().to_bits());
        let _ = pipe.forward(&x).unwrap();
    }
    (numbers, snapshot(&mut pipe))
}

#[test]
fn exchanges_are_in_order_wherever_the_copies_are() {
    single_threaded();
    for non_finite in [NonFinite::Allow, NonFinite::Skip] {
        let (numbers, values) = run(None, (non_finite, false));
        for (places, sharded) in PLACES.iter().flat_map(|own| [(own, false), (own, true)]) {
            let case = format!("{places:?}, sharded {sharded}");
            let recorder = Recorder::new(places);
            let own = run(Some(&recorder), (non_finite, sharded));
            assert_eq!(own.0, numbers, "{case}");
            for ((name, own), (_, value)) in own.1.iter().zip(&values) {
                assert!(own.equal(value), "{case}: {name}");
            }
            recorder.check().unwrap();
            (0..6).for_each(|seed| recorder.play(seed).unwrap());
        }
    }
}
