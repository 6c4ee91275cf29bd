//! What a stage keeps of a micro-batch, in the host's memory meanwhile.
//!
//! A segment that recomputes keeps its inputs, the others what autograd saves in their
//! forward. On an accelerator it leaves on a side stream as soon as it is made, into
//! page-locked memory, and comes back on another while the device runs the action before
//! the one that uses it.

use gpipe_partitioner::{ActionKind, MicroId};
use tch::Tensor;

use super::TorchStage;
use super::activations::{Flight, Held, Inputs, Live};
use super::buffers::Before;
use crate::engine::OffloadHint;
use crate::torch::error::TorchError;
use crate::torch::ffi::{SavedTensorPool, SavedTensorScope};
use crate::torch::sequential::bytes;
use crate::torch::streams::PendingH2D;
use crate::torch::values::Values;

/// A segment's inputs, elsewhere.
#[derive(Debug)]
pub(super) struct Stowed<T> {
    /// The main values, then one a skip.
    values: T,
    skips: Vec<usize>,
    /// Stays: buffers that move are small.
    before: Before,
}

/// What autograd has saved in a segment's forward.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) saved_pool: SavedTensorPool,
    /// How many pieces have been seen to.
    swept: usize,
    /// The pieces that are on their way back.
    coming: Option<(Vec<usize>, PendingH2D)>,
}

impl TorchStage {
    /// Whether what the forward to come leaves goes to the host, in pieces of at least so
    /// many bytes. It stays where the micro-batch's backward is what the device does next.
    pub(super) fn stows(&mut self, micro: MicroId) -> Option<u64> {
        let stays = self.directly.take() == Some(micro);
        self.route.offload.filter(|_| !stays)
    }

    /// Sends a segment's inputs to the host's memory; not if they are small.
    pub(super) fn stow(&mut self, inputs: Inputs, least: u64) -> Result<Held, TorchError> {
        let size: u64 = inputs.tensors().map(bytes).sum();
        if size < least {
            return Ok(Held::Inputs(inputs));
        }
        let skips = inputs.skips.iter().map(|(skip, _)| *skip).collect();
        // From another stage, as far as anybody here knows.
        let mut away = |tensor: Tensor| -> Result<Tensor, TorchError> {
            let copy = self.put_away(vec![(tensor, true)])?.pop();
            copy.ok_or_else(|| TorchError::new("what was put away gave no tensor"))
        };
        let main = inputs.main.try_move(&mut away)?;
        let skipping = inputs.skips.into_iter().map(|(_, value)| value);
        let skipping = skipping.map(|value| value.map(&mut away).transpose());
        Ok(Held::Stowed(Stowed {
            values: main
                .into_iter()
                .map(Ok)
                .chain(skipping)
                .collect::<Result<_, TorchError>>()?,
            skips,
            before: inputs.before,
        }))
    }

    /// Begins to bring them back.
    fn fetch(&self, stowed: Stowed<Values>) -> Result<Stowed<PendingH2D>, TorchError> {
        Ok(Stowed {
            values: self.streams.prefetch(stowed.values)?,
            skips: stowed.skips,
            before: stowed.before,
        })
    }

    /// What a segment recomputes from; none where it does not.
    pub(super) fn inputs(&self, held: Held) -> Result<Result<Inputs, Live>, TorchError> {
        let Stowed {
            values,
            skips,
            before,
        } = match held {
            Held::Live(live) => return Ok(Err(live)),
            Held::Inputs(inputs) => return Ok(Ok(inputs)),
            Held::Stowed(stowed) => self.fetch(stowed)?,
            Held::Coming(stowed) => stowed,
            Held::Slot(_) => return Err(TorchError::new("graphs keep no inputs")),
        };
        let values = self.streams.wait_prefetch(values)?;
        let mut values: Vec<Option<Tensor>> = values.into_iter().collect();
        let skipping = values.split_off(values.len() - skips.len());
        Ok(Ok(Inputs {
            main: values.into_iter().collect(),
            skips: skips.into_iter().zip(skipping).collect(),
            before,
        }))
    }

    /// A pool for what the forward of a segment saves that is run with these inputs, or
    /// copies of its own.
    pub(super) fn saved_pool(
        &self,
        inputs: &Inputs,
        copies: bool,
        least: u64,
    ) -> Result<Saved, TorchError> {
        let saved_pool = SavedTensorPool::new(self.device, least)?;
        self.own
            .iter()
            .try_for_each(|tensor| saved_pool.keep_on_device(tensor))?;
        if !copies {
            inputs
                .tensors()
                .try_for_each(|input| saved_pool.mark_foreign(input))?;
        }
        Ok(Saved {
            saved_pool,
            swept: 0,
            coming: None,
        })
    }

    /// What the loss function saves goes to the pool of the segment before it, if that
    /// has one; but the caller's targets stay.
    pub(super) fn saves_loss<'a>(
        live: &'a Live,
        targets: &Values,
    ) -> Result<Option<SavedTensorScope<'a>>, TorchError> {
        let Some(saved) = &live.saved else {
            return Ok(None);
        };
        targets
            .present()
            .try_for_each(|target| saved.saved_pool.keep_on_device(target))?;
        Ok(Some(saved.saved_pool.enter()))
    }

    /// Sends to the host what has been saved since the last time.
    pub(super) fn sweep(&mut self, live: &mut Live) -> Result<(), TorchError> {
        let Some(saved) = &mut live.saved else {
            return Ok(());
        };
        let (mut numbers, mut pieces) = (Vec::new(), Vec::new());
        for number in saved.swept..saved.saved_pool.len() {
            if let Some(piece) = saved.saved_pool.on_device(number)? {
                numbers.push(number);
                pieces.push(piece);
            }
        }
        saved.swept = saved.saved_pool.len();
        if pieces.is_empty() {
            return Ok(());
        }
        let copies = self.put_away(pieces)?;
        let saved_pool = &saved.saved_pool;
        numbers
            .into_iter()
            .zip(&copies)
            .try_for_each(|(number, copy)| saved_pool.set_on_host(number, copy))
    }

    fn put_away(&mut self, sources: Vec<(Tensor, bool)>) -> Result<Vec<Tensor>, TorchError> {
        if let Some(meter) = &self.meter {
            let meter = meter.offloading();
            for (tensor, foreign) in &sources {
                meter.leaves(bytes(tensor), *foreign);
            }
        }
        self.streams.offload(sources)
    }

    /// What autograd has saved is where the stage computes, from now on.
    pub(super) fn present(&self, live: &mut Live) -> Result<(), TorchError> {
        let Some(saved) = &mut live.saved else {
            return Ok(());
        };
        self.fetch_saved(saved)?;
        let Some((numbers, coming)) = saved.coming.take() else {
            return Ok(());
        };
        let values = self.streams.wait_prefetch(coming)?;
        numbers
            .into_iter()
            .zip(values.present())
            .try_for_each(|(number, value)| saved.saved_pool.set_on_device(number, value))
    }

    fn fetch_saved(&self, saved: &mut Saved) -> Result<(), TorchError> {
        if saved.coming.is_some() {
            return Ok(());
        }
        let (mut numbers, mut pieces) = (Vec::new(), Vec::new());
        for number in 0..saved.saved_pool.len() {
            if let Some(piece) = saved.saved_pool.on_host(number)? {
                numbers.push(number);
                pieces.push(piece);
            }
        }
        if !pieces.is_empty() {
            let coming = self.streams.prefetch(pieces.into_iter().collect())?;
            saved.coming = Some((numbers, coming));
        }
        Ok(())
    }

    /// Notes that a forward's activations stay here, or begins to bring back what the device
    /// uses after its next action.
    pub(super) fn heed_offload_hint(&mut self, hint: OffloadHint) -> Result<(), TorchError> {
        if self.route.offload.is_none() {
            return Ok(());
        }
        let next = match hint {
            OffloadHint::Keep(next) => {
                self.directly = Some(next.micro);
                return Ok(());
            }
            OffloadHint::Prefetch(next) => next,
        };
        let Some(mut flight) = self.flights.remove(&next.micro) else {
            return Ok(());
        };
        let counted = self.meter.as_ref().and_then(super::StageMeter::enter);
        let coming = self.coming(&mut flight, next.kind);
        drop(counted);
        self.flights.insert(next.micro, flight);
        coming
    }

    fn coming(&self, flight: &mut Flight, kind: ActionKind) -> Result<(), TorchError> {
        let kept = |held: &Held| !matches!(held, Held::Live(_) | Held::Slot(_));
        let only = (kind == ActionKind::Recompute).then(|| flight.segments.iter().rposition(kept));
        let segments = std::mem::take(&mut flight.segments);
        for (number, held) in segments.into_iter().enumerate() {
            let wanted = only.is_none_or(|only| only == Some(number));
            flight.segments.push(match held {
                Held::Stowed(stowed) if wanted => Held::Coming(self.fetch(stowed)?),
                Held::Live(mut live) if wanted => {
                    if let Some(saved) = &mut live.saved {
                        self.fetch_saved(saved)?;
                    }
                    Held::Live(live)
                }
                held => held,
            });
        }
        if let Some(saved) = flight.loss.as_mut().and_then(|live| live.saved.as_mut())
            && only.is_none()
        {
            self.fetch_saved(saved)?;
        }
        Ok(())
    }
}
