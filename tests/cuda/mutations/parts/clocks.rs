//! The times of steps.

use std::time::Instant;

use gpipe::partitioner::{Action, ActionKind, DeviceId};
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::{Pipeline, Sequential};

use super::GPUS;

/// A device whose clock is slower than the host's: its actions do not overlap.
pub(super) fn timed() {
    let linear = |p: &nn::Path<'_>| nn::linear(p, 512, 512, nn::LinearConfig::default());
    let model = || Sequential::new().layer("one", linear).layer("two", linear);
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let x = Tensor::ones([2048, 512], (Kind::Float, Device::Cpu));
    // The loss is available before the first device is done.
    let devices = [GPUS[0], Device::Cpu];
    let mut pipe = Pipeline::builder(model())
        .devices(&devices)
        .micro_batches(4)
        .build()
        .unwrap();
    for _ in 0..3 {
        let report = pipe.train_step(&x, &x, loss).unwrap();
        let timeline = &report.read().unwrap().timeline;
        let mut spans: Vec<_> = timeline.spans().iter().collect();
        spans.retain(|span| span.device == DeviceId(0));
        spans.sort_by(|one, other| one.start.get().total_cmp(&other.start.get()));
        for pair in spans.windows(2) {
            assert!(pair[1].start.get() >= pair[0].end.get() - 1.0, "{pair:?}");
        }
    }
    one_axis(model(), &x, loss);
}

/// Two devices share one time axis, however busy one of them was when the pipeline was built: the first one's
/// backward comes after the second's.
fn one_axis(model: Sequential, x: &Tensor, loss: fn(&Tensor, &Tensor) -> Tensor) {
    let large = Tensor::ones([1024; 2], (Kind::Float, GPUS[0]));
    let work = || (0..8).for_each(|_| drop(large.matmul(&large)));
    work();
    gpipe::tch::Cuda::synchronize(0);
    let begin = Instant::now();
    work();
    gpipe::tch::Cuda::synchronize(0);
    let lasted = begin.elapsed().as_secs_f64() * 1e6;
    work();
    let mut pipe = Pipeline::builder(model)
        .devices(&GPUS[..2])
        .micro_batches(4)
        .build()
        .unwrap();
    let x = x.narrow(0, 0, 64);
    let report = pipe.train_step(&x, &x, loss).unwrap();
    let timeline = &report.read().unwrap().timeline;
    let backward = |device: usize, micro: usize| {
        let mut spans = timeline.spans().iter();
        let wanted = Action::new(device, ActionKind::Backward, micro);
        let found = spans.find(|span| span.action == wanted);
        found.unwrap()
    };
    for micro in 0..4 {
        let (first, second) = (backward(0, micro), backward(1, micro));
        let late = second.end.get() - first.start.get();
        assert!(late < lasted / 4.0, "{late} of {lasted}: {timeline:?}");
    }
}
