//! Measured links: transfer times between devices, and between a device and its host.

use gpipe_partitioner::{ActionKind, Bytes, DeviceId, HostLink, Link, Micros, StageId, Timeline};
use tch::{Device, Tensor, nn};

use super::series::Series;
use super::stopwatch::Stopwatch;
use crate::error::Error;
use crate::{Pipeline, Sequential, TorchError, copy_into, copy_to, copy_to_host};

/// Elements of the two test values: their difference in time is due to the bytes.
const SIZES: [i64; 2] = [1 << 10, 1 << 21];
const STEPS: usize = 20;

/// A link from one device to another, measured through the engine: from the end of an action to the
/// start of the one that waits for it, thread switch included.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MeasuredLink {
    /// Fixed time per value.
    pub latency: Micros,
    /// Bytes per second; `None` if copying takes no measurable time, as between CPU devices, where
    /// nothing is copied.
    pub bandwidth: Option<Bytes>,
}

impl MeasuredLink {
    /// Converts to a link for planning.
    pub fn link(&self) -> Link {
        // A bandwidth of zero cannot be, and `measure` returns none.
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
    // Up to half of the values may have met a thread that waited for a core.
    let latency = super::layers::micros(waits[0].quartiles().0);
    let more = arrivals[1].median() - arrivals[0].median();
    let sure = arrivals[0].half_width() + arrivals[1].half_width();
    let bytes = ((SIZES[1] - SIZES[0]) * 4) as f64;
    let copied = first != second;
    let bandwidth = (copied && more > sure).then(|| Bytes((bytes / more * 1e6).max(1.0) as u64));
    Ok(Some(MeasuredLink { latency, bandwidth }))
}

/// A loss that reads one element, so that it waits for the value.
fn touch(output: &Tensor, _: &Tensor) -> Result<Tensor, tch::TchError> {
    let one = output.f_narrow(1, 0, 1)?.f_sum(tch::Kind::Float)?;
    one.f_double_value(&[])?;
    Ok(one)
}

/// Returns the times from the end of the first stage's forward to the start and the end of the
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

/// Elements of the two values copied from a CUDA device to the host and back.
const MOVED: [i64; 2] = [1 << 10, 1 << 24];
/// How long the device is kept busy while the host submits a copy, in microseconds.
const SUBMITTED: f64 = 500.0;

/// Measures the links between a CUDA device and page-locked host memory.
pub(super) fn to_host(device: usize) -> Result<HostLink, Error> {
    let [to_host, to_device] = copies(device, copy_to_host)?;
    Ok(HostLink { to_host, to_device })
}

/// Measures the link between two CUDA devices without host time; zero if both are the same device.
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

/// Measures copies from a CUDA device to a tensor made by `far`, and back.
fn copies(
    device: usize,
    far: impl Fn(&Tensor) -> Result<Tensor, TorchError>,
) -> Result<[Link; 2], Error> {
    let mut watch = Stopwatch::new(device)?;
    let mut times = MOVED.map(|_| [Series::default(), Series::default()]);
    for (size, [there, back]) in MOVED.into_iter().zip(&mut times) {
        let here = Tensor::f_zeros([size], (tch::Kind::Float, Device::Cuda(device)))?;
        // Allocate page-locked memory outside the timing: it takes longer than the copy.
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
