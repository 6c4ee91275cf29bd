//! Commands in the program's messages: text in backquotes in the source that begins with a program, or with a
//! verb of this one.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use gpipe::models::zoo::Zoo;

use super::pages::{Line, Page, root};

/// Other programs that messages name.
const PROGRAMS: [&str; 4] = ["make", "cargo", "pip", "python"];

/// All commands as one page, without duplicates. Placeholders (`{path}`, `NAME`) are filled in: as the list
/// says for the whole command, or by the preceding flag, or by name.
pub(super) fn hints(fill: &toml::Table) -> Page {
    let command = gpipe::cli::command(&Zoo::builtin()).unwrap();
    let verbs: Vec<&str> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    let mut paths = Vec::new();
    for folder in ["src", "partitioner/src"] {
        sources(&root().join(folder), &mut paths);
    }
    paths.sort();
    let mut lines: Vec<Line> = Vec::new();
    for path in paths {
        let text = strings(&fs::read_to_string(&path).unwrap());
        let place = path.strip_prefix(root()).unwrap().display().to_string();
        let spans = text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for text in spans.filter_map(|span| hint(span, &verbs, fill)) {
            if lines.iter().any(|line| line.text == text) || !complete(&command, &text) {
                continue;
            }
            let place = place.clone();
            lines.push(Line {
                place,
                text,
                height: 1,
            });
        }
    }
    let name = "messages".to_owned();
    Page { name, lines }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Source text without comments and tests, each string on one line.
fn strings(source: &str) -> String {
    let source = source.split("#[cfg(test)]").next().unwrap();
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let mut text = String::new();
    let mut joins = false;
    for line in code {
        let line = if joins { line.trim_start() } else { line };
        joins = line.ends_with('\\');
        text += line.trim_end_matches('\\');
        if !joins {
            text.push('\n');
        }
    }
    text
}

/// The command of a span, filled in; `None` if the span is no command.
fn hint(span: &str, verbs: &[&str], fill: &toml::Table) -> Option<String> {
    // The end of the string also ends the command.
    let span = span.split('"').next()?;
    let mut words = span
        .split_whitespace()
        .skip_while(|word| word.contains('='));
    let (first, second) = (words.next()?, words.next()?);
    let own = verbs.contains(&first) && second.starts_with(|c: char| c == '-' || c.is_uppercase());
    if !own && first != "gpipe-rs" && !PROGRAMS.contains(&first) {
        return None;
    }
    let by = |name: &str| fill.get(name).and_then(toml::Value::as_str);
    if let Some(whole) = by(span) {
        return Some(whole.to_owned());
    }
    let mut filled: Vec<&str> = Vec::new();
    filled.extend(own.then_some("gpipe-rs"));
    for word in span.split_whitespace() {
        let open = word.starts_with('{')
            || word.len() > 1 && word.chars().all(char::is_uppercase)
            || word == "N"
            || word == "…";
        let before = filled.last().copied();
        filled.push(match before.filter(|_| open) {
            Some(flag) => by(flag).or_else(|| by(word)).unwrap_or(word),
            None => word,
        });
    }
    Some(filled.join(" "))
}

/// Whether a command has all that it needs. In running text `gpipe-rs profile` only names the verb.
fn complete(command: &clap::Command, text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words[0] != "gpipe-rs" {
        // `pip install` alone names a way, too.
        return words[0] != "pip" || words.len() > 2;
    }
    let Err(error) = command.clone().try_get_matches_from(words) else {
        return true;
    };
    let incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    !incomplete && !error.to_string().contains("a value is required for")
}

#[test]
fn hints_are_found_and_filled_in() {
    let source = "// `make no`\nf(\"see `train --plan {}` or `VERB --x`, \\\n   `TORCH=full make \\\n  build`\");\n#[cfg(test)]\n`make no`";
    let fill = toml::toml! { "--plan" = "p.json" };
    let text = strings(source);
    let spans = text.split('`').skip(1).step_by(2);
    let found: Vec<_> = spans
        .filter_map(|span| hint(span, &["train"], &fill))
        .collect();
    assert_eq!(
        found,
        ["gpipe-rs train --plan p.json", "TORCH=full make build"]
    );
}
