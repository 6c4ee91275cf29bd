//! What it takes to hand a value from one device to another.

use gpipe_partitioner::{ActionKind, Bytes, DeviceId, HostLink, Link, Micros, StageId, Timeline};
use tch::{Device, Tensor, nn};

use super::series::Series;
use super::stopwatch::Stopwatch;
use crate::Pipeline;
use crate::error::Error;
use crate::torch::{Sequential, TorchError, copy_into, copy_to, copy_to_host};

/// Numbers of two values: the difference in time is what the bytes take.
const SIZES: [i64; 2] = [1 << 10, 1 << 21];
const STEPS: usize = 20;

/// The link from one device to another, as measured through the engine: from the end
/// of an action to the begin of the one that waits for it, thread switch included.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MeasuredLink {
    /// What any value takes.
    pub latency: Micros,
    /// Bytes a second; `None` where they take no time that can be measured: nothing is
    /// copied between CPU devices.
    pub bandwidth: Option<Bytes>,
}

impl MeasuredLink {
    /// The link as plans want it.
    pub fn link(&self) -> Link {
        // A bandwidth of zero is none, and `measure` gives none.
        let copying = self
            .bandwidth
            .and_then(|bytes| Link::new(bytes, self.latency).ok());
        copying.unwrap_or_else(|| Link::without_copy(self.latency))
    }
}

/// Measures the link between the first two devices; `None` where there is only one.
pub(super) fn measure(devices: &[Device], threads: usize) -> Result<Option<MeasuredLink>, Error> {
    let [first, second, ..] = devices else {
        return Ok(None);
    };
    if let (Device::Cuda(first), Device::Cuda(second)) = (*first, *second) {
        return between(first, second).map(Some);
    }
    let model = Sequential::new().layers("hand", 2, |_: &nn::Path<'_>, _| {
        nn::func(Tensor::shallow_clone)
    });
    let mut pipe = Pipeline::builder(model)
        .devices(&[*first, *second])
        .threads_per_stage(threads)
        .build()?;
    let mut waits = SIZES.map(|_| Series::default());
    let mut arrivals = SIZES.map(|_| Series::default());
    for step in 0..=STEPS {
        for (place, size) in SIZES.into_iter().enumerate() {
            let input = Tensor::f_zeros([1, size], (tch::Kind::Float, *first))?;
            let input = input.f_set_requires_grad(true)?;
            let target = Tensor::f_zeros([1], (tch::Kind::Float, *second))?;
            let report = pipe.train_step(&input, &target, touch)?;
            let times = handed_over(&report.read()?.timeline).filter(|_| step > 0);
            if let Some((wait, arrival)) = times {
                waits[place].push(wait, false);
                arrivals[place].push(arrival, false);
            }
        }
    }
    // Half of the values may have met a thread that waited for a core.
    let latency = super::layers::micros(waits[0].quartiles().0);
    let more = arrivals[1].median() - arrivals[0].median();
    let sure = arrivals[0].half_width() + arrivals[1].half_width();
    let bytes = ((SIZES[1] - SIZES[0]) * 4) as f64;
    let copied = first != second;
    let bandwidth = (copied && more > sure).then(|| Bytes((bytes / more * 1e6).max(1.0) as u64));
    Ok(Some(MeasuredLink { latency, bandwidth }))
}

/// A loss that is there once the value is.
fn touch(output: &Tensor, _: &Tensor) -> Result<Tensor, tch::TchError> {
    let one = output.f_narrow(1, 0, 1)?.f_sum(tch::Kind::Float)?;
    one.f_double_value(&[])?;
    Ok(one)
}

/// From the end of the first stage's forward to the begin and the end of the
/// second's, in microseconds.
fn handed_over(timeline: &Timeline) -> Option<(f64, f64)> {
    let forward = |stage: usize| {
        let mut spans = timeline.spans().iter();
        spans.find(|span| {
            span.action.kind == ActionKind::Forward
                && span.action.stage == StageId(stage)
                && span.device == DeviceId(stage)
        })
    };
    let (from, to) = (forward(0)?, forward(1)?);
    let since = |time: Micros| time.get() - from.end.get();
    Some((since(to.start).max(0.0), since(to.end)))
}

/// Numbers of two values that leave a CUDA device and come back.
const MOVED: [i64; 2] = [1 << 10, 1 << 24];
/// How long the device is occupied while the host submits a copy, in microseconds.
const SUBMITTED: f64 = 500.0;

/// The links between a CUDA device and page-locked memory of the host.
pub(super) fn to_host(device: usize) -> Result<HostLink, Error> {
    let [to_host, to_device] = copies(device, copy_to_host)?;
    Ok(HostLink { to_host, to_device })
}

/// Between two CUDA devices, whatever their hosts take: over a link, or where both are one,
/// at once.
fn between(first: usize, second: usize) -> Result<MeasuredLink, Error> {
    if first == second {
        return Ok(MeasuredLink {
            latency: Micros::ZERO,
            bandwidth: None,
        });
    }
    let [there, _] = copies(first, |here| copy_to(here, Some(second)))?;
    Ok(MeasuredLink {
        latency: there.latency(),
        bandwidth: there.bandwidth(),
    })
}

/// From a CUDA device to where `far` makes a copy, and back.
fn copies(
    device: usize,
    far: impl Fn(&Tensor) -> Result<Tensor, TorchError>,
) -> Result<[Link; 2], Error> {
    let mut watch = Stopwatch::new(device)?;
    let mut times = MOVED.map(|_| [Series::default(), Series::default()]);
    for (size, [there, back]) in MOVED.into_iter().zip(&mut times) {
        let here = Tensor::f_zeros([size], (tch::Kind::Float, Device::Cuda(device)))?;
        // To get page-locked memory takes longer than to copy.
        let far = far(&here)?;
        for step in 0..=STEPS {
            let begin = watch.start(SUBMITTED)?;
            copy_into(&far, &here)?;
            let away = watch.stop(&begin)?;
            let begin = watch.start(SUBMITTED)?;
            copy_into(&here, &far)?;
            let again = watch.stop(&begin)?;
            if step > 0 {
                there.push(away, false);
                back.push(again, false);
            }
        }
    }
    let [small, large] = &times;
    Ok([0, 1].map(|way| {
        let latency = small[way].median();
        let more = large[way].median() - latency;
        let bytes = ((MOVED[1] - MOVED[0]) * 4) as f64;
        let bandwidth = Bytes((bytes / more.max(1e-3) * 1e6).max(1.0) as u64);
        let latency = super::layers::micros(latency);
        Link::new(bandwidth, latency).unwrap_or_else(|_| Link::without_copy(latency))
    }))
}
