//! Activations in host memory while their micro-batch is in flight (CPU offload).
//!
//! A segment that recomputes offloads its inputs, others the tensors saved by autograd in their
//! forward. On an accelerator they are copied out on a side stream as soon as they are made, into
//! page-locked memory, and back on another while the device runs the action before the one that
//! uses them.

use std::rc::Rc;

use gpipe_partitioner::MicroId;
use tch::{Device, Tensor};

use super::border::SkipList;
use super::buffers::BufferValues;
use super::inputs::Inputs;
use super::meter::OffloadMeter;
use super::own_tensors::OwnTensors;
use crate::error::TorchError;
use crate::ffi::{SavedTensorPool, SavedTensorScope};
use crate::sequential::bytes;
use crate::streams::{DeviceStreams, PendingH2D};
use crate::values::Values;

/// Offloads the activations of a stage.
#[doc(alias = "CPU offload")]
#[doc(alias = "save_on_cpu")]
#[derive(Debug)]
pub(super) struct Offload {
    device: Device,
    transfers: Rc<Transfers>,
    /// Pieces of fewer bytes stay on the device.
    least: u64,
    /// The micro-batch whose backward the device does directly after its forward: it stays.
    keeps: Option<MicroId>,
}

/// The way to the host and back.
#[derive(Debug)]
struct Transfers {
    streams: Rc<DeviceStreams>,
    meter: Option<OffloadMeter>,
}

/// The inputs of a segment that recomputes, offloaded.
#[derive(Debug)]
pub(super) struct OffloadedInputs {
    transfers: Rc<Transfers>,
    values: Offloaded,
    /// The main values come first, then one a skip.
    skips: Vec<usize>,
    /// Stays: buffers that move are small.
    buffers: BufferValues,
}

/// Place of offloaded values.
#[derive(Debug)]
enum Offloaded {
    OnHost(Values),
    /// On their way back.
    Prefetched(PendingH2D),
}

/// Offloaded tensors saved by autograd in a segment's forward (PyTorch's `save_on_cpu`).
#[doc(alias = "saved_tensors_hooks")]
#[doc(alias = "save_on_cpu")]
#[derive(Debug)]
pub(super) struct SavedTensors {
    transfers: Rc<Transfers>,
    pool: SavedTensorPool,
    /// Number of pieces handled so far.
    seen: usize,
    /// Pieces on their way back.
    prefetched: Option<(Vec<usize>, PendingH2D)>,
}

impl Offload {
    pub(super) fn new(
        device: Device,
        streams: Rc<DeviceStreams>,
        meter: Option<OffloadMeter>,
        least: u64,
    ) -> Self {
        Self {
            device,
            transfers: Rc::new(Transfers { streams, meter }),
            least,
            keeps: None,
        }
    }

    /// Keeps the activations of this micro-batch's forward on the device: its backward is the
    /// device's next action.
    pub(super) fn keep(&mut self, micro: Option<MicroId>) {
        self.keeps = micro;
    }

    /// Itself, if what this micro-batch's forward is about to leave goes to the host.
    pub(super) fn of_forward(&mut self, micro: MicroId) -> Option<&Self> {
        let keeps = self.keeps.take() == Some(micro);
        (!keeps).then_some(self)
    }

    /// Sends a segment's inputs to the host, unless they are small.
    pub(super) fn inputs(&self, inputs: Inputs) -> Result<MaybeOffloaded, TorchError> {
        let size: u64 = inputs.tensors().map(bytes).sum();
        if size < self.least {
            return Ok(MaybeOffloaded::Stays(inputs));
        }
        let (main, skips, buffers) = inputs.into_parts();
        // Treated as another stage's memory, as its origin is unknown here.
        let mut away = |tensor: Tensor| -> Result<Tensor, TorchError> {
            let copy = self.transfers.to_host(vec![(tensor, true)])?.pop();
            copy.ok_or_else(|| TorchError::new("what was offloaded gave no tensor"))
        };
        let main = main.try_move(&mut away)?;
        let (skips, values): (Vec<usize>, Vec<_>) = skips.into_iter().unzip();
        let values = values
            .into_iter()
            .map(|value| value.map(&mut away).transpose());
        let values = main.into_iter().map(Ok).chain(values);
        let values = values.collect::<Result<_, TorchError>>()?;
        Ok(MaybeOffloaded::Leaves(OffloadedInputs {
            transfers: Rc::clone(&self.transfers),
            values: Offloaded::OnHost(values),
            skips,
            buffers,
        }))
    }

    /// Makes the pool for tensors saved in the forward of a segment, which is run with these
    /// inputs, or with its own `copies`. The stage's own tensors stay.
    pub(super) fn saved_tensors(
        &self,
        own: &OwnTensors,
        inputs: &Inputs,
        copies: bool,
    ) -> Result<SavedTensors, TorchError> {
        let pool = SavedTensorPool::new(self.device, self.least)?;
        own.iter()
            .try_for_each(|tensor| pool.keep_on_device(tensor))?;
        if !copies {
            let mut inputs = inputs.tensors();
            inputs.try_for_each(|input| pool.mark_foreign(input))?;
        }
        Ok(SavedTensors {
            transfers: Rc::clone(&self.transfers),
            pool,
            seen: 0,
            prefetched: None,
        })
    }
}

/// A segment's inputs after a try to offload them.
#[derive(Debug)]
pub(super) enum MaybeOffloaded {
    Leaves(OffloadedInputs),
    /// Too small to offload.
    Stays(Inputs),
}

impl Transfers {
    /// Copies in the host's memory; of each source whether another stage has made it.
    fn to_host(&self, sources: Vec<(Tensor, bool)>) -> Result<Vec<Tensor>, TorchError> {
        if let Some(meter) = &self.meter {
            for (tensor, foreign) in &sources {
                meter.leaves(bytes(tensor), *foreign);
            }
        }
        self.streams.offload(sources)
    }
}

impl OffloadedInputs {
    /// Begins to bring them back.
    pub(super) fn prefetch(self) -> Result<Self, TorchError> {
        let values = match self.values {
            Offloaded::OnHost(values) => self.transfers.streams.prefetch(values)?,
            Offloaded::Prefetched(coming) => coming,
        };
        let values = Offloaded::Prefetched(values);
        Ok(Self { values, ..self })
    }

    /// Brings them back.
    pub(super) fn into_inputs(self) -> Result<Inputs, TorchError> {
        let streams = &self.transfers.streams;
        let coming = match self.values {
            Offloaded::OnHost(values) => streams.prefetch(values)?,
            Offloaded::Prefetched(coming) => coming,
        };
        let mut values: Vec<Option<Tensor>> = streams.wait_prefetch(coming)?.into_iter().collect();
        let skipping = values.split_off(values.len() - self.skips.len());
        let skips: SkipList = self.skips.into_iter().zip(skipping).collect();
        let mut inputs = Inputs::new(values.into_iter().collect(), skips);
        inputs.set_buffers(self.buffers);
        Ok(inputs)
    }
}

impl SavedTensors {
    /// Collects the tensors that autograd saves while the result lives.
    pub(super) fn enter(&self) -> SavedTensorScope<'_> {
        self.pool.enter()
    }

    /// These stay where they are.
    pub(super) fn keep<'a>(
        &self,
        mut tensors: impl Iterator<Item = &'a Tensor>,
    ) -> Result<(), TorchError> {
        tensors.try_for_each(|tensor| self.pool.keep_on_device(tensor))
    }

    /// Sends to the host what has been saved since the last time.
    pub(super) fn offload(&mut self) -> Result<(), TorchError> {
        let (mut numbers, mut pieces) = (Vec::new(), Vec::new());
        for number in self.seen..self.pool.len() {
            if let Some(piece) = self.pool.on_device(number)? {
                numbers.push(number);
                pieces.push(piece);
            }
        }
        self.seen = self.pool.len();
        if pieces.is_empty() {
            return Ok(());
        }
        let copies = self.transfers.to_host(pieces)?;
        let mut pieces = numbers.into_iter().zip(&copies);
        pieces.try_for_each(|(number, copy)| self.pool.set_on_host(number, copy))
    }

    /// Begins to bring back all that is on the host.
    pub(super) fn prefetch(&mut self) -> Result<(), TorchError> {
        if self.prefetched.is_some() {
            return Ok(());
        }
        let (mut numbers, mut pieces) = (Vec::new(), Vec::new());
        for number in 0..self.pool.len() {
            if let Some(piece) = self.pool.on_host(number)? {
                numbers.push(number);
                pieces.push(piece);
            }
        }
        if !pieces.is_empty() {
            let pieces = pieces.into_iter().collect();
            let coming = self.transfers.streams.prefetch(pieces)?;
            self.prefetched = Some((numbers, coming));
        }
        Ok(())
    }

    /// Brings everything back to the device where the stage computes.
    pub(super) fn bring_back(&mut self) -> Result<(), TorchError> {
        self.prefetch()?;
        let Some((numbers, coming)) = self.prefetched.take() else {
            return Ok(());
        };
        let values = self.transfers.streams.wait_prefetch(coming)?;
        let mut pieces = numbers.into_iter().zip(values.present());
        pieces.try_for_each(|(number, value)| self.pool.set_on_device(number, value))
    }
}
