//! A row of the table of settings: a field, its key, its flag and what goes with them.

use clap::Arg;

use super::form::Form;
use super::key::{Assign, Beside, Flag, Keep, Key, OnResume, OnlyFor};
use crate::PipelineBuilder;

/// Everything about a setting of a `T` but the field that it is kept in: see [`settings!`].
pub(in crate::cli) struct Setting<T, F: Form> {
    key: &'static str,
    form: F,
    default: F::Value,
    flag: Option<&'static str>,
    clap: fn(Arg) -> Arg,
    help: fn(&str) -> String,
    hides_default: bool,
    on_resume: OnResume,
    only_for: Option<OnlyFor>,
    beside: Option<(Vec<&'static str>, Option<Box<Keep<T>>>)>,
    apply: Option<Box<ApplyValue<T, F>>>,
}

type ApplyValue<T, F> = dyn Fn(PipelineBuilder, &<F as Form>::Value, &T) -> PipelineBuilder;

impl<T: 'static, F: Form> Setting<T, F> {
    /// A key without a flag.
    pub(in crate::cli) fn key(key: &'static str, form: F, default: F::Value) -> Self {
        Self {
            key,
            form,
            default,
            flag: None,
            clap: |arg| arg,
            help: str::to_owned,
            hides_default: false,
            on_resume: OnResume::Noted,
            only_for: None,
            beside: None,
            apply: None,
        }
    }

    /// A key with a flag of the field's name, whose help calls the value `value_name`.
    pub(in crate::cli) fn flag(
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

    /// Another value changes no number when a run resumes, or is meant to.
    #[must_use]
    pub(in crate::cli) fn free(mut self) -> Self {
        self.on_resume = OnResume::Free;
        self
    }

    /// A run cannot resume with another value.
    #[must_use]
    pub(in crate::cli) fn fixed(mut self) -> Self {
        self.on_resume = OnResume::Fixed;
        self
    }

    /// Files have it only where it is not the default.
    #[must_use]
    pub(in crate::cli) fn hides_default(mut self) -> Self {
        self.hides_default = true;
        self
    }

    /// The value was chosen for those of other `keys`: where a higher layer changes one of
    /// them, it goes back to the default rather than being an obstacle.
    #[must_use]
    pub(in crate::cli) fn beside(mut self, keys: &[&'static str]) -> Self {
        self.beside = Some((keys.to_vec(), None));
        self
    }

    /// The same, unless it still fits: `keep` is given what held before and after the layer.
    #[must_use]
    pub(in crate::cli) fn beside_unless(
        mut self,
        keys: &[&'static str],
        keep: impl Fn(&T, &T) -> bool + 'static,
    ) -> Self {
        self.beside = Some((keys.to_vec(), Some(Box::new(keep))));
        self
    }

    /// It means something only with some of another key's values, and goes where that key
    /// changes.
    #[must_use]
    pub(in crate::cli) fn only_for(
        mut self,
        key: &'static str,
        values: &'static [&'static str],
    ) -> Self {
        self.only_for = Some(OnlyFor { key, values });
        self.beside(&[key])
    }

    /// How a pipeline is asked for it, by its value and the whole configuration.
    #[must_use]
    pub(in crate::cli) fn applied(
        mut self,
        apply: impl Fn(PipelineBuilder, &F::Value, &T) -> PipelineBuilder + 'static,
    ) -> Self {
        self.apply = Some(Box::new(apply));
        self
    }

    /// What else clap is to know of the flag.
    #[must_use]
    pub(in crate::cli) fn clap(mut self, clap: fn(Arg) -> Arg) -> Self {
        self.clap = clap;
        self
    }

    /// Makes the help from the row's text, where a part of it is known elsewhere.
    #[must_use]
    pub(in crate::cli) fn help(mut self, help: fn(&str) -> String) -> Self {
        self.help = help;
        self
    }

    /// What holds where nothing is said.
    pub(in crate::cli) fn default(&self) -> F::Value {
        self.default.clone()
    }

    /// The key of a field, which `slot` finds.
    pub(in crate::cli) fn of_field(
        self,
        field: &'static str,
        doc: &str,
        slot: Slot<T, F::Value>,
    ) -> Key<T> {
        let about = (self.help)(&sentence(doc));
        let (form, default) = (self.form.clone(), self.default.clone());
        let flag = self.flag.map(|value_name| {
            let arg = Arg::new(field).long(field.replace('_', "-"));
            let arg = arg.value_name(value_name);
            let arg = match form.default_text(&default) {
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
            on_resume: self.on_resume,
            only_for: self.only_for,
            beside: self.beside.map(|(keys, keep)| Beside {
                keys,
                keep,
                reset: slot.assign(default),
            }),
            apply: self.apply.map(|apply| -> Box<super::key::Apply<T>> {
                Box::new(move |builder, config| apply(builder, (slot.get)(config), config))
            }),
        }
    }
}

/// Where a configuration keeps a value.
pub(in crate::cli) struct Slot<T, V> {
    pub(in crate::cli) get: fn(&T) -> &V,
    pub(in crate::cli) get_mut: fn(&mut T) -> &mut V,
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

/// The lines of a doc comment as one.
fn sentence(doc: &str) -> String {
    let lines: Vec<&str> = doc.lines().map(str::trim).collect();
    lines.join(" ").trim().to_owned()
}

/// Makes a struct from rows: a doc comment, a field with its type, and the [`Setting`] that
/// says all the rest. The doc comment is also the help of the flag and what the book says of
/// the key. Fields after `and` are no settings. The name in brackets is what rows may use.
///
/// The struct gets `defaults`, what holds where nothing is said, and `keys`.
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
            /// What holds where nothing is said, and the keys.
            $vis fn table($with: $With) -> (Self, Vec<$crate::cli::config::Key<Self>>) {
                $( let $field = $row; )+
                let defaults = Self {
                    $( $field: $field.default(), )+
                    $( $other: <$Other>::default(), )*
                };
                let keys = vec![$(
                    $field.of_field(
                        stringify!($field),
                        concat!($($doc, "\n"),+),
                        $crate::cli::config::Slot {
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

pub(in crate::cli) use settings;
