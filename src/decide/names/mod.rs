//! Flags as people know them: other names, headings, a short help beside the long one, and what the
//! flags of other tools are called here.

mod conflicts;
mod elsewhere;
mod examples;
mod foreign;
mod headings;

use clap::{Arg, Command};

#[cfg(test)]
pub(crate) use conflicts::unexplained;
pub(crate) use elsewhere::explained;
use examples::exemplary;
#[cfg(feature = "cli")]
pub(crate) use examples::rewritten;
use headings::grouped;

/// Names of the field, beside those that a flag has here.
const ALIASES: [(&str, &str); 4] = [
    ("micro", "micro-batches"),
    ("chunks", "stages-per-device"),
    ("batch", "batch-size"),
    ("out", "output"),
];

/// The verbs as the help lists them: what trains and uses a model, what plans, several processes and
/// this machine, and what is written about this program.
const ORDER: [&str; 15] = [
    "train",
    "generate",
    "eval",
    "predict",
    "export",
    "plot",
    "profile",
    "plan",
    "simulate",
    "schedule",
    "launch",
    "env",
    "models",
    "completions",
    "man",
];

/// A verb with more flags than these has headings for them, and a short help beside the long one.
const MANY: usize = 14;

/// What this program was built from and with: lines behind its version.
pub(crate) fn build(libtorch: Option<&str>) -> String {
    let revision = option_env!("GPIPE_REVISION").filter(|own| !own.is_empty());
    let revision = revision.map_or_else(String::new, |own| format!("\nrevision  {own}"));
    let libtorch = libtorch.unwrap_or("none");
    let features = [
        ("cli", cfg!(feature = "cli")),
        ("png", cfg!(feature = "png")),
        ("tokenizers", cfg!(feature = "tokenizers")),
        ("parquet", cfg!(feature = "parquet")),
        ("object-store", cfg!(feature = "object-store")),
    ];
    let features = features
        .into_iter()
        .filter_map(|(name, on)| on.then_some(name));
    let features: Vec<&str> = features.collect();
    let features = match features.as_slice() {
        [] => "none".to_owned(),
        some => some.join(", "),
    };
    format!("{revision}\nlibtorch  {libtorch}\nfeatures  {features}")
}

/// A command whose verbs have the names, order, headings and short helps of this file.
pub(crate) fn named(command: Command) -> Command {
    command.mut_subcommands(|verb| {
        let verb = in_order(verb);
        let verb = exemplary(verb.mut_subcommands(|verb| exemplary(aliased(verb))));
        let many = verb.get_arguments().count() > MANY;
        let verb = aliased(verb);
        let name = verb.get_name().to_owned();
        if many {
            verb.mut_args(move |arg| grouped(&name, arg))
        } else {
            verb
        }
    })
}

/// At its place in the list of verbs.
fn in_order(verb: Command) -> Command {
    match ORDER.iter().position(|own| *own == verb.get_name()) {
        Some(place) => verb.display_order(place),
        None => verb,
    }
}

/// With the other names of its flags, where no other flag has them.
fn aliased(verb: Command) -> Command {
    let taken: Vec<String> = verb
        .get_arguments()
        .filter_map(Arg::get_long)
        .map(str::to_owned)
        .collect();
    let short = verb.get_arguments().any(|arg| arg.get_short() == Some('o'));
    verb.mut_args(move |arg| {
        let Some((own, other)) = ALIASES.iter().find(|(own, _)| arg.get_long() == Some(*own))
        else {
            return arg;
        };
        if taken.iter().any(|taken| taken == other) {
            return arg;
        }
        let arg = arg.visible_alias(*other);
        if *own == "out" && !short {
            arg.short('o')
        } else {
            arg
        }
    })
}
