//! Selects the model of a command line: a name or a file, and sizes.

pub(super) mod exported;
mod file;
pub(super) mod flags;
mod plan;

use std::path::Path;

use gpipe_partitioner::words::{count, instead};

use super::Failure;
use exported::AskedLoss;
use flags::{Given, flag};
use gpipe_models::zoo::{ModelSpec, Size, Zoo, ZooError};
use gpipe_models::{EXPORT, NamedLoss};

/// How far above the present value of a size a better one is searched for.
const REACH: i64 = 64;

/// A model with its chosen sizes.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    zoo: Zoo,
    name: String,
    /// Chosen sizes as `key=value`: from a file first, then from flags.
    settings: Vec<String>,
    pub(super) spec: ModelSpec,
}

impl Chosen {
    /// Makes the model of `--model`, the size flags and `--loss`.
    pub(super) fn new(
        zoo: &Zoo,
        model: &str,
        sizes: &Given,
        loss: AskedLoss,
    ) -> Result<Self, Failure> {
        let is_name = zoo.names().any(|name| name == model);
        if !is_name && exported::is_exported(model) {
            return Self::exported(zoo, model, sizes, loss).map_err(Failure::Usage);
        }
        let (name, mut settings) = if !is_name && is_file(model) {
            file::read(Path::new(model))?
        } else {
            (model.to_owned(), Vec::new())
        };
        let spec = zoo.spec(&name, &settings);
        let spec = spec.map_err(|error| Failure::Usage(unknown(model, &name, &error)))?;
        settings.extend(sizes.iter().map(|(size, value)| format!("{size}={value}")));
        let chosen = Self {
            zoo: zoo.clone(),
            name,
            settings,
            spec,
        };
        let chosen = chosen
            .with(&[])
            .map_err(|error| Failure::Usage(in_flags(&error, zoo)))?;
        let spec = exported::judged(chosen.spec, loss).map_err(Failure::Usage)?;
        Ok(Self { spec, ..chosen })
    }

    /// The model's loss, if it has a name.
    pub(super) fn loss(&self) -> Option<NamedLoss> {
        self.spec.named_loss()
    }

    /// Returns the model with its classes in another dimension of the output, if possible.
    pub(super) fn turned(&self) -> Option<Self> {
        let spec = self.spec.turned()?;
        Some(Self {
            spec,
            ..self.clone()
        })
    }

    /// Reads a program that PyTorch exported.
    fn exported(zoo: &Zoo, model: &str, sizes: &Given, loss: AskedLoss) -> Result<Self, String> {
        let read = exported::read(Path::new(model), loss, sizes);
        let spec = read.map_err(|why| {
            let flag = if why.starts_with("--") {
                ""
            } else {
                "--model "
            };
            format!("{flag}{why}")
        })?;
        Ok(Self {
            zoo: zoo.clone(),
            name: model.to_owned(),
            settings: sizes
                .iter()
                .map(|(size, value)| format!("{size}={value}"))
                .collect(),
            spec,
        })
    }

    /// Resizes the model to samples of these shapes, one for each input: a program may take several
    /// sizes, unless the user chose them.
    pub(super) fn resized(&self, items: &[&[i64]]) -> Result<Self, String> {
        if !self.settings.is_empty() {
            return Ok(self.clone());
        }
        let spec = self
            .spec
            .resized(items)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            spec,
            ..self.clone()
        })
    }

    /// Makes a model with all sizes chosen; the sizes of a program may still change with the data.
    pub(super) fn of_spec(zoo: &Zoo, spec: &ModelSpec) -> Self {
        let sizes = sizes(spec).into_iter();
        let sizes = sizes.filter(|_| spec.exported().is_none());
        Self {
            zoo: zoo.clone(),
            name: spec.name().to_owned(),
            settings: sizes
                .map(|(size, value)| format!("{size}={value}"))
                .collect(),
            spec: spec.clone(),
        }
    }

    /// Returns the model with more settings.
    pub(super) fn with(&self, settings: &[String]) -> Result<Self, ZooError> {
        // A program's sizes are in its file.
        if self.spec.exported().is_some() {
            return Ok(self.clone());
        }
        let settings = [&self.settings[..], settings].concat();
        let spec = self.zoo.spec(&self.name, &settings)?;
        let judged = self.loss().and_then(|loss| spec.judged_by(loss));
        Ok(Self {
            spec: judged.unwrap_or(spec),
            settings,
            ..self.clone()
        })
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.spec.build().len()
    }

    /// Whether the user or the preset chose this size.
    pub(super) fn chose(&self, size: &str) -> bool {
        let presets = self.spec.entry().presets();
        let mut by_preset = presets
            .iter()
            .filter(|preset| preset.name() == self.name)
            .flat_map(|preset| preset.values());
        let key = |setting: &String| setting.split('=').next() == Some(size);
        self.settings.iter().any(key) || by_preset.any(|(name, _)| name == size)
    }

    /// Whether the model has a size.
    pub(super) fn has(&self, size: &str) -> bool {
        let mut sizes = self.spec.entry().sizes().iter();
        sizes.any(|own| own.name() == size)
    }

    /// Describes the layers: `8 layers (embed to head)`, `2 layers (0 and 2)`.
    pub(super) fn describe_layers(&self) -> String {
        let model = self.spec.build();
        let mut names = model.names();
        let (Some(first), Some(last)) = (names.next(), names.last()) else {
            return count(model.len(), "layer");
        };
        let between = if model.len() == 2 { "and" } else { "to" };
        format!("{} layers ({first} {between} {last})", model.len())
    }

    /// Returns the flag, such as `--layers 4`, nearest to the present value, that makes a number of
    /// layers accepted by `fits`.
    pub(super) fn size_for(&self, fits: impl Fn(usize) -> bool) -> Option<String> {
        let counts = self.spec.entry().sizes().iter();
        let counts = counts.filter(|size| size.is_count());
        counts
            .map(|size| size.name())
            .filter(|size| self.makes_layers(size))
            .find_map(|size| {
                let own = self.spec.settings().count(size);
                let mut values: Vec<i64> = (1..=own + REACH).collect();
                values.sort_by_key(|value| (value - own).abs());
                let value = values
                    .into_iter()
                    .find(|&value| self.layers_with(size, value).is_some_and(&fits))?;
                Some(format!("{} {value}", flag(size)))
            })
    }

    /// Whether the number of layers depends on a size.
    fn makes_layers(&self, size: &str) -> bool {
        let own = self.spec.settings().count(size);
        // Some sizes must be multiples of a number.
        let more = (1..=3).filter_map(|more| self.layers_with(size, own + more));
        more.take(1).any(|layers| layers != self.layers())
    }

    fn layers_with(&self, size: &str, value: i64) -> Option<usize> {
        let other = self.with(&[format!("{size}={value}")]).ok()?;
        Some(other.layers())
    }
}

/// Whether this looks like a file name, existing or not.
fn is_file(model: &str) -> bool {
    let path = Path::new(model);
    let extension = path
        .extension()
        .is_some_and(|ext| ext.eq_ignore_ascii_case("json"));
    model == "-" || extension || model.contains(std::path::MAIN_SEPARATOR) || path.exists()
}

/// Explains an unknown name, or invalid settings in a file.
fn unknown(model: &str, name: &str, error: &ZooError) -> String {
    match error {
        _ if model != name => format!("--model {model}: {error}"),
        ZooError::UnknownModel { near, .. } => {
            let choices = format!(
                "the verb `models` lists those that there are; any other one comes from PyTorch as a \
                 .pt2: {EXPORT}"
            );
            let more = instead(near.as_deref(), &choices);
            format!("there is no model and no file `{model}`{more}")
        }
        other => other.to_string(),
    }
}

/// Rewrites the zoo's error in terms of flags.
fn in_flags(error: &ZooError, zoo: &Zoo) -> String {
    let all = |sizes: &[String]| {
        let flags: Vec<String> = sizes.iter().map(|size| flag(size)).collect();
        flags.join(", ")
    };
    match error {
        ZooError::UnknownSize {
            model,
            size,
            near,
            sizes,
        } => {
            let others: Vec<&str> = flags::having(zoo, size).iter().map(|e| e.name()).collect();
            let (asked, others) = (flag(size), others.join(", "));
            let choices = format!("it has {}; {asked} is for {others}", all(sizes));
            let near = near.as_deref().map(flag);
            let more = instead(near.as_deref(), &choices);
            format!("the model `{model}` has no {asked}{more}")
        }
        ZooError::BadValue { size, value, rule } => format!("{} {value}: {rule}", flag(size)),
        other => other.to_string(),
    }
}
/// Returns all sizes of a model, including defaults.
pub(super) fn sizes(spec: &ModelSpec) -> Vec<(String, String)> {
    let text = |size: &Size| {
        let value = spec.settings().value(size.name());
        let text = if size.is_count() {
            format!("{value}")
        } else {
            format!("{value:?}")
        };
        (size.name().to_owned(), text)
    };
    spec.entry().sizes().iter().map(text).collect()
}
