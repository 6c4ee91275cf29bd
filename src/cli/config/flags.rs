//! The layer of flags: clap reads each value, once, with the parser of its key.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::key::Assign;
use super::{ConfigLayer, Entry, Key, Origin, Schema, Value};

/// A flag given on the command line.
#[derive(Clone, Debug)]
pub(crate) struct GivenFlag<T> {
    /// clap's id of the flag.
    pub(crate) id: String,
    /// The given value, not necessarily valid text; lists are joined with commas.
    pub(crate) text: OsString,
    /// The parsed value, if clap has parsed it.
    pub(crate) value: Option<Assign<T>>,
}

/// A configuration that a verb exposes as flags.
pub(crate) trait HasFlags: Clone + 'static {
    /// The keys that define their own flags.
    fn own_flags() -> Schema<Self>;

    /// The heading of the flags of a table's keys in the help.
    fn heading(table: &str) -> &'static str;

    /// Returns the given flags that are defined elsewhere.
    fn other_flags(matches: &ArgMatches) -> Vec<GivenFlag<Self>>;
}

/// The flags of a configuration as a verb's arguments: one layer, without defaults.
#[derive(Clone, Debug)]
pub(crate) struct Flags<T> {
    pub(crate) given: Vec<GivenFlag<T>>,
}

impl<T: HasFlags> clap::FromArgMatches for Flags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = T::own_flags().given(matches);
        given.extend(T::other_flags(matches));
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<T: HasFlags> clap::Args for Flags<T> {
    fn augment_args(command: Command) -> Command {
        T::own_flags().add_flags(command, T::heading)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: 'static> Schema<T> {
    /// Adds the flags of the keys to a verb.
    pub(crate) fn add_flags(self, verb: Command, heading: fn(&str) -> &'static str) -> Command {
        let arg = |key: Key<T>| {
            let heading = heading(key.table());
            // As clap does with doc comments.
            let help = key.about.strip_suffix('.').unwrap_or(&key.about);
            Some(key.flag?.arg?.help(help.to_owned()).help_heading(heading))
        };
        verb.args(self.keys.into_iter().filter_map(arg).collect::<Vec<_>>())
    }

    /// Returns the flags given on the command line, without defaults.
    pub(crate) fn given(&self, matches: &ArgMatches) -> Vec<GivenFlag<T>> {
        let given = |key: &Key<T>| {
            let flag = key.flag.as_ref().filter(|flag| flag.arg.is_some())?;
            let own = matches.value_source(&flag.id) == Some(ValueSource::CommandLine);
            let texts: Vec<_> = matches.get_raw(&flag.id).filter(|_| own)?.collect();
            Some(GivenFlag {
                id: flag.id.clone(),
                text: texts.join(OsStr::new(",")),
                value: (flag.taken)(matches),
            })
        };
        self.keys.iter().filter_map(given).collect()
    }

    /// Returns the given flags as a layer.
    ///
    /// # Errors
    /// A flag's value is not valid text, which a configuration cannot hold.
    pub(crate) fn flags(&self, given: &[GivenFlag<T>]) -> Result<ConfigLayer<T>, String> {
        let entry = |key: &Key<T>| {
            let flag = key.flag.as_ref()?;
            let given = given.iter().find(|given| given.id == flag.id)?;
            let Some(text) = given.text.to_str() else {
                let text = given.text.display();
                return Some(Err(format!(
                    "{}: {text} is not UTF-8, and cannot stand in a configuration as {}: rename \
                     the file",
                    flag.written, key.name
                )));
            };
            Some(Ok(Entry {
                key: key.name.clone(),
                value: Value::Plain(text.to_owned()),
                origin: Origin::Flag(flag.written.clone()),
                read: given.value.clone(),
            }))
        };
        self.keys.iter().filter_map(entry).collect()
    }
}
