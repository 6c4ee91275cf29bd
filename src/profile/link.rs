//! What it takes to hand a value from one device to another.

use gpipe_partitioner::{ActionKind, Bytes, DeviceId, Link, Micros, StageId, Timeline};
use tch::{Device, Tensor, nn};

use super::series::Series;
use crate::Pipeline;
use crate::error::Error;
use crate::torch::Sequential;

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
    let latency = super::micros(waits[0].quartiles().0);
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
