//! What the processes of a pipeline tell each other at the end of a step.

use std::time::Instant;

use gpipe_partitioner::{Action, DeviceId, Micros, Span, Timeline};
use serde::{Deserialize, Serialize};

use super::losses::Parts;
use super::stages::{Stages, Stepped};
use crate::error::Error;
use crate::torch::{Reduction, TorchError};

/// What one process has of a step. Floating-point numbers are their bits, so that all read the
/// same, NaN among them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Closing {
    /// The losses of micro-batches, with their numbers, whose copy of the last stage is here.
    losses: Vec<(usize, u64, Sort)>,
    actions: Vec<Ran>,
    host_share: Option<u64>,
}

/// How a loss was reduced.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Sort {
    Mean,
    Sum,
    Weighted(u64),
}

/// An action: its device, when it began and ended, in seconds of rank 0's clock.
#[derive(Debug, Serialize, Deserialize)]
struct Ran {
    device: usize,
    action: String,
    start: u64,
    end: u64,
}

/// A step, as all processes have it.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) losses: Parts,
    pub(super) timeline: Timeline,
    pub(super) host_share: Option<f64>,
}

impl Closed {
    /// Of what the step brought here (the losses of some micro-batches, by their numbers, if the
    /// last stage is) and in the other processes. Waits until the devices are done with the step.
    pub(super) fn of(
        stages: &Stages,
        (stepped, micros, losses): (Stepped, Vec<usize>, Parts),
        devices: usize,
    ) -> Result<Self, Error> {
        let own = Closing::of(stages, stepped, (micros, losses))?;
        let all = stages.share(own)?;
        let losses = all.iter().flat_map(|own| &own.losses).copied();
        let mut losses: Vec<_> = losses.collect();
        losses.sort_by_key(|(micro, ..)| *micro);
        let spans = all.iter().flat_map(|own| &own.actions).map(Ran::span);
        let spans: Vec<Span> = spans.collect::<Result<_, _>>()?;
        let shares = all.iter().filter_map(|own| own.host_share);
        Ok(Self {
            losses: losses
                .iter()
                .map(|(_, value, sort)| (f64::from_bits(*value), Reduction::from(*sort)))
                .unzip(),
            timeline: Timeline::new(devices, spans),
            host_share: shares.map(f64::from_bits).reduce(f64::max),
        })
    }
}

impl Closing {
    fn of(
        stages: &Stages,
        stepped: Stepped,
        (micros, (values, reductions)): (Vec<usize>, Parts),
    ) -> Result<Self, Error> {
        let losses = micros.into_iter().zip(values).zip(reductions);
        let losses = losses.map(|((micro, value), sort)| (micro, value.to_bits(), sort.into()));
        let epoch = stepped.epoch;
        let (spans, host_share) = match stepped.times {
            Some(times) => times.read_spans()?,
            None => (stages.spans(&stepped.outcome.events), None),
        };
        let at = |epoch: Instant, since: Micros| {
            let seconds = stages.clock_seconds(epoch) + since.get() / 1e6;
            seconds.to_bits()
        };
        let ran = |span: Span| Ran {
            device: span.device.index(),
            action: span.action.to_string(),
            start: at(epoch, span.start),
            end: at(epoch, span.end),
        };
        Ok(Self {
            losses: losses.collect(),
            actions: spans.into_iter().map(ran).collect(),
            host_share: host_share.map(f64::to_bits),
        })
    }
}

impl Ran {
    fn span(&self) -> Result<Span, TorchError> {
        let action = self.action.parse::<Action>();
        let action = action.map_err(|error| TorchError::new(error.to_string()))?;
        let micros = |seconds: u64| Micros::new(f64::from_bits(seconds).max(0.0) * 1e6);
        Ok(Span {
            device: DeviceId(self.device),
            action,
            start: micros(self.start).unwrap_or_default(),
            end: micros(self.end).unwrap_or_default(),
        })
    }
}

impl From<Reduction> for Sort {
    fn from(own: Reduction) -> Self {
        match own {
            Reduction::Mean => Self::Mean,
            Reduction::Sum => Self::Sum,
            Reduction::Weighted(weight) => Self::Weighted(weight.to_bits()),
        }
    }
}

impl From<Sort> for Reduction {
    fn from(own: Sort) -> Self {
        match own {
            Sort::Mean => Self::Mean,
            Sort::Sum => Self::Sum,
            Sort::Weighted(weight) => Self::Weighted(f64::from_bits(weight)),
        }
    }
}
