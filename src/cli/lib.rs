//! The command line: one file or folder per verb, from arguments to options to one library call. Verbs
//! without tensors, and code shared by all verbs, are in [`gpipe_decide`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod command;
mod config;
mod env;
mod eval;
mod export;
mod failure;
mod feed;
mod generate;
mod host_memory;
mod input;
mod model;
mod models;
mod predict;
mod profile;
mod simulated;
mod train;
mod trained;
mod vocabulary;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;

use command::Verb;
use gpipe_decide::{Failure, ended, output, plan, say, table, titled_lines};
use gpipe_models::zoo::{Zoo, ZooError};

pub use config::ConfigKey;
use failure::{failure, no_run};

/// Runs the command line of this process with the built-in models.
pub fn main() -> ExitCode {
    run(|_| Ok(()))
}

/// Runs the command line of this process with custom models in addition to the built-in ones: all of a
/// program's `main`.
///
/// ```no_run
/// use gpipe::models::zoo::{Entry, Instance, Synthetic, class_cross_entropy};
/// use gpipe::{Sequential, tch::nn};
///
/// fn main() -> std::process::ExitCode {
///     gpipe::cli::run(|zoo| {
///         let entry = Entry::new("perceptron", |sizes| {
///             let width = sizes.count("width");
///             let model = Sequential::new()
///                 .layer("in", move |p| nn::linear(p, 16, width, Default::default()))
///                 .layer("out", move |p| nn::linear(p, width, 4, Default::default()));
///             let (x, y) = (Synthetic::normal([16]), Synthetic::classes([], 4));
///             Ok(Instance::new(model, x, y, class_cross_entropy))
///         });
///         zoo.add(entry.about("two linear layers").count("width", 64, "features between"))
///     })
/// }
/// ```
///
/// Then `program profile --model perceptron --width 256` measures it, `program train` trains it, and
/// `program --help` shows the other verbs.
///
/// The process then ends without running destructors of C++ libraries, above all libtorch's: they take
/// longer than startup, and no file written by a verb depends on them.
///
/// *Returns* the exit code: 0, 1 for a failed run, 2 for wrong use, including models whose names are
/// taken.
pub fn run<F>(add: F) -> ExitCode
where
    F: FnOnce(&mut Zoo) -> Result<(), ZooError>,
{
    gpipe_torch::end_at_once();
    let mut zoo = Zoo::builtin();
    match add(&mut zoo) {
        Ok(()) => run_with(std::env::args_os(), &zoo),
        Err(error) => ended(Err(Failure::Usage(error.to_string()))),
    }
}

/// Runs a command line with these models; the first argument is the program's name.
///
/// *Returns* as [`run`].
pub fn run_with<I>(args: I, zoo: &Zoo) -> ExitCode
where
    I: IntoIterator<Item: Into<OsString>>,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    match command::build(&args, zoo) {
        Ok(command) => {
            let parsed = command::parse(command.clone(), &args);
            // Devices are counted while parsing flags, before simulated ones exist.
            if let Err(error) = &parsed
                && error.kind() == clap::error::ErrorKind::ValueValidation
                && let Some(settings) = simulated::asked(&args)
            {
                return ended(Err(simulated::execute_again(&settings, &args)));
            }
            gpipe_decide::execute(parsed, |cli| {
                if let Some(settings) = &cli.simulate_gpus {
                    return Err(simulated::execute_again(settings, &args));
                }
                simulated::check()?;
                dispatch(cli.verb, zoo, command)
            })
        }
        Err(why) => ended(Err(Failure::Usage(why))),
    }
}

/// Returns the command line with these models as a clap command: for completions, manual pages, and
/// similar.
///
/// # Errors
/// A size of a model has the name of another flag.
pub fn command(zoo: &Zoo) -> anyhow::Result<clap::Command> {
    command::build(&[], zoo).map_err(anyhow::Error::msg)
}

/// Returns the configuration keys of `train` with these models, by table.
pub fn config_keys(zoo: &Zoo) -> Vec<ConfigKey> {
    train::keys(zoo)
}

fn dispatch(verb: Verb, zoo: &Zoo, command: clap::Command) -> Result<(), Failure> {
    let name = match &verb {
        Verb::Eval(_) => Some("eval"),
        Verb::Generate(_) => Some("generate"),
        Verb::Predict(_) => Some("predict"),
        Verb::Profile(_) => Some("profile"),
        Verb::Train(_) | Verb::Env(_) | Verb::Export(_) | Verb::Models(_) | Verb::Decide(_) => None,
    };
    name.map_or(Ok(()), world::check_alone)?;
    match verb {
        Verb::Env(args) => env::run(&args),
        Verb::Eval(args) => eval::run(&args, zoo),
        Verb::Export(args) => export::run(&args, zoo),
        Verb::Generate(args) => generate::run(&args, zoo),
        Verb::Models(args) => models::run(&args, zoo),
        Verb::Predict(args) => predict::run(&args, zoo),
        Verb::Profile(args) => profile::run(&args, zoo),
        Verb::Train(args) => train::run(&args, zoo),
        Verb::Decide(verb) => {
            gpipe_decide::run(&verb, command, |command| command::with_values(command, zoo))
        }
    }
}
