//! Models of the zoo with all sizes chosen.

use std::sync::Arc;

use super::{Entry, Fill, Instance, Settings, SharedLoss, Synthetic, ZooError};
use crate::exported::{ExportedError, ExportedModel};
use crate::loss_kind::{LossKind, NamedLoss};
use gpipe_torch::{RandomScope, Sequential, TorchError, Values};

/// A named model with all its sizes: everything needed for training or profiling it.
///
/// Making one is cheap: nothing is built, and no memory for weights is allocated.
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

    /// Returns the requested name: of an entry or of a preset.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of model.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Returns all sizes.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the model: names and builders of its layers, not built yet.
    pub fn build(&self) -> Sequential {
        self.instance.model.clone()
    }

    /// Describes the inputs of one sample.
    pub fn inputs(&self) -> &[Synthetic] {
        &self.instance.inputs
    }

    /// Describes the targets of one sample.
    pub fn targets(&self) -> &[Synthetic] {
        &self.instance.targets
    }

    /// Makes up inputs and targets of `batch` samples on the CPU.
    ///
    /// *Determinism*: the same for the same sizes, batch and seed. No other generator is used or
    /// changed.
    ///
    /// # Errors
    /// libtorch fails, for example for lack of memory.
    pub fn sample(&self, batch: usize, seed: u64) -> Result<(Values, Values), TorchError> {
        let _seeded = RandomScope::open(seed)?;
        let draw = |all: &[Synthetic]| -> Result<Values, TorchError> {
            all.iter()
                .map(|one| one.draw(batch).map(Some))
                .collect::<Result<_, _>>()
        };
        Ok((draw(self.inputs())?, draw(self.targets())?))
    }

    /// Returns the model's own samples ([`Entry::data`]), with or without a path, if it has any.
    ///
    /// # Errors
    /// Those of the entry's function.
    pub fn own_samples(
        &self,
        path: Option<&std::path::Path>,
        options: &gpipe_data::SampleOptions,
    ) -> anyhow::Result<Option<gpipe_data::Samples>> {
        self.entry.own_samples(&self.settings, path, options)
    }

    /// Returns the loss function.
    pub fn loss(&self) -> SharedLoss {
        self.instance.loss.clone()
    }

    /// Returns the loss function, if it has a name: that of an exported program, or of
    /// [`ModelSpec::judged_by`].
    pub fn named_loss(&self) -> Option<NamedLoss> {
        self.instance.named
    }

    /// Returns the alternative losses.
    pub fn other_losses(&self) -> impl Iterator<Item = LossKind> {
        self.instance.others.iter().map(|(kind, _)| *kind)
    }

    /// Returns the model with another loss, and its targets. `None` if the model does not [offer
    /// it](Instance::or_judged_by).
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

    /// Returns the model with a loss that ignores targets of this number: its named loss, or its
    /// alternative loss of classes.
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

    /// Whether its targets are classes by default.
    pub fn learns_classes(&self) -> bool {
        matches!(self.targets(), [target] if matches!(target.fill(), Fill::Classes(_)))
    }

    /// Returns the model with the classes in the other possible dimension of its output, if there is
    /// one.
    pub fn turned(&self) -> Option<Self> {
        let loss = self.named_loss()?;
        let turned = self.exported()?.turned();
        let turned = turned.filter(|_| loss.kind() == LossKind::CrossEntropy)?;
        turned.spec(Some(loss)).ok()
    }

    /// Returns the model for samples of these shapes, one for each input, if it is a program with
    /// dynamic sizes: see [`ExportedModel::resized`].
    pub fn resized(&self, items: &[&[i64]]) -> Result<Self, ExportedError> {
        match self.exported() {
            Some(model) => model.resized(items)?.spec(self.named_loss()),
            None => Ok(self.clone()),
        }
    }

    /// Whether each position of a sequence sees later ones.
    pub fn sees_later_tokens(&self) -> bool {
        self.instance.sees_later_tokens
    }

    /// Whether tokens may be given one after another
    /// ([`Pipeline::decode`](gpipe_torch::Pipeline::decode)): its layers cache what they need of
    /// earlier ones.
    pub fn caches(&self) -> bool {
        self.instance.caches
    }

    /// Returns the file of an exported program.
    pub fn exported(&self) -> Option<&ExportedModel> {
        self.instance.exported.as_ref()
    }

    /// Returns the number of parameters, tied ones counted once, without allocating them.
    ///
    /// # Errors
    /// A layer cannot be built.
    pub fn parameters(&self) -> anyhow::Result<u64> {
        self.instance.model.parameter_count()
    }
}
