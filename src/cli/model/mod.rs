//! Which model a command line is about: a name or a file, and sizes.

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

/// Beyond the present value of a size, how far a better one is looked for.
const REACH: i64 = 64;

/// A model with its sizes.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    zoo: Zoo,
    name: String,
    /// Those that were set, as `key=value`: by a file first, then by flags.
    settings: Vec<String>,
    pub(super) spec: ModelSpec,
}

impl Chosen {
    /// The model that `--model`, the flags of sizes and `--loss` name.
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

    /// The loss that it is trained with, where that has a name.
    pub(super) fn loss(&self) -> Option<NamedLoss> {
        self.spec.named_loss()
    }

    /// The same model with its classes in another dimension of the output, where that can be.
    pub(super) fn turned(&self) -> Option<Self> {
        let spec = self.spec.turned()?;
        Some(Self {
            spec,
            ..self.clone()
        })
    }

    /// A program that PyTorch exported.
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

    /// The model for samples of these shapes, one for each input: a program may take several, unless
    /// somebody chose its sizes.
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

    /// A model all of whose sizes are chosen; those of a program may be other ones for other data.
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

    /// The same model with more settings.
    pub(super) fn with(&self, settings: &[String]) -> Result<Self, ZooError> {
        // Its sizes are in its file, and there is no flag for another.
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

    /// Layers of the model.
    pub(super) fn layers(&self) -> usize {
        self.spec.build().len()
    }

    /// Whether the user or the preset chose the value of a size.
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

    /// `8 layers (embed to head)`, `2 layers (0 and 2)`
    pub(super) fn describe_layers(&self) -> String {
        let model = self.spec.build();
        let mut names = model.names();
        let (Some(first), Some(last)) = (names.next(), names.last()) else {
            return count(model.len(), "layer");
        };
        let between = if model.len() == 2 { "and" } else { "to" };
        format!("{} layers ({first} {between} {last})", model.len())
    }

    /// A flag that makes a number of layers that `fits`, such as `--layers 4`, nearest to
    /// the present value.
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
        // Some sizes must be multiples of something.
        let more = (1..=3).filter_map(|more| self.layers_with(size, own + more));
        more.take(1).any(|layers| layers != self.layers())
    }

    fn layers_with(&self, size: &str, value: i64) -> Option<usize> {
        let other = self.with(&[format!("{size}={value}")]).ok()?;
        Some(other.layers())
    }
}

/// Whether this is meant to be a file, be it there or not.
fn is_file(model: &str) -> bool {
    let path = Path::new(model);
    let extension = path
        .extension()
        .is_some_and(|ext| ext.eq_ignore_ascii_case("json"));
    model == "-" || extension || model.contains(std::path::MAIN_SEPARATOR) || path.exists()
}

/// What is wrong with a name, or with a file's settings.
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

/// The zoo's error in words of the command line.
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
/// All sizes of a model, those that nobody chose too.
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
