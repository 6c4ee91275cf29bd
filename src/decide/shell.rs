//! `gpipe-rs completions` and `gpipe-rs man`: shell completions and manual pages, generated from
//! the command's own arguments.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::Shell;
use gpipe_partitioner::ScheduleKind;

use super::{Failure, output};

/// Arguments of `gpipe-rs completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs completions bash > ~/.local/share/bash-completion/completions/gpipe-rs.bash
  gpipe-rs completions fish > ~/.config/fish/completions/gpipe-rs.fish
  gpipe-rs completions zsh > ~/.zfunc/_gpipe-rs")]
pub struct Completions {
    /// Shell to write for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `gpipe-rs man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs man | man -l -
  gpipe-rs man -o ~/.local/share/man/man1")]
pub struct Manual {
    /// Folder for the pages of all verbs; without it, the main page goes to standard output.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Flags with named values, for shells to complete: the parsers take more, such as other spellings.
#[derive(Debug, Clone)]
pub struct Known {
    /// The verb; every verb if none.
    pub(crate) verb: Option<&'static str>,
    /// The flag, without dashes.
    pub(crate) flag: &'static str,
    pub(crate) values: Vec<String>,
}

impl Known {
    /// Values of a verb's flag, of every verb's where none is named.
    pub fn new<S: Into<String>>(
        verb: impl Into<Option<&'static str>>,
        flag: &'static str,
        values: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            verb: verb.into(),
            flag,
            values: values.into_iter().map(Into::into).collect(),
        }
    }

    fn is_of(&self, verb: &str, arg: &Arg) -> bool {
        let is_free = arg.get_possible_values().is_empty();
        self.verb.is_none_or(|own| own == verb) && arg.get_long() == Some(self.flag) && is_free
    }
}

/// Adds the known values of flags to the command.
pub fn knowing(command: Command, known: &[Known]) -> Command {
    command.mut_subcommands(|verb| {
        let verb = verb.mut_subcommands(|verb| informed(verb, known));
        informed(verb, known)
    })
}

fn informed(verb: Command, known: &[Known]) -> Command {
    let name = verb.get_name().to_owned();
    verb.mut_args(
        |arg| match known.iter().find(|known| known.is_of(&name, &arg)) {
            Some(known) => arg.value_parser(PossibleValuesParser::new(known.values.clone())),
            None => arg,
        },
    )
}

/// Returns the values known in every build: names of schedules.
pub(crate) fn schedules() -> Known {
    Known::new(None, "schedule", ScheduleKind::ALL.map(ScheduleKind::name))
}

pub(crate) fn complete(args: &Completions, command: Command) -> Result<(), Failure> {
    let mut command = knowing(command, &[schedules()]);
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, &name, &mut script);
    let script = String::from_utf8_lossy(&script);
    // clap_complete's script for bash takes the dash in a program's name for the one before a verb
    // in one of two places, and then finds none of the verb's flags.
    let (taken, meant) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
    output::print(&script.replace(&taken, &meant))
}

pub(crate) fn manual(args: &Manual, mut command: Command) -> Result<(), Failure> {
    command = command.disable_help_subcommand(true);
    command.build();
    let Some(folder) = &args.output else {
        return output::print(&page(&command)?);
    };
    std::fs::create_dir_all(folder)
        .with_context(|| format!("--output: {} cannot be made", folder.display()))?;
    write_all(&command, folder)
}

/// Writes the page of a verb, and those of its subcommands.
fn write_all(command: &Command, folder: &Path) -> Result<(), Failure> {
    // Names: `gpipe-rs-schedule-show` below `gpipe-rs-schedule` below `gpipe-rs`.
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = folder.join(format!("{name}.1"));
    output::write_bytes(&path, page(command)?.as_bytes())?;
    let verbs = command.get_subcommands();
    verbs
        .filter(|verb| !verb.is_hide_set())
        .try_for_each(|verb| write_all(verb, folder))
}

fn page(command: &Command) -> Result<String, Failure> {
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(command.clone());
    page.render(&mut text).context("the page of the manual")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
