//! The command line: one file a verb, from arguments to options to one library call.
//!
//! Data goes to standard output, everything else to standard error. Exit code 0
//! is success, 1 a run that failed, 2 wrong use.

#[cfg(feature = "torch")]
mod env;
mod input;
#[cfg(feature = "torch")]
mod models;
mod output;
mod plan;
#[cfg(feature = "torch")]
mod profile;
mod schedule;
mod simulate;
mod table;
#[cfg(feature = "torch")]
mod train;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Pipeline model parallelism for libtorch.
#[derive(Debug, Parser)]
#[command(
    name = "gpipe-rs",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what this machine offers: libtorch, cores, devices.
    #[cfg(feature = "torch")]
    Env(env::Args),
    /// List the models that have a name: sizes, parameters, shapes, sources.
    #[cfg(feature = "torch")]
    Models(models::Args),
    /// Choose balance, schedule, micro-batches and recompute from a profile.
    Plan(plan::Args),
    /// Measure a model's layers on this machine, and plan how to train it.
    #[cfg(feature = "torch")]
    Profile(Box<profile::Args>),
    /// Show a schedule, check one, take schedules to and from PyTorch's CSV.
    Schedule(schedule::Args),
    /// Predict a schedule's timeline, bubble and memory.
    Simulate(simulate::Args),
    /// Train a character-level GPT on a text, as a pipeline.
    #[cfg(feature = "torch")]
    Train(train::Args),
}

/// Why a verb did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller asked for something that cannot be: exit code 2.
    Usage(String),
    /// Something failed on the way: exit code 1.
    Run(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Run(error.into())
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// Runs a command line; the first argument is the program's name.
pub fn run<I>(args: I) -> ExitCode
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe is all that can go wrong, and then nobody reads.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match dispatch(cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            say(&format!("error: {message}"));
            ExitCode::from(2)
        }
        Err(Failure::Run(error)) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A line on standard error; where that is closed or full, nobody can be told.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn dispatch(verb: Verb) -> Result<(), Failure> {
    match verb {
        #[cfg(feature = "torch")]
        Verb::Env(args) => env::run(&args),
        #[cfg(feature = "torch")]
        Verb::Models(args) => models::run(&args),
        Verb::Plan(args) => plan::run(&args),
        #[cfg(feature = "torch")]
        Verb::Profile(args) => profile::run(&args),
        Verb::Schedule(args) => schedule::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
        #[cfg(feature = "torch")]
        Verb::Train(args) => train::run(&args),
    }
}
