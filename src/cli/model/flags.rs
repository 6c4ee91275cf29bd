//! A flag for every size of the zoo's models.

use std::collections::BTreeSet;

use clap::{Arg, ArgMatches, Command, Id};

use gpipe_models::zoo::{Entry, Size, Zoo};

/// The title of these flags in `--help`.
const HEADING: &str = "Sizes of the model";
/// Prefix of clap's ids of these flags.
const ID: &str = "size of the model: ";
/// Alias of `--context`.
const SEQ: &str = "seq";

/// Sizes and their values as text, in the order of the zoo's sizes.
pub(crate) type Given = Vec<(String, String)>;

/// `d_model` as `--d-model`.
pub(crate) fn flag(size: &str) -> String {
    format!("--{}", long(size))
}

fn long(size: &str) -> String {
    size.replace('_', "-")
}

/// clap's id of the flag: a verb's own argument may have the size's name.
pub(crate) fn id(size: &str) -> String {
    format!("{ID}{size}")
}

/// Returns the names of all sizes, without duplicates, in the order of the entries.
pub(crate) fn names(zoo: &Zoo) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let sizes = zoo.entries().flat_map(Entry::sizes).map(Size::name);
    sizes.filter(|name| seen.insert(*name)).collect()
}

/// Adds the flags to a verb.
///
/// # Errors
/// A size has the name of one of the verb's own flags.
pub(crate) fn add(verb: Command, zoo: &Zoo) -> Result<Command, String> {
    let names = names(zoo);
    if let Some(name) = names.iter().find(|name| is_taken(&verb, &long(name))) {
        let model = having(zoo, name).first().map_or("", |entry| entry.name());
        return Err(format!(
            "the model `{model}` cannot have a size `{name}`: {} is a flag of `{}` already; give \
             the size another name",
            flag(name),
            verb.get_name()
        ));
    }
    let args = names.iter().map(|name| arg(zoo, name, &names));
    Ok(verb.args(args.collect::<Vec<_>>()))
}

fn is_taken(verb: &Command, long: &str) -> bool {
    let own = |arg: &Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(long) || aliases.contains(&long)
    };
    // clap adds this one when it parses.
    long == "help" || verb.get_arguments().any(own)
}

fn arg(zoo: &Zoo, name: &str, names: &[&str]) -> Arg {
    let sizes = zoo.entries().flat_map(Entry::sizes);
    let all_counts = sizes.filter(|size| size.name() == name).all(Size::is_count);
    let arg = Arg::new(id(name))
        .long(long(name))
        .value_name(if all_counts { "N" } else { "X" })
        .allow_negative_numbers(true)
        .help(help(zoo, name))
        .help_heading(HEADING)
        .hide_short_help(true);
    if name == "context" && !names.contains(&SEQ) {
        arg.visible_alias(SEQ)
    } else {
        arg
    }
}

/// Returns the entries that have this size.
pub(crate) fn having<'z>(zoo: &'z Zoo, name: &str) -> Vec<&'z Entry> {
    let has = |entry: &&Entry| entry.sizes().iter().any(|size| size.name() == name);
    zoo.entries().filter(has).collect()
}

/// Describes a size, such as `width (a, b 4; c 8); chance (d 0.5)`: its meanings, models and defaults.
fn help(zoo: &Zoo, name: &str) -> String {
    let mut abouts: Groups<&str, (f64, &str)> = Vec::new();
    for entry in having(zoo, name) {
        for size in entry.sizes().iter().filter(|size| size.name() == name) {
            let default = (size.default_value(), entry.name());
            put(&mut abouts, size.about(), default);
        }
    }
    let about = |(about, models): &(&str, Vec<(f64, &str)>)| {
        let mut defaults: Groups<f64, &str> = Vec::new();
        for &(value, model) in models {
            put(&mut defaults, value, model);
        }
        let all = defaults.iter();
        let all = all.map(|(value, models)| format!("{} {value}", models.join(", ")));
        format!("{about} ({})", all.collect::<Vec<_>>().join("; "))
    };
    abouts.iter().map(about).collect::<Vec<_>>().join("; ")
}

/// Values grouped by key, in insertion order of the keys.
pub(crate) type Groups<K, V> = Vec<(K, Vec<V>)>;

fn put<K: PartialEq, V>(groups: &mut Groups<K, V>, key: K, value: V) {
    match groups.iter_mut().find(|(own, _)| *own == key) {
        Some((_, values)) => values.push(value),
        None => groups.push((key, vec![value])),
    }
}

/// Returns the given sizes, in the command line's order.
pub(crate) fn given(verb: &ArgMatches) -> Given {
    let value = |id: &Id| {
        let name = id.as_str().strip_prefix(ID)?;
        let value = verb.get_one::<String>(id.as_str())?;
        Some((name.to_owned(), value.clone()))
    };
    verb.ids().filter_map(value).collect()
}

/// The size flags as clap arguments of a verb, made from the models: see [`add`].
#[derive(Clone, Debug)]
pub(crate) struct SizeFlags(pub(crate) Given);

impl clap::FromArgMatches for SizeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(given(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = given(matches);
        Ok(())
    }
}

impl clap::Args for SizeFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zoo() -> Zoo {
        let mut zoo = Zoo::new();
        let entry = |name: &str| Entry::new(name, |_| anyhow::bail!("never made"));
        zoo.add(
            entry("a")
                .count("width", 4, "features")
                .count("deep_end", 2, "metres"),
        )
        .unwrap();
        zoo.add(entry("b").count("width", 4, "features")).unwrap();
        zoo.add(entry("c").count("width", 8, "features")).unwrap();
        zoo.add(entry("d").probability("width", 0.5, "chance"))
            .unwrap();
        zoo
    }

    #[test]
    fn a_size_is_one_flag_whose_help_says_which_models_have_it() {
        assert_eq!(
            help(&zoo(), "width"),
            "features (a, b 4; c 8); chance (d 0.5)"
        );
        let verb = add(Command::new("run"), &zoo()).unwrap();
        let matches = verb.get_matches_from(["run", "--width", "-3", "--deep-end=x"]);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            given(&matches),
            [pair("width", "-3"), pair("deep_end", "x")]
        );
    }

    #[test]
    fn a_size_with_the_name_of_a_flag_is_refused() {
        for taken in [
            Arg::new("x").long("width"),
            Arg::new("x").long("y").alias("width"),
        ] {
            let error = add(Command::new("run").arg(taken), &zoo()).unwrap_err();
            assert_eq!(
                error,
                "the model `a` cannot have a size `width`: --width is a flag of `run` already; \
                 give the size another name"
            );
        }
        let mut zoo = Zoo::new();
        let entry = Entry::new("h", |_| anyhow::bail!("never made"));
        zoo.add(entry.count("help", 1, "")).unwrap();
        assert!(add(Command::new("run"), &zoo).is_err());
    }
}
