//! The command line: one file a verb, from arguments to options to one library call.
//!
//! Data goes to standard output, everything else to standard error. Exit code 0
//! is success, 1 a run that failed, 2 wrong use.

#[cfg(all(test, feature = "torch"))]
mod book;
mod command;
#[cfg(feature = "torch")]
mod config;
#[cfg(feature = "torch")]
mod env;
#[cfg(feature = "torch")]
mod eval;
#[cfg(feature = "torch")]
mod export;
mod failure;
#[cfg(feature = "torch")]
mod feed;
#[cfg(feature = "torch")]
mod generate;
mod input;
#[cfg(feature = "torch")]
mod model;
#[cfg(feature = "torch")]
mod models;
mod output;
mod plan;
mod plot;
#[cfg(feature = "torch")]
mod profile;
#[cfg(feature = "torch")]
mod room;
mod schedule;
mod simulate;
mod table;
#[cfg(feature = "torch")]
mod train;
#[cfg(feature = "torch")]
mod trained;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

#[cfg(feature = "torch")]
use crate::models::zoo::{Zoo, ZooError};
use command::Verb;

pub(crate) use failure::Failure;
#[cfg(feature = "torch")]
use failure::{failure, no_run};

/// Without libtorch there are no models.
#[cfg(not(feature = "torch"))]
#[derive(Debug)]
struct Zoo;

/// Runs the command line of this process with the built-in models alone.
pub fn main() -> ExitCode {
    #[cfg(feature = "torch")]
    return run(|_| Ok(()));
    #[cfg(not(feature = "torch"))]
    execute(std::env::args_os(), &Zoo)
}

/// Runs the command line of this process with models of one's own beside the built-in
/// ones: all of a program's `main`.
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
/// Then `program profile --model perceptron --width 256` measures it, `program train` trains
/// it, and `program --help` shows the other verbs.
///
/// *Returns* the exit code: 0, 1 for a run that failed, 2 for wrong use, which models
/// whose names are taken are too.
#[cfg(feature = "torch")]
pub fn run<F>(add: F) -> ExitCode
where
    F: FnOnce(&mut Zoo) -> Result<(), ZooError>,
{
    let mut zoo = Zoo::builtin();
    match add(&mut zoo) {
        Ok(()) => run_with(std::env::args_os(), &zoo),
        Err(error) => ended(Err(Failure::Usage(error.to_string()))),
    }
}

/// Runs a command line with these models; the first argument is the program's name.
///
/// *Returns* as [`run`].
#[cfg(feature = "torch")]
pub fn run_with<I>(args: I, zoo: &Zoo) -> ExitCode
where
    I: IntoIterator<Item: Into<OsString>>,
{
    execute(args, zoo)
}

fn execute<I>(args: I, zoo: &Zoo) -> ExitCode
where
    I: IntoIterator<Item: Into<OsString>>,
{
    no_signal_for_large_files();
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    #[cfg(not(feature = "torch"))]
    if let Some(why) = command::left_out(&args) {
        return ended(Err(Failure::Usage(why)));
    }
    let parsed = match command::build(&args, zoo) {
        Ok(command) => command::parse(command, args, zoo),
        Err(why) => return ended(Err(Failure::Usage(why))),
    };
    match parsed {
        Ok(verb) => ended(dispatch(verb, zoo)),
        Err(error) => {
            // A closed pipe is all that can go wrong, and then nobody reads.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

/// A file that grows beyond the process's limit is then an error as a full disk is; the
/// signal would end the process without a word.
fn no_signal_for_large_files() {
    // Where that is not possible it is as it was.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("error: {}", failure.said()));
            match failure {
                Failure::Usage(_) => ExitCode::from(2),
                Failure::Run(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// A line on standard error, broken between words where that is a terminal; where it is closed
/// or full, nobody can be told.
fn say(line: &str) {
    let mut err = std::io::stderr().lock();
    let line = output::plain(line);
    let _ = if err.is_terminal() {
        writeln!(err, "{}", output::wrapped(&line, output::width(None)))
    } else {
        writeln!(err, "{line}")
    };
}

#[cfg_attr(not(feature = "torch"), allow(unused_variables))]
fn dispatch(verb: Verb, zoo: &Zoo) -> Result<(), Failure> {
    match verb {
        #[cfg(feature = "torch")]
        Verb::Env(args) => env::run(&args),
        #[cfg(feature = "torch")]
        Verb::Eval(args) => eval::run(&args, zoo),
        #[cfg(feature = "torch")]
        Verb::Export(args) => export::run(&args, zoo),
        #[cfg(feature = "torch")]
        Verb::Generate(args) => generate::run(&args, zoo),
        #[cfg(feature = "torch")]
        Verb::Models(args) => models::run(&args, zoo),
        Verb::Plan(args) => plan::run(&args),
        Verb::Plot(args) => plot::run(&args),
        #[cfg(feature = "torch")]
        Verb::Profile(args) => profile::run(&args, zoo),
        Verb::Schedule(args) => schedule::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
        #[cfg(feature = "torch")]
        Verb::Train(args) => train::run(&args, zoo),
    }
}
