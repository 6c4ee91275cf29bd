//! Activations of micro-batches on a stage between forward and backward.

use std::collections::HashMap;

use gpipe_partitioner::{ActionKind, MicroId};

use super::border::SkipList;
use super::graphs::{Forward, Slot};
use super::inputs::Inputs;
use super::live::Live;
use super::offload::{MaybeOffloaded, Offload, OffloadedInputs};
use crate::error::TorchError;
use crate::values::Values;

/// The micro-batches in flight on a stage.
#[doc(alias = "in-flight")]
#[derive(Debug, Default)]
pub(super) struct Activations(HashMap<MicroId, Flight>);

/// One micro-batch on one stage: its in-flight activations.
#[doc(alias = "in-flight activations")]
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// One entry per segment; after the first half of a backward, the data for the other half, the
    /// last segment first.
    segments: Vec<StoredActivations>,
    /// Graph of the loss, if the last segment keeps none that could include it.
    loss: Option<Live>,
}

/// Stored state of a segment.
#[derive(Debug)]
pub(super) enum StoredActivations {
    /// Its autograd graph, with the saved tensors.
    Live(Live),
    /// Inputs for a recompute.
    Inputs(Inputs),
    /// The same in host memory, or on its way back.
    Offloaded(OffloadedInputs),
    /// CUDA graphs that contain it.
    InGraphs(Box<Slot>),
}

/// Starting point of a backward.
#[derive(Debug)]
pub(super) enum BackwardSource {
    Live(Live),
    Recompute(Inputs),
    InGraphs(Box<Slot>),
}

impl Activations {
    pub(super) fn put(&mut self, micro: MicroId, flight: Flight) {
        self.0.insert(micro, flight);
    }

    /// # Errors
    /// The micro-batch is not in flight.
    pub(super) fn take(&mut self, micro: MicroId) -> anyhow::Result<Flight> {
        let flight = self.0.remove(&micro);
        flight
            .ok_or_else(|| anyhow::anyhow!("micro-batch {micro} has no forward to go back through"))
    }

    /// Begins to bring back to the device what an action of this kind will use.
    pub(super) fn prefetch(&mut self, micro: MicroId, kind: ActionKind) -> Result<(), TorchError> {
        match self.0.get_mut(&micro) {
            Some(flight) => flight.prefetch(kind),
            None => Ok(()),
        }
    }

    /// Drops the activations in flight, all of them when the result is dropped. Returns the slots
    /// of CUDA graphs that micro-batches were in.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Box<Slot>> {
        let flights = self.0.drain();
        let stored = flights.flat_map(|(_, flight)| flight.segments);
        stored.filter_map(|stored| match stored {
            StoredActivations::InGraphs(slot) => Some(slot),
            _ => None,
        })
    }

    /// Leaks all of it: see [`super::lost_device`].
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.0));
    }
}

impl Flight {
    /// Makes the state after the first half of a backward.
    pub(super) fn halfway(kept: Vec<StoredActivations>) -> Self {
        Self {
            segments: kept,
            loss: None,
        }
    }

    /// Adds the state of the next segment.
    pub(super) fn push(&mut self, stored: StoredActivations) {
        self.segments.push(stored);
    }

    /// The graph of the last segment, where it has one.
    pub(super) fn last_graph(&mut self) -> Option<&mut Live> {
        match self.segments.last_mut() {
            Some(StoredActivations::Live(live)) => Some(live),
            _ => None,
        }
    }

    /// The graph for the loss, and whether that is separate from the last segment's.
    pub(super) fn loss_graph(&mut self) -> Result<(&mut Live, bool), TorchError> {
        match self.segments.last_mut() {
            Some(StoredActivations::Live(live)) => Ok((live, false)),
            _ => Ok((self.loss.insert(Live::new(None)?), true)),
        }
    }

    /// The loss's own graph, which a backward begins with.
    pub(super) fn take_loss(&mut self) -> Option<Live> {
        self.loss.take()
    }

    /// The segments with their numbers, in the order of a backward.
    pub(super) fn backwards(self) -> impl Iterator<Item = (usize, StoredActivations)> + use<> {
        self.segments.into_iter().enumerate().rev()
    }

    /// Returns the state kept by the first half of a backward, in the order of the second.
    pub(super) fn into_halfway(self) -> Vec<StoredActivations> {
        self.segments
    }

    /// The segment that an `R` recomputes, and its inputs. Segments before it wait for their
    /// turn: together they would take the memory that recomputing saves.
    pub(super) fn take_recompute(&mut self) -> Result<Option<(usize, Inputs)>, TorchError> {
        let Some(number) = self.recomputed_first() else {
            return Ok(None);
        };
        match self.segments.remove(number).into_source()? {
            BackwardSource::Recompute(inputs) => Ok(Some((number, inputs))),
            _ => Err(TorchError::new(
                "a segment that is kept is not to be recomputed",
            )),
        }
    }

    /// The graph of the segment, recomputed.
    pub(super) fn insert(&mut self, number: usize, live: Live) {
        let live = StoredActivations::Live(live);
        self.segments.insert(number, live);
    }

    fn recomputed_first(&self) -> Option<usize> {
        let mut segments = self.segments.iter();
        segments.rposition(StoredActivations::needs_recompute)
    }

    /// An `R` uses the inputs of one segment, backwards all there is.
    fn prefetch(&mut self, kind: ActionKind) -> Result<(), TorchError> {
        let all = kind != ActionKind::Recompute;
        let first = self.recomputed_first();
        let segments = std::mem::take(&mut self.segments);
        for (number, stored) in segments.into_iter().enumerate() {
            let used = all || first == Some(number);
            let stored = if used { stored.prefetch()? } else { stored };
            self.segments.push(stored);
        }
        match &mut self.loss {
            Some(loss) if all => loss.prefetch(),
            _ => Ok(()),
        }
    }
}

impl StoredActivations {
    /// Splits the result of a segment that keeps its graph into outputs, outgoing skips, and state.
    pub(super) fn of_forward(done: Forward) -> anyhow::Result<(Values, SkipList, Self)> {
        match done {
            Forward::Run(output) => {
                let (values, skips, live) = output.into_live()?;
                Ok((values, skips, Self::Live(live)))
            }
            Forward::Replayed(output, slot) => {
                let (values, skips) = output.into_values();
                Ok((values, skips, Self::InGraphs(slot)))
            }
        }
    }

    /// Stores a segment that recomputes; offloaded if requested.
    pub(super) fn of_inputs(inputs: Inputs, offload: Option<&Offload>) -> Result<Self, TorchError> {
        let Some(offload) = offload else {
            return Ok(Self::Inputs(inputs));
        };
        Ok(match offload.inputs(inputs)? {
            MaybeOffloaded::Leaves(offloaded) => Self::Offloaded(offloaded),
            MaybeOffloaded::Stays(inputs) => Self::Inputs(inputs),
        })
    }

    fn needs_recompute(&self) -> bool {
        matches!(self, Self::Inputs(_) | Self::Offloaded(_))
    }

    /// Returns the starting point of a backward, or of an `R`, on the stage's device.
    pub(super) fn into_source(self) -> Result<BackwardSource, TorchError> {
        Ok(match self {
            Self::Live(live) => BackwardSource::Live(live),
            Self::Inputs(inputs) => BackwardSource::Recompute(inputs),
            Self::Offloaded(inputs) => BackwardSource::Recompute(inputs.into_inputs()?),
            Self::InGraphs(slot) => BackwardSource::InGraphs(slot),
        })
    }

    fn prefetch(self) -> Result<Self, TorchError> {
        Ok(match self {
            Self::Offloaded(inputs) => Self::Offloaded(inputs.prefetch()?),
            Self::Live(mut live) => {
                live.prefetch()?;
                Self::Live(live)
            }
            stored => stored,
        })
    }
}
