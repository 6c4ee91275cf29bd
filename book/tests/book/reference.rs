//! The page with all verbs and flags, made from the parser's own definition.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

use crate::made::{assert_current, cell, gpipe, sentence};

/// Title of the section for flags that several verbs share.
const SIZES: &str = "Sizes of the model";

/// Formats a help text as a sentence.
fn told(text: Option<&StyledStr>) -> String {
    sentence(&text.map(ToString::to_string).unwrap_or_default())
}

/// Returns a name such as `-o, --output <FILE>`.
fn name(arg: &Arg) -> String {
    let long = arg.to_string().replace('|', "\\|");
    match arg.get_short() {
        Some(short) => format!("`-{short}, {long}`"),
        None => format!("`{long}`"),
    }
}

fn about(arg: &Arg) -> String {
    let mut parts = vec![told(arg.get_long_help().or(arg.get_help()))];
    if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        for value in arg.get_possible_values() {
            parts.push(match value.get_help() {
                Some(help) => format!("`{}`: {}", value.get_name(), told(Some(help))),
                None => format!("`{}`.", value.get_name()),
            });
        }
        let default: Vec<_> = arg.get_default_values().iter().collect();
        if !default.is_empty() {
            let values = default.iter().map(|value| value.to_string_lossy());
            parts.push(format!(
                "Default: `{}`.",
                values.collect::<Vec<_>>().join(",")
            ));
        }
    }
    for alias in arg.get_visible_aliases().unwrap_or_default() {
        parts.push(format!("Also `--{alias}`."));
    }
    if arg.is_required_set() {
        parts.push("Required.".to_owned());
    }
    parts.join(" ")
}

fn table<'a>(page: &mut String, args: impl Iterator<Item = &'a Arg>) {
    page.push_str("| | |\n|---|---|\n");
    for arg in args {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(page, "| {} | {} |", name(arg), about(arg));
    }
    page.push('\n');
}

/// The text around the examples, and the examples.
fn examples(verb: &Command) -> (String, Option<String>) {
    let text = verb
        .get_after_long_help()
        .or(verb.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let Some(at) = text.find("Example") else {
        return (cell(&text), None);
    };
    let lines = text[at..].split_once(':').map_or("", |(_, lines)| lines);
    let (lines, behind) = lines.split_once("\n\n").unwrap_or((lines, ""));
    let lines: Vec<&str> = lines.trim().lines().map(str::trim).collect();
    (
        cell(&format!("{} {behind}", &text[..at])),
        Some(lines.join("\n")),
    )
}

fn section(page: &mut String, verb: &mut Command, path: &str, depth: usize) {
    let heading = "#".repeat(depth);
    let about = told(verb.get_long_about().or(verb.get_about()));
    let _ = writeln!(page, "{heading} `{path}`\n\n{about}\n");
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let sizes = |arg: &&Arg| arg.get_help_heading() == Some(SIZES);
    if verb.get_arguments().filter(shown).any(|arg| !sizes(&arg)) {
        let usage = verb.render_usage().to_string();
        let _ = writeln!(
            page,
            "```text\n{}\n```\n",
            usage.trim_start_matches("Usage: ").trim()
        );
        table(
            page,
            verb.get_arguments().filter(shown).filter(|arg| !sizes(arg)),
        );
    }
    if verb.get_arguments().any(|arg| sizes(&arg)) {
        page.push_str("And the [sizes of the model](#sizes-of-the-model).\n\n");
    }
    let (notes, examples) = examples(verb);
    if !notes.is_empty() {
        let _ = writeln!(page, "{notes}\n");
    }
    if let Some(examples) = examples {
        let _ = writeln!(page, "```sh\n{examples}\n```\n");
    }
    for verb in verb
        .get_subcommands_mut()
        .filter(|verb| verb.get_name() != "help")
    {
        let path = format!("{path} {}", verb.get_name());
        section(page, verb, &path, depth + 1);
    }
}

#[test]
fn the_page_about_the_commands_is_current() {
    let mut command = gpipe();
    command.build();
    let mut page = String::new();
    let mut verbs: Vec<_> = command.get_subcommands_mut().collect();
    verbs.sort_by_key(|verb| verb.get_display_order());
    for verb in verbs.into_iter().filter(|verb| verb.get_name() != "help") {
        let path = format!("gpipe-rs {}", verb.get_name());
        section(&mut page, verb, &path, 2);
    }
    let _ = writeln!(
        page,
        "## {SIZES}\n\nOf `profile` and `train`: what models can be given, with the models that \
         have it and their defaults.\n"
    );
    let train = command.find_subcommand("train").unwrap();
    table(
        &mut page,
        train
            .get_arguments()
            .filter(|arg| arg.get_help_heading() == Some(SIZES)),
    );
    assert_current("cli.md", &page);
}
