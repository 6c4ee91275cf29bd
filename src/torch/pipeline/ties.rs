//! Tied parameters, with several places of use: the same in each replica, and summed within each.

use std::sync::Arc;

use gpipe_partitioner::{LayerId, Partition, StageId};
use tch::Tensor;

use super::ranks::CopyId;
use super::stages::Stages;
use crate::error::{Error, Setting, SettingsError};
use crate::{Sequential, TorchStage};

/// A parameter under one of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ParameterUse {
    stage: StageId,
    name: String,
}

/// A parameter of the user, with all its places of use in layer order.
#[derive(Debug, Clone)]
struct Tied {
    owner: ParameterUse,
    places: Vec<ParameterUse>,
    /// For each place, the replica that has its gradient, if not all have it.
    replicas: Option<Vec<usize>>,
}

/// All tied parameters of a model.
#[doc(alias = "tied weights")]
#[doc(alias = "all-reduce")]
#[derive(Debug, Clone, Default)]
pub(super) struct Ties(Arc<Vec<Tied>>);

impl ParameterUse {
    /// Returns the copy of its stage in a replica.
    fn of(&self, replica: usize) -> CopyId {
        let stage = self.stage;
        CopyId { stage, replica }
    }
}

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
                    replicas: None,
                }),
            }
        }
        let order = |place: &ParameterUse| layer_of(model, &place.name);
        for tied in &mut all {
            tied.places.sort_by_key(order);
            tied.adopt(engine)?;
        }
        if !engine.all_have_gradients() && !engine.train_alone() {
            // A stage assigns owners when it knows all tied parameters.
            for tied in &mut all {
                let replicas = tied.places.iter().map(|place| owner_of(place, engine));
                tied.replicas = Some(replicas.collect::<Result<_, _>>()?);
            }
        }
        Ok(Self(Arc::new(all)))
    }

    /// Returns whether the model has no tied parameters.
    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds up the last step's gradients at the places of use, in order, and leaves the sum with
    /// the owner.
    pub(super) fn sum(&self, engine: &mut Stages) -> Result<(), Error> {
        for tied in self.0.iter() {
            if let Some(replicas) = &tied.replicas {
                tied.sum(replicas, engine)?;
                continue;
            }
            for replica in 0..engine.replicas() {
                tied.sum(&vec![replica; tied.places.len()], engine)?;
            }
        }
        Ok(())
    }

    /// Makes places of use require gradients exactly if their owner does.
    pub(super) fn follow(&self, engine: &mut Stages) -> Result<(), Error> {
        for tied in self.0.iter() {
            let owner = handle(&tied.owner, 0, engine)?;
            let known = engine.share(owner.map(|owner| owner.requires_grad()))?;
            let trainable = known.into_iter().flatten().next().unwrap_or_default();
            for (place, replica) in tied.copies(engine.replicas()) {
                let at = place.of(replica);
                if !engine.is_here(at) {
                    continue;
                }
                let name = place.name.clone();
                engine.on_copy(at, move |stage| {
                    stage.accumulator().set_tied_trainable(&name, trainable)
                })?;
            }
        }
        Ok(())
    }

    /// Copies the owner's new values to places of use on other devices.
    pub(super) fn refresh(&self, engine: &mut Stages) -> Result<(), Error> {
        for tied in self.0.iter() {
            for (place, replica) in tied.copies(engine.replicas()) {
                let (at, owner) = (place.of(replica), handle(&tied.owner, replica, engine)?);
                if let Some(owner) = engine.carry(owner, tied.owner.of(replica), at)? {
                    let name = place.name.clone();
                    engine.on_copy(at, move |stage| {
                        stage.accumulator().refresh_tied(&name, &owner)
                    })?;
                }
            }
        }
        Ok(())
    }
}

impl Tied {
    /// Returns the places of use other than the owner's, in each of `replicas` replicas.
    fn copies(&self, replicas: usize) -> impl Iterator<Item = (&ParameterUse, usize)> {
        let copies = self.places.iter().filter(|place| **place != self.owner);
        copies.flat_map(move |place| (0..replicas).map(move |replica| (place, replica)))
    }

    /// See [`Ties::sum`]: sums the places in these replicas.
    fn sum(&self, replicas: &[usize], engine: &mut Stages) -> Result<(), Error> {
        let mut sum: Option<Tensor> = None;
        let places = || self.places.iter().zip(replicas);
        let own = places().find(|(place, _)| **place == self.owner);
        let owner = self.owner.of(own.map_or(0, |(_, replica)| *replica));
        for (place, &replica) in places() {
            let grad = take_gradient(place, replica, engine)?;
            // Gradients are added up on the owner's device.
            let grad = engine.carry(grad, place.of(replica), owner)?;
            sum = match (sum, grad) {
                (None, grad) => grad,
                (sum, None) => sum,
                (Some(sum), Some(grad)) => {
                    let grad = grad.f_to_device(sum.device())?;
                    Some(tch::no_grad(|| sum.f_add(&grad))?)
                }
            };
        }
        if let Some(sum) = sum {
            let name = self.owner.name.clone();
            engine.on_copy(owner, move |stage| {
                stage.accumulator().set_gradient(&name, &sum)
            })?;
        }
        Ok(())
    }

    fn adopt(&self, engine: &mut Stages) -> Result<(), Error> {
        let (size, kind) = form(&self.owner, engine)?;
        for (place, replica) in self.copies(engine.replicas()) {
            let (own_size, own_kind) = form(place, engine)?;
            if (&own_size, &own_kind) != (&size, &kind) {
                return Err(wrong(format!(
                    "`{}` of shape {own_size:?} ({own_kind}) cannot be tied to `{}` of shape \
                     {size:?} ({kind})",
                    place.name, self.owner.name
                )));
            }
            let (at, owner) = (place.of(replica), handle(&self.owner, replica, engine)?);
            if let Some(owner) = engine.carry(owner, self.owner.of(replica), at)? {
                let name = place.name.clone();
                engine.on_copy(at, move |stage| stage.accumulator().tie(&name, &owner))?;
            }
        }
        Ok(())
    }
}

/// Returns the shape and kind of a parameter of any process.
fn form(place: &ParameterUse, engine: &mut Stages) -> Result<(Vec<i64>, String), Error> {
    let own = handle(place, 0, engine)?;
    let known = engine.share(own.map(|own| (own.size(), format!("{:?}", own.kind()))))?;
    known.into_iter().flatten().next().ok_or_else(|| {
        wrong(format!(
            "the model has no parameter `{}` that could be tied",
            place.name
        ))
    })
}

/// Returns the replica that has the gradient of a parameter or tied copy of any process.
fn owner_of(place: &ParameterUse, engine: &mut Stages) -> Result<usize, Error> {
    let own = there(place, 0, engine, |stage, name| Ok(stage.owner_of(name)))?;
    let known = engine.share(own)?;
    Ok(known.into_iter().flatten().next().unwrap_or_default())
}

/// Returns the parameter itself in a replica; `None` if it is not in this process.
fn handle(
    place: &ParameterUse,
    replica: usize,
    engine: &mut Stages,
) -> Result<Option<Tensor>, Error> {
    there(place, replica, engine, |stage, name| {
        Ok(stage.accumulator().find(name))
    })
}

/// Takes the last step's gradient at a place in a replica; `None` if it is not in this process.
fn take_gradient(
    place: &ParameterUse,
    replica: usize,
    engine: &mut Stages,
) -> Result<Option<Tensor>, Error> {
    there(place, replica, engine, |stage, name| {
        Ok(stage.accumulator().take_gradient(name)?)
    })
}

/// Runs a job on a place's stage in a replica; `None` if it is not in this process.
fn there<R: Send + 'static>(
    place: &ParameterUse,
    replica: usize,
    engine: &mut Stages,
    job: impl FnOnce(&mut TorchStage, &str) -> anyhow::Result<Option<R>> + Send + 'static,
) -> Result<Option<R>, Error> {
    let at = place.of(replica);
    if !engine.is_here(at) {
        return Ok(None);
    }
    let name = place.name.clone();
    engine.on_copy(at, move |stage| job(stage, &name))
}

/// Finds the stage of the layer that has the parameter `name`.
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

/// Finds the layer of a parameter: the one with the longest name that `name` begins with.
fn layer_of(model: &Sequential, name: &str) -> Option<usize> {
    let owners = model.builders().iter().enumerate();
    let owners = owners.filter_map(|(number, layer)| Some((number, layer.owns(name)?)));
    owners
        .max_by_key(|(_, length)| *length)
        .map(|(number, _)| number)
}

fn wrong(why: String) -> Error {
    SettingsError::invalid(Setting::Ties, why).into()
}
