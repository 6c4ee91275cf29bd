//! `gpipe-rs completions` and `gpipe-rs man`: what a shell and `man` know of the command, made from
//! its own arguments.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

use super::{Failure, output};

/// Arguments of `gpipe-rs completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs completions bash >> ~/.bash_completion
  gpipe-rs completions fish > ~/.config/fish/conf.d/gpipe.fish
  gpipe-rs completions zsh")]
pub(crate) struct Completions {
    /// Shell to write for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `gpipe-rs man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs man | man -l -
  gpipe-rs man -o ~/.local/share/man/man1")]
pub(crate) struct Manual {
    /// Folder to write the pages of all verbs to, rather than the first page to standard output.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn complete(args: &Completions, mut command: Command) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, &name, &mut script);
    let script = String::from_utf8_lossy(&script);
    // clap_complete's script for bash takes the dash of a program's name for that before a verb in
    // one of two places, and then finds none of the verb's flags.
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

/// Writes the page of a verb, and those of its own verbs.
fn write_all(command: &Command, folder: &Path) -> Result<(), Failure> {
    // `gpipe-rs-schedule-show` below `gpipe-rs-schedule` below `gpipe-rs`.
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
