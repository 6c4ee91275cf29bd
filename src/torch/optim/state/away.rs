//! What is remembered, in the host's memory between steps.
//!
//! Updates then go window by window: while one is computed, what is remembered of the
//! next comes, and that of the one before leaves.

use tch::Tensor;

use super::{Batch, Chosen, Groups, OptimizerState, Slot};
use crate::torch::error::TorchError;
use crate::torch::sequential::bytes;
use crate::torch::streams::{Coming, Lane};
use crate::torch::values::Values;

/// Bytes of the parameters that are updated at a time; a larger one goes by itself.
const WINDOW: u64 = 64 << 20;

/// What is remembered of a window's parameters, on its way.
struct Arriving {
    places: Vec<usize>,
    coming: Coming,
}

/// Parts of a batch, in order.
fn windows(chosen: &[Chosen]) -> Vec<&[Chosen]> {
    let mut windows = Vec::new();
    let mut rest = chosen;
    while let Some((first, more)) = rest.split_first() {
        let mut size = bytes(&first.parameter);
        let fits = more.iter().take_while(|one| {
            size += bytes(&one.parameter);
            size <= WINDOW
        });
        let (window, others) = rest.split_at(1 + fits.count());
        windows.push(window);
        rest = others;
    }
    windows
}

impl OptimizerState {
    /// Whether anything is on the host that these updates need.
    pub(super) fn any_away(&self) -> bool {
        self.away.contains(&true)
    }

    /// All updates, window by window.
    pub(super) fn update_by_windows(
        &mut self,
        groups: &Groups,
        batches: &[Batch],
        lane: &Lane,
        found: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        let windows = batches.iter().flat_map(|batch| {
            let kind = groups.kind(batch.group);
            let windows = windows(&batch.chosen).into_iter();
            windows.map(move |window| (kind, window))
        });
        let mut windows = windows.peekable();
        let mut coming = match windows.peek() {
            Some((_, first)) => Some(self.come(first, lane)?),
            None => None,
        };
        while let (Some((kind, window)), Some(arriving)) = (windows.next(), coming.take()) {
            self.arrive(arriving, lane)?;
            if let Some((_, next)) = windows.peek() {
                coming = Some(self.come(next, lane)?);
            }
            self.update(kind, window, found)?;
            if groups.offload() {
                let places: Vec<usize> = window.iter().map(|one| one.place).collect();
                self.leave(&places, lane)?;
            }
        }
        lane.stowed()
    }

    /// Begins to bring back what is remembered of a window's parameters.
    fn come(&self, window: &[Chosen], lane: &Lane) -> Result<Arriving, TorchError> {
        let places: Vec<usize> = window.iter().map(|one| one.place).collect();
        let places: Vec<usize> = places.into_iter().filter(|at| self.away[*at]).collect();
        let slots = places.iter().filter_map(|at| self.slots[*at].as_ref());
        let values: Values = slots
            .flat_map(Slot::moments)
            .map(Tensor::shallow_clone)
            .collect();
        Ok(Arriving {
            coming: lane.bring_back(values)?,
            places,
        })
    }

    /// It is there.
    fn arrive(&mut self, arriving: Arriving, lane: &Lane) -> Result<(), TorchError> {
        let values = lane.back(arriving.coming)?;
        self.replace(&arriving.places, values.into_iter().flatten(), false);
        Ok(())
    }

    /// Sends away what is remembered of the parameters at these places.
    pub(super) fn leave(&mut self, places: &[usize], lane: &Lane) -> Result<(), TorchError> {
        let slots = places.iter().filter_map(|at| self.slots[*at].as_ref());
        let moments = slots.flat_map(Slot::moments);
        let sources = moments.map(|moment| (moment.shallow_clone(), false));
        let copies = lane.put_away(sources.collect())?;
        self.replace(places, copies.into_iter(), true);
        lane.acted()
    }

    fn replace(&mut self, places: &[usize], mut tensors: impl Iterator<Item = Tensor>, away: bool) {
        for &place in places {
            self.away[place] = away && self.slots[place].is_some();
            let moments = self.slots[place].iter_mut().flat_map(Slot::moments_mut);
            for (moment, tensor) in moments.zip(&mut tensors) {
                *moment = tensor;
            }
        }
    }
}

impl Slot {
    /// What is as large as the parameter.
    fn moments(&self) -> Vec<&Tensor> {
        match self {
            Self::AdamW { mean, square, .. } => vec![mean, square],
            Self::Momentum(buffer) => vec![buffer],
        }
    }

    fn moments_mut(&mut self) -> Vec<&mut Tensor> {
        match self {
            Self::AdamW { mean, square, .. } => vec![mean, square],
            Self::Momentum(buffer) => vec![buffer],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn windows_are_full_or_a_single_parameter() {
        let chosen = |mib: i64| {
            let one = Tensor::empty([1], (Kind::Uint8, Device::Cpu)).expand([mib << 20], true);
            Chosen {
                place: 0,
                grad: one.shallow_clone(),
                parameter: one,
            }
        };
        let sizes = |all: &[i64]| -> Vec<usize> {
            let all: Vec<Chosen> = all.iter().map(|mib| chosen(*mib)).collect();
            windows(&all).iter().map(|window| window.len()).collect()
        };
        assert_eq!(sizes(&[]), [0_usize; 0]);
        assert_eq!(sizes(&[1, 2, 61, 1]), [3, 1]);
        assert_eq!(sizes(&[100, 1, 100, 100, 32, 32, 1]), [1, 1, 1, 1, 2, 1]);
    }
}
