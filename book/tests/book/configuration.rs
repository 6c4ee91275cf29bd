//! Checks that the page about the configuration has every key.

use std::fmt::Write as _;

use clap::Command;
use gpipe::cli::{ConfigKey, config_keys};
use gpipe::models::zoo::Zoo;

use crate::made::{assert_current, gpipe, sentence};

/// A default that is derived from other values, as the key's text describes it.
fn in_words(about: &str) -> Option<&str> {
    let (_, said) = about.split_once("y default ")?;
    let ends = [". ", "; "].into_iter().filter_map(|end| said.find(end));
    let said = &said[..ends.min().unwrap_or(said.len())];
    Some(said.trim_end_matches('.'))
}

/// A default in words must not leave the cell empty, which reads as a forgotten value.
#[test]
fn a_default_in_words_is_taken_from_the_text() {
    let own = "Share of the steps that rise; by default 0.3.";
    assert_eq!(in_words(own), Some("0.3"));
    let own = "Batches ahead, by default 2; auto finds them. It changes nothing.";
    assert_eq!(in_words(own), Some("2"));
    assert_eq!(in_words("Passes over the data."), None);
}

/// The row of a key; `None` for the sizes of models, which are listed with the commands.
fn row(key: &ConfigKey, own: &str, train: &Command) -> Option<String> {
    let id = key.flag.as_ref();
    if id.is_some_and(|id| id.starts_with("size of")) {
        return None;
    }
    let arg = id.and_then(|id| train.get_arguments().find(|arg| arg.get_id() == id));
    let long = arg.and_then(|arg| arg.get_long());
    let flag = long.map_or(String::new(), |long| format!("`--{long}`"));
    let default = match &key.default {
        Some(value) => format!("`{value}`"),
        // Switches default to off.
        None if key.kind == "true or false" => "`false`".to_owned(),
        None => in_words(&key.about).unwrap_or("none").to_owned(),
    };
    // A single word stands for the usual lists.
    let kind = match (key.kind.as_str(), default.starts_with("`\"")) {
        ("a list", true) => "a text or a list",
        (kind, _) => kind,
    };
    let about = sentence(&key.about);
    Some(format!(
        "| `{own}` | {kind} | {default} | {flag} | {about} |"
    ))
}

#[test]
fn the_page_about_the_configuration_is_current() {
    let command = gpipe();
    let train = command.find_subcommand("train").unwrap();
    let mut page = String::new();
    let keys = config_keys(&Zoo::builtin());
    let table = |key: &ConfigKey| key.name.split_once('.').unwrap().0.to_owned();
    // The keys of a table need not be adjacent.
    let mut tables: Vec<String> = Vec::new();
    for table in keys.iter().map(table) {
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    for table in tables {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            page,
            "## `[{table}]`\n\n| key | type | default | flag | |\n|---|---|---|---|---|"
        );
        for key in &keys {
            let own = key.name.strip_prefix(&format!("{table}."));
            if let Some(row) = own.and_then(|own| row(key, own, train)) {
                let _ = writeln!(page, "{row}");
            }
        }
        if table == "model" {
            page.push_str("| a size | a number | the model's | [its flag](cli.md#sizes-of-the-model) | Such as `d_model`, which is `--d-model`. |\n");
        }
        page.push('\n');
    }
    assert_current("configuration.md", &page);
}
