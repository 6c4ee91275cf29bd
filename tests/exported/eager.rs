//! Evaluation and batch norm are those of eager PyTorch.

use gpipe::tch::Kind;

use crate::fixture::{Fixture, MICRO_BATCHES, assert_as_told, assert_near, every};
use crate::support::single_threaded;

#[test]
fn one_file_is_evaluated_too() {
    single_threaded();
    for name in every() {
        let fixture = Fixture::open(name);
        // One takes micro-batches of two samples alone.
        let micro = if name == "fixed" { MICRO_BATCHES } else { 1 };
        for stages in 1..=4 {
            let mut pipe = fixture
                .builder(stages)
                .micro_batches(micro)
                .build()
                .unwrap();
            let out = pipe.forward_values(fixture.inputs()).unwrap();
            let what = format!("{name}, {stages} stages: the output in evaluation");
            let out = out.present().last().unwrap();
            assert_as_told(out, fixture.told("eval"), &what);
        }
    }
}

#[test]
fn batch_norm_counts_a_mini_batch_once() {
    single_threaded();
    for name in ["resnet", "convnext", "unet"] {
        let fixture = Fixture::open(name);
        // The statistics of one micro-batch are those of the mini-batch.
        let mut pipe = fixture.builder(2).micro_batches(1).build().unwrap();
        fixture.step(&mut pipe);
        let mut counters = 0;
        for (buffer, own) in pipe.buffers().unwrap() {
            if own.kind() == Kind::Int64 {
                counters += 1;
                assert_eq!(own.int64_value(&[]), 1, "{name}: {buffer}");
                continue;
            }
            let told = fixture.told(&format!("buffer.{buffer}"));
            assert_near(&own, told, &format!("{name}: {buffer}"));
        }
        assert!(counters > 0, "{name}");
        // Several micro-batches count as one step, and so do the same once more.
        let mut pipe = fixture.builder(2).build().unwrap();
        fixture.step(&mut pipe);
        fixture.step(&mut pipe);
        let buffers = pipe.buffers().unwrap();
        let counter = buffers.iter().find(|(_, own)| own.kind() == Kind::Int64);
        assert_eq!(counter.unwrap().1.int64_value(&[]), 2, "{name}");
    }
}
