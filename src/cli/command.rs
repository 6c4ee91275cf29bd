//! The verbs and their flags.

use std::ffi::OsString;
use std::path::Path;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::Zoo;
#[cfg(feature = "torch")]
use super::{env, eval, export, generate, model::flags, models, profile, train};
use super::{plan, plot, schedule, simulate};

/// What this program is called where no other one offers its verbs.
const NAME: &str = "gpipe-rs";

/// Pipeline model parallelism for libtorch.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Show what this machine offers: libtorch, cores, devices.
    #[cfg(feature = "torch")]
    Env(env::Args),
    /// Measure how well a trained model tells the next character of a text.
    #[cfg(feature = "torch")]
    Eval(eval::Args),
    /// Write the weights of a trained model with Hugging Face's names.
    #[cfg(feature = "torch")]
    Export(export::Args),
    /// Have a trained model go on with a text.
    #[cfg(feature = "torch")]
    Generate(generate::Args),
    /// List the models that have a name: sizes, parameters, shapes, sources.
    #[cfg(feature = "torch")]
    Models(models::Args),
    /// Choose balance, schedule, micro-batches and recompute from a profile.
    Plan(plan::Args),
    /// Draw loss and throughput of training runs as curves.
    Plot(plot::Args),
    /// Measure a model's layers on this machine, and plan how to train it.
    #[cfg(feature = "torch")]
    Profile(Box<profile::Args>),
    /// Show a schedule, check one, take schedules to and from PyTorch's CSV.
    Schedule(schedule::Args),
    /// Predict a schedule's timeline, bubble and memory.
    Simulate(simulate::Args),
    /// Train a model as a pipeline, on a text or on made-up data.
    #[cfg(feature = "torch")]
    Train(Box<train::Args>),
}

/// Why there is no such verb in this build; none where that is not the reason.
#[cfg(not(feature = "torch"))]
pub(super) fn left_out(args: &[OsString]) -> Option<String> {
    const VERBS: [&str; 7] = [
        "env", "eval", "export", "generate", "models", "profile", "train",
    ];
    let verb = args.get(1)?.to_str().filter(|verb| VERBS.contains(verb))?;
    Some(format!(
        "`{verb}` needs libtorch, and this build has none (--no-default-features): `make build` \
         builds with it"
    ))
}

/// The verbs, with a flag for every size of a model, under the program's own name.
///
/// # Errors
/// A size of a model has the name of another flag.
pub(super) fn build(args: &[OsString], zoo: &Zoo) -> Result<Command, String> {
    let own = args.first().map(Path::new).and_then(Path::file_stem);
    let own = own.and_then(|name| name.to_str()).unwrap_or(NAME);
    let command = with_sizes(Cli::command(), zoo)?;
    if own == NAME {
        return Ok(command);
    }
    let version = command.get_version().unwrap_or_default();
    let version = format!("({NAME} {version})");
    let command = command.name(own.to_owned()).version(version);
    Ok(command.mut_subcommands(|verb| {
        let Some(examples) = verb.get_after_help() else {
            return verb;
        };
        let examples = examples.to_string().replace(NAME, own);
        verb.after_help(examples)
    }))
}

#[cfg(feature = "torch")]
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
    // In a program of one's own the model is one's own where none is named.
    let Some(own) = zoo.first_own().map(str::to_owned) else {
        return Ok(command);
    };
    Ok(command.mut_subcommand("train", |train| {
        train.mut_arg("model", |model| model.default_value(own))
    }))
}

#[cfg(not(feature = "torch"))]
#[allow(clippy::unnecessary_wraps, reason = "as with models")]
fn with_sizes(command: Command, _: &Zoo) -> Result<Command, String> {
    Ok(command)
}

/// What a command line asks for.
pub(super) fn parse(mut command: Command, args: Vec<OsString>) -> Result<Verb, clap::Error> {
    let matches = command.try_get_matches_from_mut(args)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok(cli.verb)
}

#[cfg(all(test, not(feature = "torch")))]
mod tests {
    use super::*;

    #[test]
    fn a_verb_that_this_build_lacks_is_told_from_one_that_there_is_not() {
        let told = |verb: &str| left_out(&["gpipe-rs".into(), verb.into()]);
        assert!(told("train").is_some_and(|why| why.contains("needs libtorch")));
        assert_eq!((told("plan"), told("trian")), (None, None));
        assert_eq!(left_out(&["gpipe-rs".into()]), None);
    }
}
