//! Offloaded optimizer states, in host memory between steps.
//!
//! Updates go window by window: while one window is updated, the states of the next are prefetched,
//! and those of the previous one are copied back. The memory for both ends of every copy is
//! allocated before the first update, so that no update can stop half-way for lack of memory. An
//! update interrupted by a failed copy resumes where it stopped: see [`Progress`].

use tch::{Device, Kind, Tensor};

use super::optimizer_slot::OptimizerSlot;
use super::{Batch, Chosen, Fresh, Groups, OptimizerKind, OptimizerState, Progress, Update};
use crate::error::TorchError;
use crate::sequential::bytes;
use crate::streams::{DeviceStreams, Event};

/// The alignment of tensors in a window's memory, in bytes: the allocator's.
const ALIGNMENT: u64 = 512;

/// Parameters that are updated at a time.
struct Window<'a> {
    group: Option<usize>,
    chosen: &'a [Chosen],
}

/// Device memory for two windows, which take turns (double buffering).
#[doc(alias = "double buffering")]
#[derive(Debug)]
pub(super) struct Staging {
    halves: Vec<Tensor>,
}

/// The states of a window's parameters, being prefetched.
struct PendingWindow {
    /// Index of each parameter, with pairs of host tensor and device tensor.
    slots: Vec<(usize, Vec<(Tensor, Tensor)>)>,
    ready: Option<Event>,
}

impl Staging {
    /// For windows of these batches.
    fn new(groups: &Groups, batches: &[Batch]) -> Result<Self, TorchError> {
        let windows = all_windows(groups, batches);
        let need = |window: &Window| {
            let moments = OptimizerSlot::moments_of(groups.kind(window.group));
            let sizes = window.chosen.iter().map(|one| aligned(&one.parameter));
            moments * sizes.sum::<u64>()
        };
        let most = windows.iter().map(need).max().unwrap_or(0);
        let device = windows
            .first()
            .map_or(Device::Cpu, |window| window.chosen[0].parameter.device());
        let half = |_| Tensor::f_empty([most as i64], (Kind::Uint8, device));
        let halves = (0..windows.len().min(2)).map(half);
        Ok(Self {
            halves: halves.collect::<Result<_, _>>()?,
        })
    }

    /// Makes a tensor like another in a window's memory, at this offset in bytes.
    fn place(&self, window: usize, offset: u64, like: &Tensor) -> Result<Tensor, TorchError> {
        let half = &self.halves[window % self.halves.len()];
        let flat = half.f_narrow(0, offset as i64, bytes(like) as i64)?;
        let typed = flat.f_view_dtype(like.kind())?;
        Ok(typed.f_as_strided(like.size(), like.stride(), None)?)
    }
}

fn aligned(parameter: &Tensor) -> u64 {
    bytes(parameter).next_multiple_of(ALIGNMENT)
}

fn all_windows<'a>(groups: &Groups, batches: &'a [Batch]) -> Vec<Window<'a>> {
    let of = |batch: &'a Batch| {
        let windows = windows(&batch.chosen, groups.window()).into_iter();
        windows.map(|chosen| Window {
            group: batch.group,
            chosen,
        })
    };
    batches.iter().flat_map(of).collect()
}

/// Splits a batch into parts, in order, each of at most `most` bytes.
fn windows(chosen: &[Chosen], most: u64) -> Vec<&[Chosen]> {
    let mut windows = Vec::new();
    let mut rest = chosen;
    while let Some((first, more)) = rest.split_first() {
        let mut size = bytes(&first.parameter);
        let fits = more.iter().take_while(|one| {
            size += bytes(&one.parameter);
            size <= most
        });
        let (window, others) = rest.split_at(1 + fits.count());
        windows.push(window);
        rest = others;
    }
    windows
}

impl OptimizerState {
    /// Offloads states that are on the device, makes those that are missing, and allocates the
    /// memory for the windows.
    pub(super) fn prepare_offloaded(
        &mut self,
        groups: &Groups,
        batches: &[Batch],
        streams: &DeviceStreams,
    ) -> Result<(Fresh, Staging), TorchError> {
        let mut fresh = Vec::new();
        for Window { group, chosen } in all_windows(groups, batches) {
            let places = chosen.iter().map(|one| one.place);
            let here: Vec<usize> = places.filter(|place| !self.offloaded[*place]).collect();
            self.offload(&here, streams)?;
            for one in chosen {
                if let Some(mut slot) = self.fresh(groups.kind(group), one)? {
                    slot.offload(streams)?;
                    fresh.push((one.place, slot));
                }
            }
            streams.end_action()?;
        }
        streams.release_offloaded()?;
        Ok((fresh, Staging::new(groups, batches)?))
    }

    /// Loads all offloaded states back to the device.
    pub(super) fn load_to_device(&mut self, streams: &DeviceStreams) -> Result<(), TorchError> {
        for (slot, offloaded) in self.slots.iter_mut().zip(&mut self.offloaded) {
            let Some(slot) = slot.as_mut().filter(|_| *offloaded) else {
                continue;
            };
            let moments = slot.moments().into_iter().map(Tensor::shallow_clone);
            let pending = streams.prefetch(moments.collect())?;
            let here = streams.wait_prefetch(pending)?.into_iter().flatten();
            slot.replace(here);
            *offloaded = false;
        }
        Ok(())
    }

    /// Offloads the states of the parameters with these indices.
    #[doc(alias = "optimizer offload")]
    pub(super) fn offload(
        &mut self,
        places: &[usize],
        streams: &DeviceStreams,
    ) -> Result<(), TorchError> {
        for &place in places {
            if let Some(slot) = &mut self.slots[place] {
                slot.offload(streams)?;
                self.offloaded[place] = true;
            }
        }
        streams.end_action()
    }

    /// Makes all remaining updates, window by window. After an error no copy uses the windows'
    /// memory, and `progress` says where to resume.
    pub(super) fn update_by_windows(
        &mut self,
        update: &Update,
        (batches, staging): (&[Batch], &Staging),
        progress: &mut Progress,
        streams: &DeviceStreams,
    ) -> Result<(), TorchError> {
        let windows = all_windows(update.groups, batches);
        let done = self.update_windows(update, (&windows, staging), progress, streams);
        if done.is_err() {
            // The memory may be freed before the update goes on. What the error was says more.
            let _ = streams.join_prefetches();
            let _ = streams.release_offloaded();
        }
        done
    }

    fn update_windows(
        &mut self,
        update: &Update,
        (windows, staging): (&[Window<'_>], &Staging),
        progress: &mut Progress,
        streams: &DeviceStreams,
    ) -> Result<(), TorchError> {
        let prefetch = |state: &Self, number: usize| match windows.get(number) {
            Some(window) => {
                let kind = update.groups.kind(window.group);
                let pending = state.prefetch(number, kind, window.chosen, staging, streams);
                pending.map(Some)
            }
            None => Ok(None),
        };
        save(progress, streams)?;
        let mut pending = prefetch(self, progress.done)?;
        while let (Some(window), Some(PendingWindow { slots, ready })) =
            (windows.get(progress.done), pending.take())
        {
            streams.wait_prefetch_into(ready)?;
            pending = prefetch(self, progress.done + 1)?;
            self.point_slots_at(&slots, |(_, here)| here);
            let updated = self.update(update, window.group, window.chosen);
            self.point_slots_at(&slots, |(host, _)| host);
            updated?;
            progress.done += 1;
            let pairs = slots.into_iter().flat_map(|(_, pairs)| pairs);
            progress.unsaved = pairs.map(|(host, here)| (here, host)).collect();
            save(progress, streams)?;
        }
        streams.release_offloaded()
    }

    /// Begins to prefetch the states of a window's parameters.
    fn prefetch(
        &self,
        number: usize,
        kind: &OptimizerKind,
        window: &[Chosen],
        staging: &Staging,
        streams: &DeviceStreams,
    ) -> Result<PendingWindow, TorchError> {
        let mut slots = Vec::new();
        let mut offset = 0;
        for one in window
            .iter()
            .filter(|_| OptimizerSlot::moments_of(kind) > 0)
        {
            let Some(slot) = &self.slots[one.place] else {
                continue;
            };
            let mut pairs = Vec::new();
            for host in slot.moments() {
                pairs.push((host.shallow_clone(), staging.place(number, offset, host)?));
                offset += aligned(host);
            }
            slots.push((one.place, pairs));
        }
        let pairs = slots.iter().flat_map(|(_, pairs)| pairs);
        let ready = streams.prefetch_into(pairs.map(|(host, here)| (host, here)))?;
        Ok(PendingWindow { slots, ready })
    }

    fn point_slots_at(
        &mut self,
        slots: &[(usize, Vec<(Tensor, Tensor)>)],
        which: impl Fn(&(Tensor, Tensor)) -> &Tensor,
    ) {
        for (place, pairs) in slots {
            if let Some(slot) = &mut self.slots[*place] {
                slot.replace(pairs.iter().map(|pair| which(pair).shallow_clone()));
            }
        }
    }
}

/// Copies updated states back to the host.
fn save(progress: &mut Progress, streams: &DeviceStreams) -> Result<(), TorchError> {
    let pairs = progress.unsaved.iter();
    let handles = |(here, host): &(Tensor, Tensor)| (here.shallow_clone(), host.shallow_clone());
    streams.offload_into(pairs.map(handles))?;
    progress.unsaved.clear();
    streams.end_action()
}

impl OptimizerSlot {
    /// The number of parameter-sized tensors in the state of this kind of update.
    fn moments_of(kind: &OptimizerKind) -> u64 {
        match kind {
            OptimizerKind::Adam(_) | OptimizerKind::AdamW(_) => 2,
            OptimizerKind::Sgd(sgd) => u64::from(sgd.momentum != 0.0),
        }
    }

    /// Copies it to the host.
    fn offload(&mut self, streams: &DeviceStreams) -> Result<(), TorchError> {
        let moments = self.moments().into_iter();
        let sources = moments.map(|moment| (moment.shallow_clone(), false));
        let copies = streams.offload(sources.collect())?;
        self.replace(copies.into_iter());
        Ok(())
    }

    fn replace(&mut self, tensors: impl Iterator<Item = Tensor>) {
        for (moment, tensor) in self.moments_mut().into_iter().zip(tensors) {
            *moment = tensor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    fn chosen(mib: i64) -> Chosen {
        let one = Tensor::empty([1], (Kind::Uint8, Device::Cpu)).expand([mib << 20], true);
        Chosen {
            place: 0,
            grad: one.shallow_clone(),
            parameter: one,
        }
    }

    #[test]
    fn windows_are_full_or_a_single_parameter() {
        let sizes = |all: &[i64]| -> Vec<usize> {
            let all: Vec<Chosen> = all.iter().map(|mib| chosen(*mib)).collect();
            windows(&all, 64 << 20)
                .iter()
                .map(|window| window.len())
                .collect()
        };
        assert_eq!(sizes(&[]), [0_usize; 0]);
        assert_eq!(sizes(&[1, 2, 61, 1]), [3, 1]);
        assert_eq!(sizes(&[100, 1, 100, 100, 32, 32, 1]), [1, 1, 1, 1, 2, 1]);
    }

    #[test]
    fn two_windows_in_turn_have_memory_of_their_own() {
        let half = || Tensor::zeros([4096], (Kind::Uint8, Device::Cpu));
        let staging = Staging {
            halves: vec![half(), half()],
        };
        let like = Tensor::ones([4, 6], (Kind::Float, Device::Cpu)).tr();
        let place = |window, offset| staging.place(window, offset, &like).unwrap();
        let mut first = place(0, 512);
        assert_eq!((first.size(), first.stride()), (like.size(), like.stride()));
        let _ = first.fill_(3.0);
        let sum = |window, offset| place(window, offset).sum(Kind::Float).double_value(&[]);
        assert_eq!(
            [sum(0, 512), sum(2, 512)],
            [72.0; 2],
            "its own, and in turn"
        );
        assert_eq!([sum(0, 0), sum(0, 1024), sum(1, 512)], [0.0; 3]);
    }
}
