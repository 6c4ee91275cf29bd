//! Order of a step with respect to the caller before and after it, and to failing steps.

use gpipe::tch::{Kind, Tensor};
use gpipe::torch::streams::Recorder;
use gpipe::{
    Loss, Optimizer, Pipeline,
    optim::AdamW,
    report::{GradNorm, StepReport},
    settings::Recompute,
};

use crate::support::everywhere::failing_at;
use crate::support::{batch, cpus, cross_entropy, single_threaded};

#[test]
fn a_step_that_fails_leaves_the_streams_in_order() {
    for (time, recompute) in [
        (2, Recompute::Never),
        (5, Recompute::Always),
        (7, Recompute::Never),
    ] {
        let recorder = Recorder::new(&[Some(0), Some(0), Some(1)]);
        let mut pipe = Pipeline::builder(failing_at(time))
            .devices(&cpus(3))
            .micro_batches(3)
            .recompute(recompute)
            .record_streams(&recorder)
            .build()
            .unwrap();
        let (x, y) = batch(&[6, 8], 6);
        let steps = (0..3).map(|_| pipe.train_step(&x, &y, cross_entropy).is_err());
        assert_eq!(steps.filter(|failed| *failed).count(), 1, "run {time}");
        recorder.check().unwrap();
        (0..8).for_each(|seed| recorder.play(seed).unwrap());
    }
}

/// Two runs of the same steps: one reads each number immediately, the other all of them at the end.
#[test]
fn numbers_are_the_same_however_late_they_are_read() {
    let run = |recorder: Option<&Recorder>, late: bool| {
        let builder = Pipeline::builder(failing_at(0))
            .devices(&cpus(2))
            .micro_batches(3)
            .threads_per_stage(1);
        let builder = match recorder {
            Some(recorder) => builder.record_streams(recorder),
            None => builder,
        };
        let mut pipe = builder.build().unwrap();
        let mut optimizer = Optimizer::new(AdamW::default());
        let (x, y) = batch(&[6, 8], 6);
        let weighted = |out: &Tensor, y: &Tensor| {
            Loss::weighted(out.cross_entropy_for_logits(y), y.size()[0] as f64 + 0.5)
        };
        let (mut numbers, mut unread) = (Vec::new(), Vec::new());
        for limit in [0.01, f64::INFINITY, 0.5, 1e9] {
            let report = pipe.train_step(&x, &y, weighted).unwrap();
            let norm = pipe.clip_gradients(limit).unwrap();
            assert!(
                report.is_ready() && norm.is_ready(),
                "the CPU leaves nothing for later"
            );
            if !late {
                numbers.push((
                    report.read().unwrap().loss.to_bits(),
                    norm.read().unwrap().to_bits(),
                ));
            }
            unread.push((report, norm));
            optimizer.step(&mut pipe).unwrap();
        }
        if late {
            drop(pipe);
            let read = |(report, norm): &(StepReport, GradNorm)| {
                (
                    report.read().unwrap().loss.to_bits(),
                    norm.read().unwrap().to_bits(),
                )
            };
            numbers.extend(unread.iter().map(read));
        }
        numbers
    };
    single_threaded();
    let expected = run(None, false);
    assert_eq!(run(None, true), expected);
    for places in [[Some(0), Some(1)], [Some(0), Some(0)], [Some(0), None]] {
        for late in [false, true] {
            let recorder = Recorder::new(&places);
            assert_eq!(run(Some(&recorder), late), expected, "{places:?}");
            let summary = recorder.check().unwrap();
            assert!(summary.host_waits == 0 || places[1].is_none(), "{places:?}");
            (0..4).for_each(|seed| recorder.play(seed).unwrap());
        }
    }
}

#[test]
fn what_comes_back_to_the_caller_is_waited_for() {
    let recorder = Recorder::new(&[Some(0), Some(1)]);
    let mut pipe = Pipeline::builder(failing_at(0))
        .devices(&cpus(2))
        .micro_batches(2)
        .record_streams(&recorder)
        .build()
        .unwrap();
    let (x, y) = batch(&[6, 8], 6);
    let x = x.set_requires_grad(true);
    // A loss with a weight, and an input gradient.
    let weighted = |out: &Tensor, y: &Tensor| {
        Loss::weighted(out.cross_entropy_for_logits(y), y.size()[0] as f64)
    };
    let report = pipe.train_step(&x, &y, weighted).unwrap();
    assert!(report.input_gradient.is_some());
    let out = pipe.forward(x.detach()).unwrap();
    assert_eq!(out.size()[0], 6);
    assert_eq!(out.kind(), Kind::Float);
    recorder.check().unwrap();
    (0..8).for_each(|seed| recorder.play(seed).unwrap());
    // Without one of the final waits, some read of the caller is out of order.
    let broken = (0..).map_while(|index| recorder.without(index));
    let told = broken.filter_map(|broken| broken.check().err());
    assert!(
        told.into_iter()
            .any(|wrong| wrong.to_string().contains("the caller"))
    );
}
