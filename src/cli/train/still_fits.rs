//! Values derived from settings, and checks of which settings still fit when others change.

use super::recipe::Recipe;
use crate::feed::samples::DataOptions;
use crate::model::Chosen;
use crate::model::exported::{AskedLoss, is_exported};
use gpipe_models::zoo::Zoo;
use gpipe_torch::StageCount;

impl Recipe {
    /// The default recipe.
    pub(crate) fn defaults() -> Self {
        Self::table(&Zoo::new()).0
    }

    /// The requested loss.
    pub(super) fn asked_loss(&self) -> AskedLoss {
        AskedLoss {
            kind: self.loss,
            ignore_index: self.ignore_index,
        }
    }

    /// Options of the data, other than its path.
    pub(super) fn data_options(&self) -> DataOptions {
        DataOptions {
            target: self.target.clone(),
            drop_columns: self.drop_columns.clone(),
            missing: self.missing,
            held_out: self.held_out,
            normalise: self.normalise.clone(),
            resize: self.resize,
            augment: self.augment,
            shuffle: self.shuffle,
            seed: self.seed,
            workers: self.workers,
            prefetch: self.prefetch,
            skip_bad: self.skip_bad,
            kept: None,
        }
    }

    /// Number of devices of all processes.
    pub(super) fn all_devices(&self) -> usize {
        self.devices.len() * self.processes.max(1)
    }

    /// Stages per device.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
            .unwrap_or_else(|| self.schedule.default_chunks())
    }

    /// Number of stages, and its factors.
    pub(super) fn stage_count(&self) -> StageCount {
        let devices = self.all_devices() / self.replicas.max(1);
        let by = self.chunks.is_none().then_some(self.schedule);
        StageCount::new(devices, self.chunks(), by)
    }

    /// Total number of stages.
    pub(super) fn stages(&self) -> usize {
        self.stage_count().stages()
    }
}

/// Whether the model is unchanged: a resumed run's exported program may have moved.
pub(super) fn same_program(before: &Recipe, after: &Recipe) -> bool {
    before.model == after.model || (after.resuming && is_exported(&after.model))
}

/// Whether the balance is for the same number of stages and the same model, or matches the stages and
/// layers that there are.
pub(super) fn balance_fits(zoo: &Zoo, before: &Recipe, after: &Recipe) -> bool {
    let same_model = (&before.model, &before.sizes) == (&after.model, &after.sizes);
    if before.stages() == after.stages() && same_model {
        return true;
    }
    after.balance.as_ref().is_some_and(|balance| {
        let add = |sum: usize, layers: &usize| sum.saturating_add(*layers);
        let sum = balance.iter().fold(0, add);
        balance.len() == after.stages() && layers(zoo, after).is_none_or(|own| own == sum)
    })
}

/// Whether there are no more stages than layers, if chunks were chosen for other devices.
pub(super) fn chunks_fit(zoo: &Zoo, before: &Recipe, after: &Recipe) -> bool {
    let same = before.stages() == after.stages();
    let fits = || layers(zoo, after).is_none_or(|own| after.stages() <= own);
    before.schedule == after.schedule && (same || fits())
}

/// Whether replicas chosen for other devices divide the present ones. With local steps, replicas have
/// their own weights.
pub(super) fn replicas_fit(before: &Recipe, after: &Recipe) -> bool {
    let fits = after.all_devices().is_multiple_of(after.replicas.max(1));
    before.devices == after.devices || fits || after.local_steps.is_some()
}

/// Number of layers, if the model is known and valid.
fn layers(zoo: &Zoo, recipe: &Recipe) -> Option<usize> {
    let known = zoo.names().any(|name| name == recipe.model) || is_exported(&recipe.model);
    let chosen =
        known.then(|| Chosen::new(zoo, &recipe.model, &recipe.sizes, AskedLoss::default()));
    Some(chosen?.ok()?.layers())
}
