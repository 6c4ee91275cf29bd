//! A model of the zoo with all its sizes chosen.

use std::sync::Arc;

use super::{Entry, Fill, Instance, Settings, SharedLoss, Synthetic, ZooError};
use crate::exported::{ExportedError, ExportedModel};
use crate::loss_kind::{LossKind, NamedLoss};
use gpipe_torch::{RandomScope, Sequential, TorchError, Values};

/// A model by name with all its sizes: everything that training or profiling it needs.
///
/// Making one is cheap: nothing is built, no memory for weights is taken.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    entry: Arc<Entry>,
    name: String,
    settings: Settings,
    instance: Instance,
}

impl ModelSpec {
    pub(super) fn new<I>(entry: Arc<Entry>, name: &str, settings: I) -> Result<Self, ZooError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let mut values = Settings::defaults(entry.sizes());
        let preset = entry.presets().iter().find(|preset| preset.name() == name);
        for (size, value) in preset.into_iter().flat_map(|preset| preset.values()) {
            values.put(size, value);
        }
        for setting in settings {
            values.set(name, entry.sizes(), setting.as_ref())?;
        }
        let instance = entry.make(&values).map_err(|source| ZooError::Sizes {
            model: name.to_owned(),
            source,
        })?;
        Ok(Self {
            entry,
            name: name.to_owned(),
            settings: values,
            instance,
        })
    }

    /// The name it was asked for by: of an entry, or of a preset.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of model.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// All sizes.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The model: names and builders of its layers, which are not built yet.
    pub fn build(&self) -> Sequential {
        self.instance.model.clone()
    }

    /// What one sample's inputs are.
    pub fn inputs(&self) -> &[Synthetic] {
        &self.instance.inputs
    }

    /// What one sample's targets are.
    pub fn targets(&self) -> &[Synthetic] {
        &self.instance.targets
    }

    /// Made-up inputs and targets of `batch` samples on the CPU.
    ///
    /// *Determinism*: the same for the same sizes, batch and seed. No other generator
    /// is used or touched.
    ///
    /// # Errors
    /// libtorch refuses, for lack of memory say.
    pub fn sample(&self, batch: usize, seed: u64) -> Result<(Values, Values), TorchError> {
        let _seeded = RandomScope::open(seed)?;
        let draw = |all: &[Synthetic]| -> Result<Values, TorchError> {
            all.iter()
                .map(|one| one.draw(batch).map(Some))
                .collect::<Result<_, _>>()
        };
        Ok((draw(self.inputs())?, draw(self.targets())?))
    }

    /// The samples that the model brings itself ([`Entry::data`]), where it does so: of a path, or
    /// without one.
    ///
    /// # Errors
    /// Those of the entry's own function.
    pub fn own_samples(
        &self,
        path: Option<&std::path::Path>,
        options: &gpipe_data::SampleOptions,
    ) -> anyhow::Result<Option<gpipe_data::Samples>> {
        self.entry.own_samples(&self.settings, path, options)
    }

    /// The loss function.
    pub fn loss(&self) -> SharedLoss {
        self.instance.loss.clone()
    }

    /// The loss function, where it is one that has a name: that of a program that PyTorch
    /// exported, or of [`ModelSpec::judged_by`].
    pub fn named_loss(&self) -> Option<NamedLoss> {
        self.instance.named
    }

    /// The losses that the model may be judged by besides its own.
    pub fn other_losses(&self) -> impl Iterator<Item = LossKind> {
        self.instance.others.iter().map(|(kind, _)| *kind)
    }

    /// The same model, judged by another loss than its own, with the targets of that one. None
    /// where the model does not [name it](Instance::or_judged_by), or cannot be judged by it.
    ///
    /// ```
    /// use gpipe::models::LossKind;
    /// use gpipe::models::zoo::{Fill, Zoo};
    ///
    /// let mlp = Zoo::builtin().spec("mlp", ["outputs=2"])?;
    /// let mlp = mlp.judged_by(LossKind::Mse.into()).expect("it learns numbers, too");
    /// assert_eq!(mlp.targets()[0].shape(), [2]);
    /// assert_eq!(mlp.targets()[0].fill(), Fill::Normal);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn judged_by(&self, loss: NamedLoss) -> Option<Self> {
        if let Some(model) = self.exported() {
            return model.spec(Some(loss)).ok();
        }
        Some(Self {
            instance: self.instance.by(loss)?,
            ..self.clone()
        })
    }

    /// The same, where targets of this number count nothing to its loss: that which has a name, or that of
    /// classes which it may be judged by.
    #[must_use]
    pub fn ignoring(&self, index: i64) -> Self {
        let ignoring = |loss: NamedLoss| loss.ignore_index(index);
        if let Some(loss) = self.named_loss() {
            let mut other = self.clone();
            other.instance = self.instance.clone().named(ignoring(loss));
            return other;
        }
        let loss = self.learns_classes().then(|| LossKind::CrossEntropy.into());
        let judged = loss.and_then(|loss| self.judged_by(ignoring(loss)));
        judged.unwrap_or_else(|| self.clone())
    }

    /// Whether its targets are classes, which nobody has to say of it.
    pub fn learns_classes(&self) -> bool {
        matches!(self.targets(), [target] if matches!(target.fill(), Fill::Classes(_)))
    }

    /// The same, where its output may have the classes in another dimension than the usual one.
    pub fn turned(&self) -> Option<Self> {
        let loss = self.named_loss()?;
        let turned = self.exported()?.turned();
        let turned = turned.filter(|_| loss.kind() == LossKind::CrossEntropy)?;
        turned.spec(Some(loss)).ok()
    }

    /// The same for samples of these shapes, one for each input, where it is a program with dynamic
    /// sizes: see [`ExportedModel::resized`].
    pub fn resized(&self, items: &[&[i64]]) -> Result<Self, ExportedError> {
        match self.exported() {
            Some(model) => model.resized(items)?.spec(self.named_loss()),
            None => Ok(self.clone()),
        }
    }

    /// Whether each position of a sequence sees those after it.
    pub fn sees_later_tokens(&self) -> bool {
        self.instance.sees_later_tokens
    }

    /// Whether tokens may come one after the other ([`Pipeline::decode`](gpipe_torch::Pipeline::decode)):
    /// its layers keep what they need of those before.
    pub fn caches(&self) -> bool {
        self.instance.caches
    }

    /// The file that it is from, where it is a program that PyTorch exported.
    pub fn exported(&self) -> Option<&ExportedModel> {
        self.instance.exported.as_ref()
    }

    /// How many parameters it has, tied ones counted once; takes no memory for them.
    ///
    /// # Errors
    /// A layer cannot be built.
    pub fn parameters(&self) -> anyhow::Result<u64> {
        self.instance.model.parameter_count()
    }
}
