//! Parameters with several places of use.

use std::sync::Arc;

use gpipe_partitioner::{LayerId, Partition, StageId};

use super::stages::Stages;
use crate::error::{Error, Setting, SettingsError};
use crate::torch::Sequential;

/// A parameter under one of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ParameterUse {
    stage: StageId,
    name: String,
}

/// One parameter for the user, and everywhere it is used, in the order of the layers.
#[derive(Debug, Clone)]
struct Tied {
    owner: ParameterUse,
    places: Vec<ParameterUse>,
}

/// All tied parameters of a model.
#[doc(alias = "tied weights")]
#[doc(alias = "all-reduce")]
#[derive(Debug, Clone, Default)]
pub(super) struct Ties(Arc<Vec<Tied>>);

impl Ties {
    /// Makes every tied copy a place of use of its owner.
    ///
    /// # Errors
    /// Names that do not exist, shapes that differ, one parameter tied to two owners.
    pub(super) fn join(
        model: &Sequential,
        partition: &Partition,
        engine: &mut Stages,
    ) -> Result<Self, Error> {
        let mut all: Vec<Tied> = Vec::new();
        for tie in model.ties() {
            let owner = place(model, partition, &tie.owner)?;
            let copy = place(model, partition, &tie.copy)?;
            let taken = |tied: &Tied| tied.places.contains(&copy);
            if owner == copy || all.iter().any(taken) {
                return Err(wrong(format!(
                    "`{}` cannot be tied to `{}`: it is tied already",
                    tie.copy, tie.owner
                )));
            }
            let stands_for_another =
                |tied: &Tied| tied.owner != owner && tied.places.contains(&owner);
            if all.iter().any(stands_for_another) {
                return Err(wrong(format!(
                    "`{}` cannot be tied to `{}`, which itself stands for another parameter: \
                     tie it to that one",
                    tie.copy, tie.owner
                )));
            }
            match all.iter_mut().find(|tied| tied.owner == owner) {
                Some(tied) => tied.places.push(copy),
                None => all.push(Tied {
                    places: vec![owner.clone(), copy],
                    owner,
                }),
            }
        }
        let order = |place: &ParameterUse| layer_of(model, &place.name);
        for tied in &mut all {
            tied.places.sort_by_key(order);
            adopt(tied, engine)?;
        }
        Ok(Self(Arc::new(all)))
    }

    /// Adds up what the last step left at the places of use, in their order, and
    /// leaves the sum with the owner.
    pub(super) fn sum(&self, engine: &mut Stages) -> Result<(), Error> {
        for tied in self.0.iter() {
            let mut sum: Option<tch::Tensor> = None;
            // The stage whose device has it.
            let mut first = tied.owner.stage;
            for place in &tied.places {
                let name = place.name.clone();
                let grad = engine.on_stage(place.stage, move |stage| {
                    Ok(stage.accumulator().take_gradient(&name)?)
                })?;
                if sum.is_none() {
                    first = place.stage;
                }
                sum = match (sum, grad) {
                    (None, grad) => grad,
                    (sum, None) => sum,
                    (Some(sum), Some(grad)) => {
                        let grad = grad.f_to_device(sum.device())?;
                        let sum = tch::no_grad(|| sum.f_add(&grad))?;
                        engine.made(&sum, first)?;
                        Some(sum)
                    }
                };
            }
            if let Some(sum) = sum {
                let name = tied.owner.name.clone();
                engine.on_stage(tied.owner.stage, move |stage| {
                    stage.accumulator().set_gradient(&name, &sum)
                })?;
            }
        }
        Ok(())
    }

    /// Has places of use get gradients exactly where their owner does.
    pub(super) fn follow(&self, engine: &mut Stages) -> Result<(), Error> {
        for tied in self.0.iter() {
            let trainable = handle(&tied.owner, engine)?.requires_grad();
            for place in tied.places.iter().filter(|place| **place != tied.owner) {
                let name = place.name.clone();
                engine.on_stage(place.stage, move |stage| {
                    stage.accumulator().set_tied_trainable(&name, trainable)
                })?;
            }
        }
        Ok(())
    }

    /// Brings places of use on other devices up to date after their owner changed.
    pub(super) fn refresh(&self, engine: &mut Stages) -> Result<(), Error> {
        for tied in self.0.iter() {
            let owner = handle(&tied.owner, engine)?;
            for place in tied.places.iter().filter(|place| **place != tied.owner) {
                let (name, owner) = (place.name.clone(), owner.shallow_clone());
                engine.on_stage(place.stage, move |stage| {
                    stage.accumulator().refresh_tied(&name, &owner)
                })?;
            }
        }
        Ok(())
    }
}

fn adopt(tied: &Tied, engine: &mut Stages) -> Result<(), Error> {
    let owner = handle(&tied.owner, engine)?;
    for place in tied.places.iter().filter(|place| **place != tied.owner) {
        let copy = handle(place, engine)?;
        if copy.size() != owner.size() || copy.kind() != owner.kind() {
            return Err(wrong(format!(
                "`{}` of shape {:?} ({:?}) cannot be tied to `{}` of shape {:?} ({:?})",
                place.name,
                copy.size(),
                copy.kind(),
                tied.owner.name,
                owner.size(),
                owner.kind()
            )));
        }
        let (name, owner) = (place.name.clone(), owner.shallow_clone());
        engine.on_stage(place.stage, move |stage| {
            stage.accumulator().tie(&name, &owner)
        })?;
    }
    Ok(())
}

fn handle(place: &ParameterUse, engine: &mut Stages) -> Result<tch::Tensor, Error> {
    let name = place.name.clone();
    let found = engine.on_stage(place.stage, move |stage| {
        Ok(stage.accumulator().find(&name))
    })?;
    found.ok_or_else(|| {
        wrong(format!(
            "the model has no parameter `{}` that could be tied",
            place.name
        ))
    })
}

/// The stage that has the layer whose parameter `name` is.
fn place(model: &Sequential, partition: &Partition, name: &str) -> Result<ParameterUse, Error> {
    let layer = layer_of(model, name).ok_or_else(|| {
        wrong(format!(
            "`{name}` is to be tied, but the model has no such layer"
        ))
    })?;
    Ok(ParameterUse {
        stage: partition.stage_of(LayerId(layer)),
        name: name.to_owned(),
    })
}

/// The layer of a parameter: the longest name that `name` begins with.
fn layer_of(model: &Sequential, name: &str) -> Option<usize> {
    let owns = |layer: &str| {
        name.strip_prefix(layer)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    let owners = model.names().enumerate().filter(|(_, layer)| owns(layer));
    owners
        .max_by_key(|(_, layer)| layer.len())
        .map(|(number, _)| number)
}

fn wrong(why: String) -> Error {
    SettingsError::invalid(Setting::Ties, why).into()
}
