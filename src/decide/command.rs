//! The verbs that need no libtorch, and the command line of a build without the feature `cli`.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

#[cfg(feature = "torch")]
use clap::builder::NonEmptyStringValueParser;
use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use signal_hook::consts::SIGXFSZ;

use super::{Failure, ended, launch, names, output, plan, plot, schedule, shell, simulate};

/// Name of this program, unless another program offers its verbs.
pub const NAME: &str = "gpipe-rs";

/// Pipeline model parallelism for libtorch.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Cli<V: Subcommand> {
    /// Run on N simulated GPUs: real numbers, meaningless times; with time=h100, modelled times and
    /// no numbers. `make simulated-gpus` in a clone builds them.
    #[cfg(feature = "torch")]
    #[arg(long, value_name = "N[,SETTINGS]", hide_short_help = true, value_parser = NonEmptyStringValueParser::new())]
    pub simulate_gpus: Option<String>,

    // A doc comment would be part of the help.
    #[allow(missing_docs)]
    #[command(subcommand)]
    pub verb: V,
}

// A doc comment would be part of the help.
#[allow(missing_docs)]
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Write the completions of a shell for verbs, flags and their values.
    Completions(shell::Completions),
    /// Run a verb as several processes, on this host or on several.
    Launch(launch::Args),
    /// Write the manual pages.
    Man(shell::Manual),
    /// Choose balance, schedule, micro-batches and recompute from a profile.
    Plan(Box<plan::Args>),
    /// Draw loss and throughput of training runs as curves.
    Plot(plot::Args),
    /// Show or check a schedule, and convert schedules to and from PyTorch's CSV.
    Schedule(schedule::Args),
    /// Predict a schedule's timeline, bubble and memory.
    Simulate(Box<simulate::Args>),
}

/// Runs a verb; `command` is the whole command line. `with_values` names the usual values of its flags, for
/// completions and manual pages: a flag may take others, too.
pub fn run(
    verb: &Verb,
    command: Command,
    with_values: impl FnOnce(Command) -> Command,
) -> Result<(), Failure> {
    match verb {
        Verb::Completions(args) => shell::complete(args, with_values(command)),
        Verb::Launch(args) => launch::run(args, command),
        Verb::Man(args) => shell::manual(args, with_values(command)),
        Verb::Plan(args) => plan::run(args),
        Verb::Plot(args) => plot::run(args),
        Verb::Schedule(args) => schedule::run(args),
        Verb::Simulate(args) => simulate::run(args),
    }
}

/// Runs the command line of this process with these verbs only: all that a build has without the feature
/// `cli`.
///
/// *Returns* the exit code: 0, 1 for a failed run, 2 for wrong use.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(why) = left_out(&args) {
        return ended(Err(Failure::Usage(why)));
    }
    let command = names::named(Cli::<Verb>::command());
    let version = command.get_version().unwrap_or_default().to_owned();
    let command = command.long_version(version + &names::build(None));
    execute(parse::<Verb>(command.clone(), &args), |cli| {
        run(&cli.verb, command, |command| command)
    })
}

/// Parses a command line.
pub(crate) fn parse<V: Subcommand>(
    mut command: Command,
    args: &[OsString],
) -> Result<Cli<V>, clap::Error> {
    let matches = command
        .try_get_matches_from_mut(args)
        .map_err(|error| names::explained(&command, args, error))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Runs a parsed command line, or prints its error or help.
pub fn execute<T>(
    asked: Result<T, clap::Error>,
    run: impl FnOnce(T) -> Result<(), Failure>,
) -> ExitCode {
    no_signal_for_large_files();
    if let Err(alone) = launch::end_with_launcher() {
        return ended(Err(alone));
    }
    match asked {
        Ok(asked) => ended(run(asked)),
        Err(error) => {
            // Only a closed pipe can fail here, and then nobody reads.
            let _ = print(&error);
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

/// Prints the error or the help; lines too long for a terminal are broken between words.
fn print(error: &clap::Error) -> io::Result<()> {
    let to_terminal = if error.use_stderr() {
        io::stderr().is_terminal()
    } else {
        io::stdout().is_terminal()
    };
    let text = error.render();
    let width = output::width(None);
    if !to_terminal
        || text
            .to_string()
            .lines()
            .all(|line| line.chars().count() <= width)
    {
        return error.print();
    }
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|own| !own.is_empty());
    let text = if is_set("NO_COLOR") || std::env::var_os("TERM").is_none_or(|own| own == "dumb") {
        text.to_string()
    } else {
        text.ansi().to_string()
    };
    let text = output::wrapped(&text, width) + "\n";
    if error.use_stderr() {
        io::stderr().write_all(text.as_bytes())
    } else {
        io::stdout().write_all(text.as_bytes())
    }
}

/// Makes a file beyond the process's size limit an error, as on a full disk; the signal would end the process
/// without a message.
fn no_signal_for_large_files() {
    // If this fails, the signal stays as it was.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Explains that a verb or flag is not in this build; none if that is not the problem.
fn left_out(args: &[OsString]) -> Option<String> {
    const LEFT_OUT: [&str; 9] = [
        "--simulate-gpus",
        "env",
        "eval",
        "export",
        "generate",
        "models",
        "predict",
        "profile",
        "train",
    ];
    let asked = args.get(1)?.to_str()?.split('=').next()?;
    let asked = LEFT_OUT.iter().find(|own| **own == asked)?;
    Some(format!(
        "`{asked}` needs libtorch, and this build has none (--no-default-features): `make build` \
         builds with it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_that_this_build_lacks_is_told_from_one_that_there_is_not() {
        let told = |verb: &str| left_out(&["gpipe-rs".into(), verb.into()]);
        assert!(told("predict").is_some());
        assert!(told("train").is_some_and(|why| why.contains("needs libtorch")));
        let flag = told("--simulate-gpus=4");
        assert!(flag.is_some_and(|why| why.contains("`--simulate-gpus` needs libtorch")));
        assert_eq!((told("plan"), told("trian")), (None, None));
        assert_eq!(left_out(&["gpipe-rs".into()]), None);
    }
}
