//! Updates of one stage's parameters with libtorch's fused kernels.

mod batches;
mod offloaded;
mod optimizer_slot;
mod portable;
#[cfg(test)]
mod tests;

use tch::Tensor;

use super::{AdamW, Groups, OptimizerKind, Sgd};
use crate::error::TorchError;
use crate::ffi::{self, AdamNumbers, SgdNumbers};
use crate::streams::DeviceStreams;
use batches::{Batch, Chosen, batches, split};
use offloaded::Staging;
use optimizer_slot::OptimizerSlot;
pub(crate) use portable::Parts;

/// The optimizer state of the parameters of one stage.
#[doc(alias = "state_dict")]
#[derive(Debug, Default)]
pub(crate) struct OptimizerState {
    slots: Vec<Option<OptimizerSlot>>,
    /// For each parameter, whether its state is offloaded to the host's memory.
    offloaded: Vec<bool>,
    ready: Option<Ready>,
    begun: Option<Begun>,
}

/// New states of parameters that have none yet, by the parameters' indices.
type Fresh = Vec<(usize, OptimizerSlot)>;

/// Everything that an update needs, memory above all: no stage can fail once one stage of the
/// pipeline has begun its update.
#[derive(Debug)]
struct Ready {
    batches: Vec<Batch>,
    fresh: Fresh,
    staging: Option<Staging>,
}

/// An update in progress. An interrupted update resumes where it stopped: the old values are not
/// kept, so that it cannot be undone.
#[derive(Debug)]
struct Begun {
    batches: Vec<Batch>,
    /// Indices of parameters that had no state before.
    begins: Vec<usize>,
    staging: Option<Staging>,
    progress: Progress,
}

/// Progress of an update.
#[derive(Debug, Default)]
struct Progress {
    /// Number of updated batches; of windows, if there are any.
    done: usize,
    /// States on the device that are yet to be copied to the host.
    unsaved: Vec<(Tensor, Tensor)>,
}

impl OptimizerState {
    /// Makes sure that the gradients that the parameters have accumulated can be applied,
    /// and takes the memory for it. Parameters, gradients and optimizer states stay as they
    /// are, also if it fails.
    ///
    /// # Errors
    /// No memory, or a parameter that no update is defined for.
    pub(crate) fn prepare(
        &mut self,
        groups: &Groups,
        parameters: &[(String, Tensor)],
        streams: &DeviceStreams,
    ) -> Result<(), TorchError> {
        self.ready = None;
        self.slots.resize_with(parameters.len(), || None);
        self.offloaded.resize(parameters.len(), false);
        let batches = batches(groups, parameters)?;
        let (fresh, staging) = if groups.offload() {
            let (fresh, staging) = self.prepare_offloaded(groups, &batches, streams)?;
            (fresh, Some(staging))
        } else {
            self.load_to_device(streams)?;
            let mut fresh = Vec::new();
            for (kind, one) in in_order(groups, &batches) {
                fresh.extend(self.fresh(kind, one)?.map(|slot| (one.place, slot)));
            }
            (fresh, None)
        };
        self.ready = Some(Ready {
            batches,
            fresh,
            staging,
        });
        Ok(())
    }

    /// Frees what [`OptimizerState::prepare`] took.
    pub(crate) fn abandon(&mut self) {
        self.ready = None;
    }

    /// Applies the gradients for which it is prepared, each as its group says, and clears
    /// all gradients. Parameters without a gradient and frozen ones are left alone. Where
    /// `found_inf`, a number on the parameters' device, is 1, all parameters and their states
    /// are left alone.
    ///
    /// After an error the next call goes on where this one has stopped. Where there is nothing
    /// to do, nothing is done.
    pub(crate) fn apply(
        &mut self,
        groups: &Groups,
        parameters: &[(String, Tensor)],
        streams: &DeviceStreams,
        found_inf: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        if let Some(ready) = self.ready.take() {
            self.begun = Some(self.begin(ready, groups.offload()));
        }
        let Some(mut begun) = self.begun.take() else {
            return Ok(());
        };
        let done = parameters
            .iter()
            .try_for_each(|(_, parameter)| ffi::take_grad(parameter).map(drop))
            .and_then(|()| self.go_on(groups, found_inf, &mut begun, streams));
        if done.is_err() {
            self.begun = Some(begun);
        }
        done
    }

    /// New states take their places.
    fn begin(&mut self, ready: Ready, offload: bool) -> Begun {
        let begins = ready.fresh.iter().map(|(place, _)| *place).collect();
        for (place, slot) in ready.fresh {
            self.slots[place] = Some(slot);
            self.offloaded[place] = offload;
        }
        Begun {
            batches: ready.batches,
            begins,
            staging: ready.staging,
            progress: Progress::default(),
        }
    }

    fn go_on(
        &mut self,
        groups: &Groups,
        found_inf: Option<&Tensor>,
        begun: &mut Begun,
        streams: &DeviceStreams,
    ) -> Result<(), TorchError> {
        let Begun {
            batches,
            begins,
            staging,
            progress,
        } = begun;
        let update = Update {
            groups,
            found_inf,
            begins,
        };
        if let Some(staging) = staging {
            return self.update_by_windows(&update, (batches, staging), progress, streams);
        }
        for batch in &batches[progress.done..] {
            self.update(&update, batch.group, &batch.chosen)?;
            progress.done += 1;
        }
        Ok(())
    }

    /// A new state for a parameter that has none which fits this kind of update.
    fn fresh(
        &self,
        kind: &OptimizerKind,
        one: &Chosen,
    ) -> Result<Option<OptimizerSlot>, TorchError> {
        match &self.slots[one.place] {
            Some(slot) if slot.serves(kind) => Ok(None),
            _ => OptimizerSlot::new(kind, &one.parameter),
        }
    }

    fn update(
        &self,
        update: &Update,
        group: Option<usize>,
        chosen: &[Chosen],
    ) -> Result<(), TorchError> {
        match update.groups.kind(group) {
            OptimizerKind::Adam(adam) => self.adam(&adam.moments(), false, chosen, update),
            OptimizerKind::AdamW(adamw) => self.adam(adamw, true, chosen, update),
            OptimizerKind::Sgd(sgd) => self.sgd(sgd, chosen, update),
        }
    }

    /// Adam's update; `decoupled` is whether the weight decay is not part of the gradient, as
    /// in `AdamW`.
    fn adam(
        &self,
        adam: &AdamW,
        decoupled: bool,
        chosen: &[Chosen],
        update: &Update,
    ) -> Result<(), TorchError> {
        let (parameters, grads) = split(chosen);
        let (mut means, mut squares, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for one in chosen {
            if let Some(OptimizerSlot::AdamW {
                mean,
                square,
                steps,
            }) = &self.slots[one.place]
            {
                means.push(mean.shallow_clone());
                squares.push(square.shallow_clone());
                counts.push(steps.shallow_clone());
            }
        }
        let numbers = AdamNumbers {
            lr: adam.lr,
            beta1: adam.beta1,
            beta2: adam.beta2,
            weight_decay: adam.weight_decay,
            eps: adam.eps,
            decoupled,
        };
        ffi::fused_adam(
            &parameters,
            &grads,
            &means,
            &squares,
            &counts,
            numbers,
            update.found_inf,
        )
    }

    fn sgd(&self, sgd: &Sgd, chosen: &[Chosen], update: &Update) -> Result<(), TorchError> {
        if sgd.momentum == 0.0 {
            let (parameters, grads) = split(chosen);
            let numbers = numbers(sgd, false);
            return ffi::fused_sgd(&parameters, &grads, &[], numbers, update.found_inf);
        }
        // A parameter's first update fills its buffer instead of blending into it.
        let begins = |one: &&Chosen| update.begins.contains(&one.place);
        let (new, known): (Vec<_>, Vec<_>) = chosen.iter().partition(begins);
        // If only the device knows whether the step counts, the host cannot know whether this is
        // the first update: a buffer of zeros has the same result, since nothing is dampened then
        // (see `Groups::dampen`).
        for (list, first) in [(new, update.found_inf.is_none()), (known, false)] {
            if list.is_empty() {
                continue;
            }
            let (parameters, grads) = split(list.iter().copied());
            let slots = list.iter().filter_map(|one| self.slots[one.place].as_ref());
            let buffers: Vec<Tensor> = slots
                .flat_map(OptimizerSlot::moments)
                .map(Tensor::shallow_clone)
                .collect();
            let numbers = numbers(sgd, first);
            ffi::fused_sgd(&parameters, &grads, &buffers, numbers, update.found_inf)?;
        }
        Ok(())
    }
}

/// Common parts of the updates of one step.
struct Update<'a> {
    groups: &'a Groups,
    /// See [`OptimizerState::apply`].
    found_inf: Option<&'a Tensor>,
    /// Indices of parameters that had no state before.
    begins: &'a [usize],
}

/// Iterates over all parameters to update, each with its kind of update.
fn in_order<'a>(
    groups: &'a Groups,
    batches: &'a [Batch],
) -> impl Iterator<Item = (&'a OptimizerKind, &'a Chosen)> {
    batches.iter().flat_map(|batch| {
        let kind = groups.kind(batch.group);
        batch.chosen.iter().map(move |one| (kind, one))
    })
}

fn numbers(sgd: &Sgd, first: bool) -> SgdNumbers {
    SgdNumbers {
        lr: sgd.lr,
        momentum: sgd.momentum,
        dampening: sgd.dampening,
        weight_decay: sgd.weight_decay,
        nesterov: sgd.nesterov,
        first,
    }
}
