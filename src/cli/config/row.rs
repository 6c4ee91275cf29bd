//! A row of the table of settings: a field, its key, its flag and its rules.

use clap::Arg;

use super::form::Form;
use super::key::{Assign, Beside, Flag, Keep, Key, OnResume, OnlyFor, Sets};
use gpipe_torch::{PipelineBuilder, Setting};

/// A setting of a `T`, without the field that stores it: see [`settings!`].
pub(crate) struct Row<T, F: Form> {
    key: &'static str,
    form: F,
    default: F::Value,
    flag: Option<&'static str>,
    clap: fn(Arg) -> Arg,
    common: bool,
    help: fn(&str) -> String,
    hides_default: bool,
    by_case: bool,
    on_resume: OnResume,
    only_for: Option<OnlyFor>,
    /// Keys whose change makes the value invalid, unless the check says that it still fits.
    beside: Option<(Vec<&'static str>, StillFits<T>)>,
    applied: Option<(Setting, Box<ApplyValue<T, F>>)>,
}

type StillFits<T> = Option<Box<Keep<T>>>;
type ApplyValue<T, F> = dyn Fn(PipelineBuilder, &<F as Form>::Value, &T) -> PipelineBuilder;

impl<T: 'static, F: Form> Row<T, F> {
    /// A key without a flag.
    pub(crate) fn key(key: &'static str, form: F, default: F::Value) -> Self {
        Self {
            key,
            form,
            default,
            flag: None,
            clap: |arg| arg,
            common: false,
            help: str::to_owned,
            hides_default: false,
            by_case: false,
            on_resume: OnResume::Noted,
            only_for: None,
            beside: None,
            applied: None,
        }
    }

    /// A key with a flag of the field's name, whose help calls the value `value_name`.
    pub(crate) fn flag(
        key: &'static str,
        value_name: &'static str,
        form: F,
        default: F::Value,
    ) -> Self {
        Self {
            flag: Some(value_name),
            ..Self::key(key, form, default)
        }
    }

    /// A changed value affects no result of a resumed run, or is meant to.
    #[must_use]
    pub(crate) fn free(mut self) -> Self {
        self.on_resume = OnResume::Free;
        self
    }

    /// A run cannot resume with another value.
    #[must_use]
    pub(crate) fn fixed(mut self) -> Self {
        self.on_resume = OnResume::Fixed;
        self
    }

    /// Files have the key only if it differs from the default.
    #[must_use]
    pub(crate) fn hides_default(mut self) -> Self {
        self.hides_default = true;
        self
    }

    /// The default follows from other settings: the row's text says how, and help shows no value.
    #[must_use]
    pub(crate) fn by_case(mut self) -> Self {
        self.by_case = true;
        self
    }

    /// The value depends on other `keys`: if a higher layer changes one of them, it is reset to the
    /// default instead of causing an error.
    #[must_use]
    pub(crate) fn beside(mut self, keys: &[&'static str]) -> Self {
        self.beside = Some((keys.to_vec(), None));
        self
    }

    /// Like `beside`, but keeps the value if `keep` accepts the configurations before and after the
    /// layer.
    #[must_use]
    pub(crate) fn beside_unless(
        mut self,
        keys: &[&'static str],
        keep: impl Fn(&T, &T) -> bool + 'static,
    ) -> Self {
        self.beside = Some((keys.to_vec(), Some(Box::new(keep))));
        self
    }

    /// The key applies only with some values of another key, and is reset if that key changes.
    #[must_use]
    pub(crate) fn only_for(mut self, key: &'static str, values: &'static [&'static str]) -> Self {
        self.only_for = Some(OnlyFor { key, values });
        self.beside(&[key])
    }

    /// The pipeline setting of this key, and how to apply it, given the value and the whole
    /// configuration.
    #[must_use]
    pub(crate) fn sets(
        mut self,
        setting: Setting,
        apply: impl Fn(PipelineBuilder, &F::Value, &T) -> PipelineBuilder + 'static,
    ) -> Self {
        self.applied = Some((setting, Box::new(apply)));
        self
    }

    /// The short help has the flag, too.
    #[must_use]
    pub(crate) fn common(mut self) -> Self {
        self.common = true;
        self
    }

    /// Adjusts the clap argument of the flag.
    #[must_use]
    pub(crate) fn clap(mut self, clap: fn(Arg) -> Arg) -> Self {
        self.clap = clap;
        self
    }

    /// Derives the help from the row's text, where part of it is known only at run time.
    #[must_use]
    pub(crate) fn help(mut self, help: fn(&str) -> String) -> Self {
        self.help = help;
        self
    }

    /// Returns the default.
    pub(crate) fn default(&self) -> F::Value {
        self.default.clone()
    }

    /// Makes the key of the field that `slot` accesses.
    pub(crate) fn of_field(
        self,
        field: &'static str,
        doc: &str,
        slot: Slot<T, F::Value>,
    ) -> Key<T> {
        let about = (self.help)(&sentence(doc));
        let (form, default) = (self.form.clone(), self.default.clone());
        let flag = self.flag.map(|value_name| {
            let arg = Arg::new(field).long(field.replace('_', "-"));
            let arg = arg.value_name(value_name).hide_short_help(!self.common);
            let shown = form.default_text(&default).filter(|_| !self.by_case);
            let arg = match shown {
                Some(text) => arg.default_value(text),
                None => arg,
            };
            let taken = self.form.clone();
            Flag {
                id: field.to_owned(),
                written: format!("--{}", field.replace('_', "-")),
                arg: Some((self.clap)(form.arg(arg))),
                taken: Box::new(move |matches| Some(slot.assign(taken.taken(matches, field)?))),
            }
        });
        let parse = self.form.clone();
        let hidden = self.hides_default.then(|| form.write(&default)).flatten();
        let hidden_default = hidden.clone();
        Key {
            name: self.key.to_owned(),
            kind: form.kind(),
            about,
            flag,
            parse: Box::new(move |text| Ok(slot.assign(parse.parse(text)?))),
            get: Box::new(move |config| {
                let value = form.write((slot.get)(config));
                value.filter(|value| hidden.as_ref() != Some(value))
            }),
            by_case: self.by_case,
            on_resume: self.on_resume,
            only_for: self.only_for,
            beside: self.beside.map(|(keys, keep)| Beside {
                keys,
                keep,
                reset: slot.assign(default),
            }),
            hidden_default,
            sets: self.applied.map(|(setting, apply)| Sets {
                setting,
                apply: Box::new(move |builder, config| apply(builder, (slot.get)(config), config)),
            }),
        }
    }
}

/// Accessors of a configuration's field.
pub(crate) struct Slot<T, V> {
    pub(crate) get: fn(&T) -> &V,
    pub(crate) get_mut: fn(&mut T) -> &mut V,
}

impl<T, V> Clone for Slot<T, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, V> Copy for Slot<T, V> {}

impl<T: 'static, V: Clone + Send + Sync + 'static> Slot<T, V> {
    fn assign(self, value: V) -> Assign<T> {
        Assign::new(move |config| (self.get_mut)(config).clone_from(&value))
    }
}

/// Joins the lines of a doc comment.
fn sentence(doc: &str) -> String {
    let lines: Vec<&str> = doc.lines().map(str::trim).collect();
    lines.join(" ").trim().to_owned()
}

/// Makes a struct from rows: a doc comment, a field with its type, and the [`Row`] with the rest. The
/// doc comment is also the flag's help and the key's text in the book. Fields after `and` are not
/// settings. Rows may use the name in brackets.
///
/// The struct gets `defaults` and `keys`.
macro_rules! settings {
    (
        $(#[$about:meta])*
        $vis:vis struct $Name:ident($with:ident: $With:ty) {
            $( $(#[doc = $doc:literal])+ $field:ident: $Type:ty = $row:expr; )+
        } and {
            $( $(#[$other_about:meta])* $other:ident: $Other:ty; )*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $Name {
            $( $(#[doc = $doc])+ $vis $field: $Type, )+
            $( $(#[$other_about])* $vis $other: $Other, )*
        }

        impl $Name {
            /// The defaults and the keys.
            $vis fn table($with: $With) -> (Self, Vec<$crate::config::Key<Self>>) {
                $( let $field = $row; )+
                let defaults = Self {
                    $( $field: $field.default(), )+
                    $( $other: <$Other>::default(), )*
                };
                let keys = vec![$(
                    $field.of_field(
                        stringify!($field),
                        concat!($($doc, "\n"),+),
                        $crate::config::Slot {
                            get: |config: &Self| &config.$field,
                            get_mut: |config: &mut Self| &mut config.$field,
                        },
                    )
                ),+];
                (defaults, keys)
            }
        }
    };
}

pub(crate) use settings;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clap::Command;

    use super::super::file::file;
    use super::super::form::One;
    use super::super::{Kind, Schema, Value, resolve};
    use super::*;

    static READ: AtomicUsize = AtomicUsize::new(0);

    const COUNTED: One<u8> = One {
        kind: Kind::Whole,
        parse: |text| {
            READ.fetch_add(1, Ordering::Relaxed);
            text.parse().map_err(|_| "no".to_owned())
        },
        write: |number| Value::whole(number),
    };

    settings! {
        /// One row of each kind.
        struct Own(_with: ()) {
            /// How many
            /// there are.
            how_many: u8 = Row::<Own, _>::flag("own.many", "N", COUNTED, 3);
            /// The rest.
            rest: u8 = Row::<Own, _>::key("own.rest", COUNTED, 4).beside(&["own.many"]);
        } and {
            /// No setting.
            other: Vec<u8>;
        }
    }

    fn schema() -> Schema<Own> {
        Schema::new(Own::table(()).1)
    }

    /// A flag's text was once parsed twice, and the first result discarded.
    #[test]
    fn a_flag_is_read_once_and_wins() {
        let verb = schema().add_flags(Command::new("run"), |_| "Own");
        let arg = verb.get_arguments().next().unwrap();
        assert_eq!(arg.get_help().unwrap().to_string(), "How many there are");
        let before = READ.load(Ordering::Relaxed);
        let matches = verb.get_matches_from(["run", "--how-many", "7"]);
        let given = schema().given(&matches);
        let flags = schema().flags(&given).unwrap();
        let text = "[own]\nrest = 5\nmany = 6\n";
        let below = file(std::path::Path::new("a.toml"), text).unwrap();
        let defaults = Own::table(()).0;
        assert_eq!((defaults.how_many, defaults.rest), (3, 4));
        assert!(defaults.other.is_empty());
        let (own, origins) = resolve(&schema(), defaults, &[below, flags]).unwrap();
        assert_eq!((own.how_many, own.rest), (7, 4));
        let read = READ.load(Ordering::Relaxed) - before;
        assert_eq!(read, 3, "two keys of the file, one flag");
        assert_eq!(origins.of("own.many").unwrap().to_string(), "--how-many");
        let note = "own.rest = 5 (a.toml:2) went with own.many = 6, and is chosen anew";
        assert_eq!(origins.notes, [note]);
    }
}
