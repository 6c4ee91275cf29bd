//! Names, order and headings of flags and verbs, a short help beside the long one, and tips for
//! flags of other tools.

mod conflicts;
mod elsewhere;
mod examples;
mod foreign;
mod headings;

use clap::{Arg, Command};

pub use conflicts::unexplained;
pub use elsewhere::explained;
use examples::exemplary;
pub use examples::rewritten;
use headings::grouped;

/// Common names in the field, beside those of the flags here.
const ALIASES: [(&str, &str); 4] = [
    ("micro", "micro-batches"),
    ("chunks", "stages-per-device"),
    ("batch", "batch-size"),
    ("out", "output"),
];

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

/// A verb with more flags than this has headings, and a short help beside the long one.
const MANY: usize = 14;

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

/// Gives a command's verbs the names, order, headings and short helps of this file.
pub fn named(command: Command) -> Command {
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

/// Sets a verb's place in the list of verbs.
fn in_order(verb: Command) -> Command {
    match ORDER.iter().position(|own| *own == verb.get_name()) {
        Some(place) => verb.display_order(place),
        None => verb,
    }
}

/// Adds aliases of its flags, except those that are names of other flags.
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
