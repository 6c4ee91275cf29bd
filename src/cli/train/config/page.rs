//! The book's page about the configuration has every key.

use std::fmt::Write as _;

use clap::Command;

use super::super::recipe::Recipe;
use super::schema;
use crate::cli::book::{assert_current, sentence};
use crate::models::zoo::Zoo;

/// The table of keys of one table of the file.
fn rows(page: &mut String, table: &str, train: &Command) {
    // With the numbers of the optimizer that is taken where none is named.
    let defaults = Recipe {
        warmup: None,
        ..Recipe::defaults().with_optimizer_in_full()
    };
    for key in schema(&Zoo::builtin()).listed(&defaults) {
        let Some(own) = key.name.strip_prefix(&format!("{table}.")) else {
            continue;
        };
        let size = key
            .flag
            .as_ref()
            .is_some_and(|id| id.starts_with("size of"));
        if size {
            continue;
        }
        let arg = key
            .flag
            .as_ref()
            .and_then(|id| train.get_arguments().find(|arg| arg.get_id() == id));
        let about = sentence(Some(&key.about.into()));
        let flag = arg
            .and_then(|arg| arg.get_long())
            .map_or(String::new(), |long| format!("`--{long}`"));
        let default = key
            .default
            .map_or(String::new(), |value| format!("`{value}`"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `{own}` | {} | {default} | {flag} | {about} |",
            // A word stands for the lists that most runs have.
            match (key.kind.as_str(), default.starts_with("`\"")) {
                ("a list", true) => "a text or a list",
                (kind, _) => kind,
            }
        );
    }
}

#[test]
fn the_page_about_the_configuration_is_current() {
    let train = schema(&Zoo::new()).add_flags(Command::new("train"));
    let mut tables: Vec<String> = Vec::new();
    for key in schema(&Zoo::builtin()).listed(&Recipe::defaults()) {
        let table = key.name.split('.').next().unwrap().to_owned();
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    let mut page = String::new();
    for table in tables {
        let _ = writeln!(
            page,
            "## `[{table}]`\n\n| key | type | default | flag | |\n|---|---|---|---|---|"
        );
        rows(&mut page, &table, &train);
        if table == "model" {
            page.push_str("| a size | a number | the model's | [its flag](cli.md#sizes-of-the-model) | Such as `d_model`, which is `--d-model`. |\n");
        }
        page.push('\n');
    }
    assert_current("configuration.md", &page);
}
