//! Memory of each layer: kept and temporary bytes.

use gpipe_partitioner::{ActionKind, Bytes, Footprint};
use tch::Device;

use super::chain::{Chain, Took, Way};
use super::flow::{Flow, upstream, values_bytes};
use crate::error::Error;
use crate::{memory, tensor_bytes};

/// Bytes observed for a layer in one [`Way`].
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    kept: u64,
    after_input: u64,
    output: u64,
    /// Gradients received from the next layer.
    received: u64,
    /// Peaks of the actions above their starting level; for the forward, above the bytes it kept.
    forward: u64,
    backward: u64,
    weight: u64,
}

/// Bytes of a layer for one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerBytes {
    /// Held all the time.
    pub(super) parameters: u64,
    /// Held from the forward to the backward.
    pub(super) kept: u64,
    /// Held from the input half to the weight half.
    pub(super) after_input: u64,
    /// Part of `kept` that the loss function keeps even if the layer recomputes.
    pub(super) loss: u64,
    pub(super) output: u64,
    /// Temporary bytes on top of `kept`.
    pub(super) temporary: u64,
    /// The same up to the end of the input half of a backward.
    pub(super) input_temporary: u64,
    /// Temporary bytes of the weight half, on top of `after_input`.
    pub(super) weight_temporary: u64,
}

impl LayerBytes {
    fn add(&mut self, way: Way, seen: &Seen) {
        self.kept = self.kept.max(seen.kept);
        self.output = self.output.max(seen.output);
        let temporary = seen.forward.max(seen.backward);
        if way == Way::Halves {
            self.after_input = seen.after_input;
            self.input_temporary = temporary;
            self.weight_temporary = seen.weight;
        } else {
            self.temporary = temporary;
        }
    }

    /// Converts to a profile's footprint.
    pub(super) fn footprint(self) -> Footprint {
        Footprint {
            activations: Bytes(self.kept),
            after_input: Some(Bytes(self.after_input)),
            loss: Bytes(self.loss),
            output: Bytes(self.output),
            temporary: Bytes(self.temporary),
            input_temporary: Some(Bytes(self.input_temporary)),
            weight_temporary: Some(Bytes(self.weight_temporary)),
        }
    }
}

impl Chain {
    /// Measures each layer's bytes for a micro-batch of `flow`'s size.
    pub(super) fn bytes(&mut self, flow: &Flow) -> Result<Vec<LayerBytes>, Error> {
        let mut bytes = vec![LayerBytes::default(); self.len()];
        for (unit, bytes) in self.units.iter_mut().zip(&mut bytes) {
            let parameters = unit.stage.committed().map_err(Error::Build)?.parameters();
            bytes.parameters = parameters.iter().map(|(_, p)| tensor_bytes(p)).sum();
        }
        for way in [Way::Joint, Way::Halves] {
            let seen = self.seen(way, flow)?;
            let both = bytes.iter_mut().zip(&seen);
            both.for_each(|(bytes, seen)| bytes.add(way, seen));
        }
        if self.units.last().is_some_and(|unit| unit.stage.has_loss()) {
            let seen = self.seen(Way::Again, flow)?;
            if let Some((bytes, seen)) = bytes.last_mut().zip(seen.last()) {
                bytes.loss = seen.kept.min(bytes.kept);
            }
        }
        Ok(bytes)
    }

    /// Measures the second of two micro-batches, for which the parameter gradients of the first
    /// already exist.
    fn seen(&mut self, way: Way, flow: &Flow) -> Result<Vec<Seen>, Error> {
        let ignore: &mut dyn FnMut(usize, ActionKind, Took) = &mut |_, _, _| {};
        self.begin(way, flow)?;
        self.measured(0, way, flow, ignore)?;
        let seen = self.measured(1, way, flow, ignore)?;
        self.end()?;
        Ok(seen)
    }

    fn measured(
        &mut self,
        micro: usize,
        way: Way,
        flow: &Flow,
        ignore: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<Vec<Seen>, Error> {
        let count = self.len();
        let mut bytes = vec![Seen::default(); count];
        let mut before = vec![0; count];
        let mut peaks = vec![0; count];
        let mut flow = flow.shallow_clone();
        let mut shared = 0;
        for number in 0..count {
            before[number] = self.level(number)?;
            self.reset_peak(number)?;
            self.forward_one(number, micro, &mut flow, ignore)?;
            peaks[number] = self.peak(number)?;
            let main = values_bytes(&flow.main);
            let own = self.units[number].stage.skip_ends().1.iter();
            let own = own.filter_map(|id| flow.skips.get(id)).map(values_bytes);
            bytes[number].received = main + own.sum::<u64>();
            // Skips that only pass through would cross a cut here, too.
            bytes[number].output = main + flow.skips.values().map(values_bytes).sum::<u64>();
            // One allocator counts for all layers: the next layer's bytes begin at this level.
            shared = self.level(number)?;
        }
        let mut grads = upstream(&flow)?;
        drop(flow);
        for number in 0..count {
            let (kept, after) = (self.kept(number, &before, shared)?, before[number]);
            bytes[number].kept = kept;
            bytes[number].forward = peaks[number].saturating_sub(after + kept);
        }
        let half = match way {
            Way::Halves => ActionKind::BackwardInput,
            _ => ActionKind::Backward,
        };
        for number in (0..count).rev() {
            let received = bytes[number].received;
            let more = self.temporary(number, |chain| {
                chain.back_one(number, half, micro, &mut grads, ignore)
            })?;
            // The gradient sent by the next layer is alive during this action. With weights in a
            // separate half it is freed soon: the part that they need is in `more`.
            bytes[number].backward = match way {
                Way::Halves => more.max(received),
                _ => more + received,
            };
        }
        drop(grads);
        if way == Way::Halves {
            // Read all of them before any weight pass, which frees what previous layers have made.
            for (number, bytes) in bytes.iter_mut().enumerate() {
                bytes.after_input = self.kept(number, &before, shared)?;
            }
            for number in (0..count).rev() {
                bytes[number].weight = self.temporary(number, |chain| {
                    let none = Vec::new();
                    chain
                        .run(number, ActionKind::BackwardWeight, micro, none, ignore)
                        .map(drop)
                })?;
            }
        }
        Ok(bytes)
    }

    /// Returns by how much an action's peak exceeds the level before it.
    fn temporary(
        &mut self,
        number: usize,
        run: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.reset_peak(number)?;
        let level = self.level(number)?;
        run(self)?;
        Ok(self.peak(number)?.saturating_sub(level))
    }

    /// Returns the bytes that a layer holds on top of those before its forward.
    fn kept(&self, number: usize, before: &[u64], shared: u64) -> Result<u64, Error> {
        if self.device == Device::Cpu {
            return Ok(self.level(number)?.saturating_sub(before[number]));
        }
        let after = before.get(number + 1).copied().unwrap_or(shared);
        Ok(after.saturating_sub(before[number]))
    }

    fn level(&self, number: usize) -> Result<u64, Error> {
        match &self.units[number].account {
            Some(account) => Ok(account.current()),
            None => Ok(memory::of_device(self.device)?.current),
        }
    }

    fn peak(&self, number: usize) -> Result<u64, Error> {
        match &self.units[number].account {
            Some(account) => Ok(account.peak()),
            None => Ok(memory::of_device(self.device)?.peak),
        }
    }

    fn reset_peak(&self, number: usize) -> Result<(), Error> {
        match &self.units[number].account {
            Some(account) => account.reset_peak(),
            None => memory::reset_device_peak(self.device)?,
        }
        Ok(())
    }
}
