//! The verbs and their flags.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Subcommand};

use super::model::flags;
use super::{Zoo, env, eval, export, generate, models, predict, profile, train};
use gpipe_decide::shell::{self, Known};
use gpipe_decide::{Cli, NAME, names};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Show what this machine offers: libtorch, cores, devices, and the rank of this process.
    Env(env::Args),
    /// Measure the loss of a trained model on a text or on other data, and the accuracy of a
    /// classifier.
    Eval(eval::Args),
    /// Write the weights of a trained model for other programs, with Hugging Face's or PyTorch's names.
    Export(export::Args),
    /// Continue a text with a trained model.
    Generate(generate::Args),
    /// List the built-in models: sizes, parameters, shapes, sources.
    Models(models::Args),
    /// Tell the classes of images or rows, or their numbers, with a trained model.
    Predict(predict::Args),
    /// Measure a model's layers on this machine, and plan how to train it.
    Profile(Box<profile::Args>),
    /// Train a model as a pipeline: on a text, tables, arrays, images, or made-up data.
    Train(Box<train::Args>),
    #[command(flatten)]
    Decide(gpipe_decide::Verb),
}

const FIRST_STEPS: &str = "First steps:
  gpipe-rs env                   what this machine has
  gpipe-rs train --steps 100     a small GPT on Moby-Dick over two CPU stages
  gpipe-rs generate --run runs/1 --prompt 'Call me'
  gpipe-rs models                other models; `train -h` has the flags in short";

/// The verbs, with a flag for every size of a model, under the program's own name.
///
/// # Errors
/// A size of a model has the name of another flag.
pub(super) fn build(args: &[OsString], zoo: &Zoo) -> Result<Command, String> {
    let own = args.first().map(Path::new).and_then(Path::file_stem);
    let own = own.and_then(|name| name.to_str()).unwrap_or(NAME);
    let command = with_sizes(names::named(Cli::<Verb>::command()), zoo)?;
    if own == NAME {
        let version = command.get_version().unwrap_or_default().to_owned();
        let version = version + &names::build(Some(&gpipe_torch::libtorch_version()));
        return Ok(command.long_version(version).after_help(FIRST_STEPS));
    }
    let version = command.get_version().unwrap_or_default();
    let version = format!("({NAME} {version})");
    let command = command.name(own.to_owned()).version(version.clone());
    let command =
        command.long_version(version + &names::build(Some(&gpipe_torch::libtorch_version())));
    let renamed = |text: &str| text.replace(NAME, own);
    Ok(command.mut_subcommands(|verb| names::rewritten(verb, renamed)))
}

/// Adds the known values of flags, for shell completion.
pub(super) fn with_values(command: Command, zoo: &Zoo) -> Command {
    let models: Vec<&str> = zoo.entries().map(|entry| entry.name()).collect();
    let trains = ["never", "except-last", "always"];
    let known = [
        Known::new(None, "model", models),
        Known::new("train", "recompute", trains),
        Known::new(None, "recompute", ["auto", "never", "always"]),
        Known::new(None, "precision", ["f32", "bf16", "fp16"]),
        Known::new(None, "kernels", ["libtorch", "onednn"]),
        Known::new(None, "optimizer", ["adamw", "adam", "sgd"]),
        Known::new(
            None,
            "lr-schedule",
            ["constant", "linear", "cosine", "one-cycle", "inverse-sqrt"],
        ),
        Known::new(None, "loss", ["cross-entropy", "mse", "bce", "output"]),
        Known::new(None, "missing", ["refuse", "fill", "drop"]),
        Known::new(None, "normalise", ["auto", "none", "standard", "imagenet"]),
    ];
    shell::knowing(command, &known)
}

fn with_sizes(command: Command, zoo: &Zoo) -> Result<Command, String> {
    let mut wrong = None;
    let mut add = |verb: Command| {
        flags::add(verb, zoo).unwrap_or_else(|why| {
            wrong = Some(why);
            Command::new("")
        })
    };
    let command = command
        .mut_subcommand("profile", &mut add)
        .mut_subcommand("train", &mut add);
    if let Some(why) = wrong {
        return Err(why);
    }
    // In a program with models of its own, the first of them is the default of `--model`.
    let Some(own) = zoo.first_own().map(str::to_owned) else {
        return Ok(command);
    };
    Ok(command.mut_subcommand("train", |train| {
        train.mut_arg("model", |model| model.default_value(own))
    }))
}

/// Explains flags of the program given after the verb; clap would suggest a flag of the verb instead.
fn behind_the_verb(command: &mut Command, error: clap::Error) -> clap::Error {
    const FLAG: &str = "--simulate-gpus";
    let unknown = error.kind() == ErrorKind::UnknownArgument;
    let own = |argument: &str| argument.split('=').next() == Some(FLAG);
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) if unknown && own(argument) => {
            let why = format!(
                "`{FLAG}` stands before the verb: `{} {FLAG} 2 VERB …`",
                command.get_name()
            );
            clap::Error::raw(ErrorKind::UnknownArgument, why + "\n")
        }
        _ => error,
    }
}

/// Parses a command line.
pub(super) fn parse(mut command: Command, args: &[OsString]) -> Result<Cli<Verb>, clap::Error> {
    let matches = command
        .try_get_matches_from_mut(args)
        .map_err(|error| names::explained(&command, args, error))
        .map_err(|error| behind_the_verb(&mut command, error))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}
