//! Data of a single copy of a stage: with [`Sums::AtOwners`], the gradients and optimizer states of
//! the parameters that it owns.

use gpipe_partitioner::StageId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use super::{CopyId, Stages};
use crate::error::Error;
use crate::{Sums, TorchError, TorchStage};

impl Stages {
    /// Returns whether all copies of a stage have all of its gradients between steps.
    pub(in crate::pipeline) fn all_have_gradients(&self) -> bool {
        self.sums == Sums::InAll
    }

    /// Returns whether each replica trains alone, on its own micro-batches.
    pub(in crate::pipeline) fn train_alone(&self) -> bool {
        self.sums == Sums::Alone
    }

    /// Runs a job as [`Stages::on_each`] on the copies that together have each gradient once, by
    /// stage, then by replica: the first copy of each stage if all have all gradients, otherwise
    /// all copies.
    pub(in crate::pipeline) fn on_owners<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<(CopyId, R)>, Error> {
        let first = self.all_have_gradients();
        let done = self.on_each(move |id, stage| {
            let replica = stage.replica();
            if first && replica > 0 {
                return Ok(None);
            }
            let copy = CopyId { stage: id, replica };
            Ok(Some((copy, job(id, stage)?)))
        })?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Does the same in all processes and joins the results: for each stage the items of all its
    /// copies, sorted by their parameter's index.
    pub(in crate::pipeline) fn of_owners<T>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<Vec<(usize, T)>>
        + Send
        + Sync
        + 'static,
    ) -> Result<Vec<T>, Error>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let here = self.of_owners_here(job)?;
        Ok(of_all_in_order(self.share(here)?))
    }

    /// Returns this process's items, by stage; [`of_all_in_order`] joins them with those of the
    /// others.
    pub(in crate::pipeline) fn of_owners_here<T: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<Vec<(usize, T)>>
        + Send
        + Sync
        + 'static,
    ) -> Result<Vec<OfStage<T>>, Error> {
        let here = self.on_owners(job)?.into_iter();
        let here = here.map(|(copy, items)| (copy.stage.index(), items));
        Ok(here.collect())
    }
}

/// Items of a stage's copy, with parameter indices.
pub(in crate::pipeline) type OfStage<T> = (usize, Vec<(usize, T)>);

/// Sorts the items of all processes by stage and parameter.
pub(in crate::pipeline) fn of_all_in_order<T>(all: Vec<Vec<OfStage<T>>>) -> Vec<T> {
    let placed = |(stage, items): OfStage<T>| {
        let items = items.into_iter();
        items.map(move |(place, item)| ((stage, place), item))
    };
    let mut all: Vec<_> = all.into_iter().flatten().flat_map(placed).collect();
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, item)| item).collect()
}

/// Per-parameter numbers of several copies of stages, with parameter indices.
pub(in crate::pipeline) type Parts<T> = Vec<(CopyId, (Vec<(usize, T)>, Tensor))>;

/// Joins the numbers of all copies into one tensor in the order of stages and parameters, on the
/// device of the first, with their items. The host does not wait for asynchronous devices.
pub(in crate::pipeline) fn in_model_order<T>(
    parts: Parts<T>,
) -> Result<(Vec<T>, Tensor), TorchError> {
    let Some((_, (_, first))) = parts.first() else {
        return Err(TorchError::new("there are no stages"));
    };
    let device = first.device();
    let whole = parts.windows(2).all(|two| two[0].0.stage != two[1].0.stage);
    let mut pieces = Vec::new();
    let mut items = Vec::new();
    for (CopyId { stage, .. }, (own, numbers)) in parts {
        let here = numbers.f_to_device(device)?;
        if whole {
            items.extend(own.into_iter().map(|(place, item)| ((stage, place), item)));
            pieces.push(here);
            continue;
        }
        for (at, (place, item)) in (0..).zip(own) {
            items.push(((stage, place), item));
            pieces.push(here.f_narrow(0, at, 1)?);
        }
    }
    if !whole {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|at| items[*at].0);
        pieces = order.iter().map(|at| pieces[*at].shallow_clone()).collect();
        items.sort_by_key(|(place, _)| *place);
        if pieces.is_empty() {
            pieces.push(first_of_none(device)?);
        }
    }
    let items = items.into_iter().map(|(_, item)| item).collect();
    Ok((items, Tensor::f_cat(&pieces, 0)?))
}

fn first_of_none(device: tch::Device) -> Result<Tensor, TorchError> {
    Ok(Tensor::f_zeros([0], (tch::Kind::Double, device))?)
}
