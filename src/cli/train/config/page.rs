//! The book's page about the configuration has every key.

use std::fmt::Write as _;

use clap::{Args as _, Command};

use super::super::recipe::Recipe;
use super::schema;
use crate::cli::book::{assert_current, sentence};
use crate::models::zoo::Zoo;

/// What keys are that no flag says.
const ABOUT: [(&str, &str); 12] = [
    (
        "metrics.flops_per_sample",
        "Operations that a sample takes, forward and backward, where the model is none of tokens.",
    ),
    (
        "optimizer.weight_decay",
        "`adamw` takes that share off a weight per unit of learning rate; `adam` and `sgd` add it, times the weight, to the gradient, and have 0 where it is left out.",
    ),
    (
        "optimizer.beta1",
        "How much the mean of gradients keeps, in `adamw` and `adam`.",
    ),
    (
        "optimizer.beta2",
        "How much the mean of their squares keeps, in `adamw` and `adam`.",
    ),
    (
        "optimizer.eps",
        "What is added to the root of that mean, in `adamw` and `adam`.",
    ),
    (
        "optimizer.momentum",
        "How much of the last update `sgd` keeps; by default 0.",
    ),
    (
        "optimizer.dampening",
        "How much of the gradient `sgd` leaves out of it; by default 0.",
    ),
    (
        "optimizer.nesterov",
        "Whether `sgd` looks ahead; by default not.",
    ),
    (
        "lr.steps",
        "Steps until the end of a `linear`, `cosine` or `one-cycle` schedule; by default all.",
    ),
    (
        "lr.end",
        "The rate that these end at; by default 0, and of `one-cycle` a 250,000th of its peak.",
    ),
    (
        "lr.rise",
        "Share of the steps in which `one-cycle` rises; by default 0.3.",
    ),
    (
        "lr.timescale",
        "Steps after which `inverse-sqrt` has fallen by √2; by default those of the warm-up, or 10,000.",
    ),
];

/// The table of keys of one table of the file.
fn rows(page: &mut String, table: &str, train: &Command) {
    let mut defaults = Recipe::defaults().unwrap();
    // With the numbers of the optimizer that is taken where none is named.
    defaults.update.numbers = defaults.update.resolved(defaults.steps).numbers;
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
        let said = arg.and_then(|arg| arg.get_long_help().or(arg.get_help()));
        let about = match (said, ABOUT.iter().find(|(name, _)| *name == key.name)) {
            (_, Some((_, about))) => (*about).to_owned(),
            (Some(said), None) => sentence(Some(said)),
            (None, None) => panic!("say in {} what `{}` is", file!(), key.name),
        };
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
    let train = Recipe::augment_args(Command::new("train"));
    let mut tables: Vec<String> = Vec::new();
    for key in schema(&Zoo::builtin()).listed(&Recipe::defaults().unwrap()) {
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
