//! Entries of the zoo: a kind of model, with its sizes, presets and constructor.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{Settings, SharedLoss, Size, Synthetic, ZooError};
use crate::exported::ExportedModel;
use crate::loss_kind::{LossKind, NamedLoss};
use gpipe_data::{SampleOptions, Samples};
use gpipe_torch::{LossFn, Sequential};

type Make = dyn Fn(&Settings) -> anyhow::Result<Instance> + Send + Sync;
type Data = dyn Fn(&Settings, Option<&Path>, &SampleOptions) -> anyhow::Result<Option<Samples>>
    + Send
    + Sync;

/// A model of given sizes, with its inputs and its loss.
#[derive(Debug, Clone)]
pub struct Instance {
    pub(super) model: Sequential,
    pub(super) inputs: Vec<Synthetic>,
    pub(super) targets: Vec<Synthetic>,
    pub(super) loss: SharedLoss,
    /// The loss, if it has a name.
    pub(super) named: Option<NamedLoss>,
    /// Alternative losses, with the targets of each.
    pub(super) others: Vec<(LossKind, Synthetic)>,
    pub(super) sees_later_tokens: bool,
    pub(super) caches: bool,
    pub(super) exported: Option<ExportedModel>,
}

impl Instance {
    /// Makes a model of one input and one target.
    pub fn new(model: Sequential, input: Synthetic, target: Synthetic, loss: impl LossFn) -> Self {
        Self::of_several(model, vec![input], vec![target], loss)
    }

    /// Makes a model of any number of inputs and targets.
    pub fn of_several(
        model: Sequential,
        inputs: Vec<Synthetic>,
        targets: Vec<Synthetic>,
        loss: impl LossFn,
    ) -> Self {
        Self {
            model,
            inputs,
            targets,
            loss: SharedLoss::new(loss),
            named: None,
            others: Vec::new(),
            sees_later_tokens: false,
            caches: false,
            exported: None,
        }
    }

    /// Makes a model with a named loss.
    pub(crate) fn judged_by(
        model: Sequential,
        inputs: Vec<Synthetic>,
        targets: Vec<Synthetic>,
        loss: NamedLoss,
    ) -> Self {
        Self::of_several(model, inputs, targets, loss).named(loss)
    }

    /// Replaces the loss, for the same targets.
    pub(super) fn named(mut self, loss: NamedLoss) -> Self {
        self.named = Some(loss);
        self.loss = SharedLoss::new(loss);
        self
    }

    /// Adds an alternative loss of the first output, with its target: see
    /// [`ModelSpec::judged_by`](super::ModelSpec::judged_by), and `--loss` of the command.
    #[must_use]
    pub fn or_judged_by(mut self, loss: LossKind, target: Synthetic) -> Self {
        self.others.push((loss, target));
        self
    }

    /// Returns the model with one of its alternative losses.
    pub(super) fn by(&self, loss: NamedLoss) -> Option<Self> {
        let mut others = self.others.iter();
        let (_, target) = others.find(|(kind, _)| *kind == loss.kind())?;
        let mut other = self.clone().named(loss);
        other.targets = vec![target.clone()];
        Some(other)
    }

    /// Sets the file of an exported model.
    pub(crate) fn exported(mut self, model: ExportedModel) -> Self {
        self.exported = Some(model);
        self
    }

    /// Declares that each position of a sequence sees later ones, as in an encoder: the model is then
    /// not trained to predict the next token of a text, which it could copy.
    #[must_use]
    pub fn sees_later_tokens(mut self) -> Self {
        self.sees_later_tokens = true;
        self
    }

    /// Declares that the layers use [`Context::past`](gpipe_torch::Context::past): tokens may be given
    /// one after another ([`Pipeline::decode`](gpipe_torch::Pipeline::decode)), with the same outputs
    /// as all at once.
    #[doc(alias = "KV cache")]
    #[must_use]
    pub fn caches(mut self) -> Self {
        self.caches = true;
        self
    }
}

/// A named set of sizes, such as `gpt2-xl`.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    name: String,
    values: Vec<(String, f64)>,
}

impl Preset {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the sizes that differ from the defaults.
    pub fn values(&self) -> impl ExactSizeIterator<Item = (&str, f64)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
    }
}

/// A named kind of model.
///
/// ```
/// use gpipe::models::zoo::{Entry, Instance, Synthetic, Zoo, class_cross_entropy};
/// use gpipe::{Sequential, tch::nn};
///
/// let mut zoo = Zoo::builtin();
/// zoo.add(
///     Entry::new("two-linear", |sizes| {
///         let width = sizes.count("width");
///         let model = Sequential::new()
///             .layer("a", move |p| nn::linear(p, 4, width, Default::default()))
///             .layer("b", move |p| nn::linear(p, width, 2, Default::default()));
///         let (x, y) = (Synthetic::normal([4]), Synthetic::classes([], 2));
///         Ok(Instance::new(model, x, y, class_cross_entropy))
///     })
///     .about("two linear layers")
///     .count("width", 8, "features between them"),
/// )?;
/// assert_eq!(zoo.spec("two-linear", ["width=3"])?.parameters()?, 4 * 3 + 3 + 3 * 2 + 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Entry {
    name: String,
    about: String,
    source: String,
    sizes: Vec<Size>,
    presets: Vec<Preset>,
    make: Arc<Make>,
    data: Option<Arc<Data>>,
}

impl Entry {
    /// Makes an entry called `name`; `make` builds the model from its sizes.
    pub fn new<F>(name: &str, make: F) -> Self
    where
        F: Fn(&Settings) -> anyhow::Result<Instance> + Send + Sync + 'static,
    {
        Self {
            name: name.to_owned(),
            about: String::new(),
            source: String::new(),
            sizes: Vec::new(),
            presets: Vec::new(),
            make: Arc::new(make),
            data: None,
        }
    }

    /// Sets a short description.
    #[must_use]
    pub fn about(mut self, about: &str) -> Self {
        about.clone_into(&mut self.about);
        self
    }

    /// Sets the source of the architecture.
    #[must_use]
    pub fn source(mut self, source: &str) -> Self {
        source.clone_into(&mut self.source);
        self
    }

    /// Adds a size that is an integer from 1.
    #[must_use]
    pub fn count(mut self, name: &str, default: i64, about: &str) -> Self {
        self.sizes.push(Size::count(name, default, about));
        self
    }

    /// Adds a size that is a number of layers: an integer from 1 to 4096.
    #[must_use]
    pub fn layers(mut self, name: &str, default: i64, about: &str) -> Self {
        self.sizes.push(Size::layers(name, default, about));
        self
    }

    /// Adds a size that is a probability below 1.
    #[must_use]
    pub fn probability(mut self, name: &str, default: f64, about: &str) -> Self {
        self.sizes.push(Size::probability(name, default, about));
        self
    }

    /// Adds a size that is an integer from 1, or 0, the default, for none.
    #[must_use]
    pub fn optional_count(mut self, name: &str, about: &str) -> Self {
        self.sizes.push(Size::optional_count(name, about));
        self
    }

    /// Adds a size that is a positive number.
    #[must_use]
    pub fn positive(mut self, name: &str, default: f64, about: &str) -> Self {
        self.sizes.push(Size::positive(name, default, about));
        self
    }

    /// Adds a switch that is on (1) or off (0).
    #[must_use]
    pub fn switch(mut self, name: &str, default: bool, about: &str) -> Self {
        self.sizes.push(Size::switch(name, default, about));
        self
    }

    /// Adds a preset of sizes; others keep their defaults.
    ///
    /// # Panics
    /// A size was not added before.
    #[must_use]
    pub fn preset(mut self, name: &str, values: &[(&str, f64)]) -> Self {
        for (size, _) in values {
            let known = self.sizes.iter().any(|own| own.name() == *size);
            assert!(known, "preset `{name}`: there is no size `{size}`");
        }
        self.presets.push(Preset {
            name: name.to_owned(),
            values: values
                .iter()
                .map(|&(name, value)| (name.to_owned(), value))
                .collect(),
        });
        self
    }

    /// Sets the model's own data source, for the command: `data` is given the sizes, the path of
    /// `--data` if present, and the sample options, for [`Samples::of`]. If it returns `None`, the path
    /// is read as for any model, or the data is made up.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made, SampleOptions, Samples};
    /// use gpipe::models::zoo::{Entry, Settings};
    /// use gpipe::tch::Tensor;
    ///
    /// # let make = |_: &Settings| anyhow::bail!("never made");
    /// let entry = Entry::new("adder", make).data(|_, path, options: &SampleOptions| {
    ///     if path.is_some() {
    ///         return Ok(None);
    ///     }
    ///     let item = |number: usize| {
    ///         let (a, b) = (number as f32 / 7.0, number as f32 / 3.0);
    ///         Ok((Tensor::from_slice(&[a, b]), Tensor::from_slice(&[a + b])))
    ///     };
    ///     let all = Dataset::new(Made::new(1000, item));
    ///     Ok(Some(Samples::of(all, None::<Made<fn(usize) -> anyhow::Result<_>>>, options)?))
    /// });
    /// ```
    #[must_use]
    pub fn data<F>(mut self, data: F) -> Self
    where
        F: Fn(&Settings, Option<&Path>, &SampleOptions) -> anyhow::Result<Option<Samples>>
            + Send
            + Sync
            + 'static,
    {
        self.data = Some(Arc::new(data));
        self
    }

    /// Returns the model's own samples, if any.
    pub(super) fn own_samples(
        &self,
        settings: &Settings,
        path: Option<&Path>,
        options: &SampleOptions,
    ) -> anyhow::Result<Option<Samples>> {
        match &self.data {
            Some(data) => data(settings, path, options),
            None => Ok(None),
        }
    }

    /// Returns the name of the model with default sizes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the short description.
    pub fn description(&self) -> &str {
        &self.about
    }

    /// Returns the source of the architecture.
    pub fn origin(&self) -> &str {
        &self.source
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> &[Size] {
        &self.sizes
    }

    /// Returns the presets.
    pub fn presets(&self) -> &[Preset] {
        &self.presets
    }

    /// Returns the names of the entry and its presets.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let presets = self.presets.iter().map(Preset::name);
        std::iter::once(self.name()).chain(presets)
    }

    /// Checks that each size's name is valid before a `=` and, with dashes, as a flag.
    pub(super) fn check_size_names(&self) -> Result<(), ZooError> {
        let bad = |size: &Size, rule: &str| ZooError::SizeName {
            model: self.name.clone(),
            size: size.name().to_owned(),
            rule: rule.to_owned(),
        };
        for (number, size) in self.sizes.iter().enumerate() {
            let letter = |c: char| c.is_ascii_lowercase();
            let rest = |c: char| letter(c) || c.is_ascii_digit() || c == '_';
            if !(size.name().starts_with(letter) && size.name().chars().all(rest)) {
                let rule = "its name must be a lower-case letter, then such letters, digits and _";
                return Err(bad(size, rule));
            }
            if self.sizes[..number]
                .iter()
                .any(|own| own.name() == size.name())
            {
                return Err(bad(size, "it has one already"));
            }
        }
        Ok(())
    }

    pub(super) fn make(&self, settings: &Settings) -> anyhow::Result<Instance> {
        (self.make)(settings)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("sizes", &self.sizes)
            .field("presets", &self.presets)
            .finish_non_exhaustive()
    }
}
