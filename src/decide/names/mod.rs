//! Order and headings of verbs and flags, a short help beside the long one, and tips below errors.

mod examples;
mod headings;
mod other_tools;
mod tips;

use clap::Command;

use examples::exemplary;
pub use examples::rewritten;
pub use headings::heading;
use headings::with_short_help;
pub use tips::explained;

/// Order of verbs in the help: training and using a model, planning, several processes and this
/// machine, then documentation of this program.
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

/// Returns the build information: lines below the version.
pub fn build(libtorch: Option<&str>) -> String {
    let revision = option_env!("GPIPE_REVISION").filter(|own| !own.is_empty());
    let revision = revision.map_or_else(String::new, |own| format!("\nrevision  {own}"));
    let libtorch = libtorch.unwrap_or("none");
    let features = [
        ("cli", cfg!(feature = "torch")),
        ("png", cfg!(feature = "png")),
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

/// Gives a command's verbs their order and short helps, and their examples a width.
pub fn named(command: Command) -> Command {
    command.mut_subcommands(|verb| {
        let verb = exemplary(verb.mut_subcommands(exemplary));
        with_short_help(in_order(verb))
    })
}

/// Sets a verb's place in the list of verbs.
fn in_order(verb: Command) -> Command {
    match ORDER.iter().position(|own| *own == verb.get_name()) {
        Some(place) => verb.display_order(place),
        None => verb,
    }
}
