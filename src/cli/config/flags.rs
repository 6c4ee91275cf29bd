//! The layer of flags: clap reads each value, once, with the parser of its key.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::key::Assign;
use super::{ConfigLayer, Entry, Key, Origin, Schema, Value};

/// A flag that a command line gives.
#[derive(Clone, Debug)]
pub(crate) struct GivenFlag<T> {
    /// Where clap keeps it.
    pub(crate) id: String,
    /// What was given, which need not be text; a list is one with commas.
    pub(crate) text: OsString,
    /// The value, where clap has read it.
    pub(crate) value: Option<Assign<T>>,
}

/// A configuration of which a verb has flags.
pub(crate) trait HasFlags: Clone + 'static {
    /// The keys that make their flags themselves.
    fn own_flags() -> Schema<Self>;

    /// The heading of the flags of a table's keys in the help.
    fn heading(table: &str) -> &'static str;

    /// What a command line gives of the flags that others have made.
    fn other_flags(matches: &ArgMatches) -> Vec<GivenFlag<Self>>;
}

/// The flags of a configuration as a verb's arguments: what the command line itself gives, a
/// layer among others.
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

    /// The flags that the command line itself gives: defaults are left out.
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

    /// The flags that were given as a layer.
    ///
    /// # Errors
    /// One is no text: a configuration cannot say it.
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
