//! Optimizer states as named tensors, to be saved, and restored on any stage, whatever the
//! partition.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::OptimizerState;
use super::optimizer_slot::OptimizerSlot;
use crate::copies::like;
use crate::error::TorchError;
use crate::optim::OptimizerKind;
use crate::streams::DeviceStreams;

const MEAN: &str = "mean";
const SQUARE: &str = "square";
const STEPS: &str = "steps";
const MOMENTUM: &str = "momentum";

/// The optimizer state of one parameter: tensors by the names of its parts.
pub(crate) type Parts = BTreeMap<String, Tensor>;

impl OptimizerState {
    /// Handles to the state of the parameter at `place`; empty if it has none.
    pub(crate) fn parts(&self, place: usize) -> Vec<(&'static str, &Tensor)> {
        match self.slots.get(place) {
            Some(Some(OptimizerSlot::AdamW {
                mean,
                square,
                steps,
            })) => vec![(MEAN, mean), (SQUARE, square), (STEPS, steps)],
            Some(Some(OptimizerSlot::Momentum(buffer))) => vec![(MOMENTUM, buffer)],
            Some(None) | None => Vec::new(),
        }
    }

    /// Restores the state of the parameter at `place` from parts that [`check`] has passed;
    /// offloaded to the host's memory, through `host`, if that is given.
    ///
    /// # Errors
    /// libtorch refuses.
    pub(crate) fn remember(
        &mut self,
        place: usize,
        parameter: &Tensor,
        parts: &Parts,
        host: Option<&DeviceStreams>,
    ) -> Result<(), TorchError> {
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || None);
            self.offloaded.resize(place + 1, false);
        }
        self.offloaded[place] = false;
        self.slots[place] = match (parts.get(MEAN), parts.get(SQUARE), parts.get(STEPS)) {
            (Some(mean), Some(square), Some(steps)) => Some(OptimizerSlot::AdamW {
                mean: like(parameter, mean)?,
                square: like(parameter, square)?,
                steps: steps.f_to_device(parameter.device())?,
            }),
            _ => match parts.get(MOMENTUM) {
                Some(momentum) => Some(OptimizerSlot::Momentum(like(parameter, momentum)?)),
                None => None,
            },
        };
        host.map_or(Ok(()), |streams| self.offload(&[place], streams))
    }
}

impl OptimizerKind {
    /// The parts of the state of this kind of update.
    fn remembers(&self) -> &'static [&'static str] {
        match self {
            Self::Adam(_) | Self::AdamW(_) => &[MEAN, SQUARE, STEPS],
            Self::Sgd(sgd) if sgd.momentum != 0.0 => &[MOMENTUM],
            Self::Sgd(_) => &[],
        }
    }

    /// Checks that saved parts of a parameter, by name with type and shape, are a state that
    /// updates of this kind can continue with.
    ///
    /// # Errors
    /// They belong to another kind of update, or do not fit the parameter; in words.
    pub fn check_parts<'a>(
        &self,
        (kind, shape): (Kind, &[i64]),
        parts: impl Iterator<Item = (&'a str, Kind, &'a [i64])>,
    ) -> Result<(), String> {
        let wanted = self.remembers();
        let mut found = Vec::new();
        for (part, own_kind, own_shape) in parts {
            let scalar = part == STEPS;
            let (kind, shape): (Kind, &[i64]) = if scalar {
                (Kind::Float, &[])
            } else {
                (kind, shape)
            };
            if !wanted.contains(&part) {
                return Err(format!(
                    "it has `{part}`, which this optimizer does not use: it was saved with another \
                     kind of optimizer; resume with that one, or load the weights alone"
                ));
            }
            if (own_kind, own_shape) != (kind, shape) {
                return Err(format!(
                    "its `{part}` is {own_kind:?} of shape {own_shape:?}, not {kind:?} of shape {shape:?}"
                ));
            }
            found.push(part);
        }
        // A parameter without any part has not been updated yet.
        match wanted.iter().find(|part| !found.contains(part)) {
            Some(part) if !found.is_empty() => Err(format!("it lacks `{part}`")),
            _ => Ok(()),
        }
    }
}
