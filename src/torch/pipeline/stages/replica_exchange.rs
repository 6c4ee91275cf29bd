//! Exchange between the copies of a stage between steps.

use gpipe_partitioner::StageId;
use parking_lot::Mutex;

use super::Stages;
use crate::error::Error;
use crate::pipeline::ranks::{CopyId, Given};
use crate::{OuterStep, Sums, TorchStage, Values};

impl Stages {
    /// Sends the parameters that each copy updated to the other copies of its stage, which adopt
    /// them. Idempotent.
    pub(super) fn give_updated(&mut self) -> Result<(), Error> {
        if self.sums != Sums::AtOwners {
            return Ok(());
        }
        self.swap(
            |stage, others| {
                let own = stage.updated();
                Ok(others.iter().map(|_| own.shallow_clone()).collect())
            },
            |stage, all| {
                let mut all = all.into_iter();
                all.try_for_each(|(owner, updated)| stage.follow(owner, &updated))
            },
        )
    }

    /// Computes the outer step of a round; nothing changes yet.
    pub(super) fn bring_together(&mut self, outer: OuterStep) -> Result<(), Error> {
        self.swap(TorchStage::give_together, move |stage, all| {
            stage.bring_together(outer, all)
        })
    }

    /// Sends the result of the outer step to all copies. Idempotent.
    pub(super) fn go_on_together(&mut self) -> Result<(), Error> {
        self.swap(
            |stage, others| {
                let own = stage.brought_together();
                Ok(others.iter().map(|_| own.shallow_clone()).collect())
            },
            |stage, all| {
                let mut all = all.into_iter();
                all.try_for_each(|(owner, new)| stage.go_on_together(owner, &new))
            },
        )
    }

    /// Makes each copy of a stage `give` a value for each of the other replicas, in order, and
    /// `take` the values that they gave it. All processes do this.
    ///
    /// Given values must not change until all have taken them.
    ///
    /// # Errors
    /// A copy failed, or a process is lost.
    pub(super) fn swap(
        &mut self,
        give: impl Fn(&mut TorchStage, &[usize]) -> anyhow::Result<Vec<Values>> + Send + Sync + 'static,
        take: impl Fn(&mut TorchStage, Vec<(usize, Values)>) -> anyhow::Result<()>
        + Send
        + Sync
        + 'static,
    ) -> Result<(), Error> {
        let replicas = self.replicas();
        let given = self.on_each(move |stage, own| {
            let from = CopyId {
                stage,
                replica: own.replica(),
            };
            let others: Vec<usize> = others(from.replica, replicas).collect();
            let values = give(own, &others)?;
            let to = others.into_iter().map(|replica| CopyId { stage, replica });
            Ok(to
                .zip(values)
                .map(|(to, values)| ((from, to), values))
                .collect::<Vec<_>>())
        })?;
        let mut given: Given = given.into_iter().flatten().collect();
        if let Some(ranks) = &self.ranks {
            let taken = ranks.swap(&given)?;
            given.extend(taken);
        }
        let given = Mutex::new(given);
        self.on_each(move |stage: StageId, own| {
            let to = CopyId {
                stage,
                replica: own.replica(),
            };
            let all = others(to.replica, replicas).map(|replica| {
                let from = CopyId { stage, replica };
                let values = given.lock().remove(&(from, to));
                (replica, values.unwrap_or_default())
            });
            take(own, all.collect())
        })?;
        Ok(())
    }
}

fn others(own: usize, replicas: usize) -> impl Iterator<Item = usize> {
    (0..replicas).filter(move |other| *other != own)
}
