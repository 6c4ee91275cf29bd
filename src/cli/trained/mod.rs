//! A trained model and its weights, from any source.

pub(super) mod initial;
mod run;

use std::path::{Path, PathBuf};

use gpipe_partitioner::words::{count, quoted};
use tch::{Device, TchError, Tensor};

use super::feed;
use super::input::{self, DeviceList};
use super::models::shapes;
use super::vocabulary::{Characters, ModelTokenizer, Vocabulary};
use super::{Failure, host_memory, say, simulated};
use gpipe_models::hugging_face::{self, TokenizerFiles};
use gpipe_models::zoo::{Fill, ModelSpec, Zoo};
use gpipe_torch::{Pipeline, Variable};

pub(super) use run::{
    SAMPLES, Settings, TOKENIZER, TrainedOn, VOCABULARY, saved_samples, saved_tokenizer,
    saved_vocabulary,
};

/// The weights exist twice: as read, and in the pipeline.
const COPIES: u64 = 2;

/// Where a trained model is.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Where {
    /// Run folder, as `train` writes it; its newest checkpoint is used.
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// One checkpoint of a run, such as runs/1/checkpoints/step-00000100.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// A GPT-2, Llama, Mistral, Qwen 2 or Qwen 3 as Hugging Face's transformers or `export` saves
    /// it: a folder, or a .safetensors file with a config.json beside it.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
}

/// The same, and where what it names is now.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Place {
    #[command(flatten)]
    which: Where,
    /// Use the checkpoint of a --run with the lowest held-out loss (`train --eval-every`), not the
    /// newest.
    #[arg(long, requires = "run")]
    best: bool,
    /// The .pt2 from which the run was trained, if the file has moved.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
}

/// The vocabulary, if the model has none of its own.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Spoken {
    /// A Hugging Face tokenizer.json, or a folder with one, for a model that has none.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
}

/// Where it is to compute.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Devices {
    /// Devices, a stage and a thread each: `cpu*2`, `cuda:0-3`, `cuda`, `auto`, or `4` (the first four
    /// GPUs, or four CPU stages); may repeat.
    #[arg(long, value_name = "LIST", default_value = "cpu", allow_negative_numbers = true, value_parser = input::device_list)]
    pub(super) devices: DeviceList,
}

/// Returns the name of the first weight with a NaN or infinite value.
pub(super) fn not_finite(weights: &[(String, Tensor)]) -> Result<Option<&str>, TchError> {
    for (name, tensor) in weights {
        if tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// A trained model.
#[derive(Debug)]
pub(super) struct Trained {
    pub(super) spec: ModelSpec,
    pub(super) weights: Vec<(String, Tensor)>,
    /// Settings of its training.
    pub(super) settings: Settings,
    /// The vocabulary, or the reason why it is unknown.
    vocabulary: Result<Vocabulary, String>,
}

impl Trained {
    /// Reads the model.
    ///
    /// # Errors
    /// There is no model, or a file is damaged.
    pub(super) fn read(place: &Place, spoken: &Spoken, zoo: &Zoo) -> Result<Self, Failure> {
        let trained = Self::placed(place, zoo)?;
        let Some(path) = &spoken.tokenizer else {
            return trained.checked();
        };
        let wrong = |why: String| Failure::Usage(format!("--tokenizer {}: {why}", path.display()));
        let tokenizer = ModelTokenizer::read(path);
        let tokenizer = tokenizer.map_err(|why| input::in_file("--tokenizer", path, why))?;
        let own = Self {
            vocabulary: Ok(Vocabulary::Tokenizer(tokenizer)),
            ..trained
        };
        let own = own.checked()?;
        match own.vocabulary() {
            Ok(_) => Ok(own),
            Err(why) => Err(wrong(why)),
        }
    }

    fn placed(place: &Place, zoo: &Zoo) -> Result<Self, Failure> {
        let (place, moved, is_best) = (&place.which, place.model.as_deref(), place.best);
        if let Some(run) = &place.run {
            if is_best {
                return run::best(run, moved, zoo);
            }
            return run::newest(run, moved, zoo);
        }
        if is_best {
            return Err(Failure::Usage(
                "--best is for --run: checkpoints and weights are used as they are".to_owned(),
            ));
        }
        if let Some(checkpoint) = &place.checkpoint {
            return run::checkpoint(checkpoint, moved, zoo);
        }
        if moved.is_some() {
            return Err(Failure::Usage(
                "--model is for --run and --checkpoint: weights say which model is theirs"
                    .to_owned(),
            ));
        }
        // The flags are a group that requires one of the three.
        Self::exported(place.weights.as_deref().unwrap_or(Path::new("")), zoo)
    }

    fn exported(path: &Path, zoo: &Zoo) -> Result<Self, Failure> {
        if run::is_run(path) {
            return Err(Failure::Usage(format!(
                "--weights {}: this is the folder of a run: name it with --run {}",
                path.display(),
                quoted(path)
            )));
        }
        let read = hugging_face::import(zoo, path)
            .map_err(|error| input::in_file("--weights", path, error))?;
        if let Some(prefix) = &read.prefix {
            say(&initial::wrapped(path, prefix));
        }
        let vocabulary = match (read.vocabulary, read.tokenizer) {
            (Some(characters), _) => Ok(Vocabulary::Characters(Characters::new(characters))),
            (None, Some(files)) => ModelTokenizer::of(files).map(Vocabulary::Tokenizer),
            (None, None) => Err(format!(
                "{} has no tokenizer.json beside it: copy that of the model there, or name one with \
                 --tokenizer",
                path.display()
            )),
        };
        Ok(Self {
            spec: read.spec,
            weights: read.weights,
            settings: Settings::default(),
            vocabulary,
        })
    }

    /// Checks that all weights are present and that the vocabulary fits.
    fn checked(mut self) -> Result<Self, Failure> {
        let variables = self.spec.build().distinct_variables()?;
        let there = |wanted: &&Variable| self.weights.iter().any(|(name, _)| name == wanted.name());
        if let Some(missing) = variables.iter().find(|wanted| !there(wanted)) {
            return Err(Failure::Usage(format!(
                "the weights have no `{}`, which `{}` needs",
                missing.name(),
                self.spec.name()
            )));
        }
        let tokens = self.tokens();
        self.vocabulary = self.vocabulary.and_then(|own| match tokens {
            Ok((_, tokens)) if own.len() > tokens => Err(match own {
                Vocabulary::Characters(own) => format!(
                    "its text has {} distinct characters, but the model knows {tokens} tokens: \
                     another text was trained on",
                    own.len()
                ),
                Vocabulary::Tokenizer(_) => format!(
                    "the tokenizer has {} tokens, but the model knows {tokens}: it is that of \
                     another model",
                    own.len()
                ),
            }),
            _ => Ok(own),
        });
        Ok(self)
    }

    /// Returns the first trained weight with a NaN or infinite value; buffers of exported programs may
    /// be masks with infinities.
    pub(super) fn not_finite(&self) -> Result<Option<&str>, Failure> {
        if self.spec.exported().is_none() {
            return Ok(not_finite(&self.weights)?);
        }
        let variables = self.spec.build().distinct_variables()?;
        let trained = |name: &str| {
            let own = variables.iter().find(|own| own.name() == name);
            own.is_some_and(Variable::is_parameter)
        };
        let mut weights = self.weights.iter().filter(|(name, _)| trained(name));
        let found = weights.find_map(|weight| {
            let found = not_finite(std::slice::from_ref(weight));
            found.transpose()
        });
        Ok(found.transpose()?)
    }

    /// Returns the sequence length and the number of distinct tokens of a language model.
    ///
    /// # Errors
    /// The model is of another kind.
    pub(super) fn tokens(&self) -> Result<(usize, usize), String> {
        let spec = &self.spec;
        let classes = match (spec.inputs(), spec.targets()) {
            ([input], [target]) if input.shape() == target.shape() => {
                match (input.fill(), target.fill()) {
                    (Fill::Classes(known), Fill::Classes(told)) => Some(known.min(told)),
                    _ => None,
                }
            }
            _ => None,
        };
        match (feed::tokens(spec), classes) {
            (Some(_), Some(_)) if spec.sees_later_tokens() => Err(format!(
                "`{}` sees the tokens after each one, and so cannot tell the next",
                spec.name()
            )),
            (Some(context), Some(classes)) => Ok((context, classes as usize)),
            _ => Err(format!(
                "`{}` is no model of texts: it maps {} to {}",
                spec.name(),
                shapes(spec.inputs()),
                shapes(spec.targets())
            )),
        }
    }

    /// Returns the vocabulary.
    ///
    /// # Errors
    /// The vocabulary is unknown, or the model has no tokens.
    pub(super) fn vocabulary(&self) -> Result<&Vocabulary, String> {
        self.tokens()?;
        let known = self.vocabulary.as_ref();
        known.map_err(|why| format!("what tokens stand for is not known: {why}"))
    }

    /// Returns the tokenizer files for `export`, if the vocabulary is known.
    pub(super) fn tokenizer_files(&self) -> Option<TokenizerFiles> {
        self.vocabulary.as_ref().ok().map(Vocabulary::files)
    }

    /// Builds the pipeline on devices, with the weights.
    pub(super) fn pipeline(&self, devices: &[Device], micro: usize) -> Result<Pipeline, Failure> {
        let model = self.spec.build();
        let what = ("the weights", COPIES);
        host_memory::check_model(
            &self.spec,
            what,
            devices,
            "take devices of their own memory",
        )?;
        if devices.len() > model.len() {
            return Err(Failure::Usage(format!(
                "{} make as many stages, but `{}` has only {}: use fewer with --devices",
                count(devices.len(), "device"),
                self.spec.name(),
                count(model.len(), "layer")
            )));
        }
        // For the default device: the user may not know of the simulated GPUs.
        if devices == [Device::Cpu] {
            simulated::unused(devices).iter().for_each(|note| say(note));
        }
        let mut builder = Pipeline::builder(model)
            .devices(devices)
            .micro_batches(micro)
            .kernels(self.settings.kernels);
        if let Some(threads) = self.settings.threads_per_stage {
            builder = builder.threads_per_stage(threads);
        }
        let mut pipe = builder.build().map_err(super::failure)?;
        pipe.load(&self.weights).map_err(super::failure)?;
        Ok(pipe)
    }
}
