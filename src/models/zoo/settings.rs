//! Sizes of models, and their values.

use std::fmt;

use super::ZooError;

/// Limit of counts: beyond it no model fits a machine, and products of sizes would overflow.
const MAX_COUNT: i64 = 16_777_216;
/// Limit of layers of a kind: each is a list entry even before it is built.
const MAX_LAYERS: i64 = 4096;

/// A configurable size of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Size {
    name: String,
    default: f64,
    kind: SizeKind,
    about: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SizeKind {
    /// An integer from 1 to this.
    Count(i64),
    /// An integer from 0, which means none, to the largest count.
    OptionalCount,
    /// A positive number.
    Positive,
    /// A number from 0 to below 1.
    Probability,
    /// 0 (no) or 1 (yes).
    Switch,
}

impl Size {
    pub(super) fn count(name: &str, default: i64, about: &str) -> Self {
        Self::up_to(MAX_COUNT, name, default, about)
    }

    pub(super) fn layers(name: &str, default: i64, about: &str) -> Self {
        Self::up_to(MAX_LAYERS, name, default, about)
    }

    fn up_to(most: i64, name: &str, default: i64, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            default: default as f64,
            kind: SizeKind::Count(most),
            about: about.to_owned(),
        }
    }

    pub(super) fn optional_count(name: &str, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            default: 0.0,
            kind: SizeKind::OptionalCount,
            about: about.to_owned(),
        }
    }

    pub(super) fn positive(name: &str, default: f64, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            default,
            kind: SizeKind::Positive,
            about: about.to_owned(),
        }
    }

    pub(super) fn probability(name: &str, default: f64, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            default,
            kind: SizeKind::Probability,
            about: about.to_owned(),
        }
    }

    pub(super) fn switch(name: &str, default: bool, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            default: f64::from(u8::from(default)),
            kind: SizeKind::Switch,
            about: about.to_owned(),
        }
    }

    /// Returns the name, as before the `=`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the default.
    pub fn default_value(&self) -> f64 {
        self.default
    }

    /// Whether it is an integer.
    pub fn is_count(&self) -> bool {
        !matches!(self.kind, SizeKind::Probability | SizeKind::Positive)
    }

    /// Returns a description.
    pub fn about(&self) -> &str {
        &self.about
    }

    fn parse(&self, text: &str) -> Result<f64, ZooError> {
        let bad = |rule: String| ZooError::BadValue {
            size: self.name.clone(),
            value: text.to_owned(),
            rule,
        };
        let value: f64 = (text.parse()).map_err(|_| bad("must be a number".to_owned()))?;
        self.check(value).map_err(bad)
    }

    fn check(&self, value: f64) -> Result<f64, String> {
        let (fits, rule) = match self.kind {
            SizeKind::Count(most) => (
                value.fract() == 0.0 && (1.0..=most as f64).contains(&value),
                format!("must be a whole number from 1 to {most}"),
            ),
            SizeKind::OptionalCount => (
                value.fract() == 0.0 && (0.0..=MAX_COUNT as f64).contains(&value),
                format!("must be a whole number from 0 (none) to {MAX_COUNT}"),
            ),
            SizeKind::Positive => (
                value > 0.0 && value.is_finite(),
                "must be a number above 0".to_owned(),
            ),
            SizeKind::Probability => (
                (0.0..1.0).contains(&value),
                "must be a number from 0 to below 1".to_owned(),
            ),
            SizeKind::Switch => (
                [0.0, 1.0].contains(&value),
                "must be 0 (no) or 1 (yes)".to_owned(),
            ),
        };
        if fits { Ok(value) } else { Err(rule) }
    }
}

/// All sizes of a model with their values, in the entry's order.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    values: Vec<(String, f64)>,
}

impl Settings {
    pub(super) fn defaults(sizes: &[Size]) -> Self {
        let value = |size: &Size| (size.name.clone(), size.default);
        Self {
            values: sizes.iter().map(value).collect(),
        }
    }

    /// Sets a size from `key=value`.
    pub(super) fn set(
        &mut self,
        model: &str,
        sizes: &[Size],
        setting: &str,
    ) -> Result<(), ZooError> {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(ZooError::NoSetting {
                setting: setting.to_owned(),
            });
        };
        // Flags have dashes, settings may have either.
        let key = key.trim().replace('-', "_");
        let Some(size) = sizes.iter().find(|size| size.name == key) else {
            let all = sizes.iter().map(|size| size.name.clone()).collect();
            return Err(ZooError::unknown_size(model, &key, all));
        };
        let value = size.parse(value.trim())?;
        self.put(&key, value);
        Ok(())
    }

    pub(super) fn put(&mut self, key: &str, value: f64) {
        for (name, own) in &mut self.values {
            if name == key {
                *own = value;
            }
        }
    }

    /// Returns the value of a size.
    ///
    /// # Panics
    /// The entry has no such size: an error in the entry, not of its caller.
    pub fn value(&self, name: &str) -> f64 {
        match self.values.iter().find(|(own, _)| own == name) {
            Some((_, value)) => *value,
            None => panic!("the entry uses the size `{name}`, which it does not declare"),
        }
    }

    /// Returns the value of a count.
    ///
    /// # Panics
    /// As [`Settings::value`].
    pub fn count(&self, name: &str) -> i64 {
        self.value(name) as i64
    }

    /// Returns the value of a count as `usize`.
    ///
    /// # Panics
    /// As [`Settings::value`].
    pub fn number(&self, name: &str) -> usize {
        self.value(name) as usize
    }

    /// Returns the value of an optional count.
    ///
    /// # Panics
    /// As [`Settings::value`].
    pub fn optional_count(&self, name: &str) -> Option<i64> {
        Some(self.count(name)).filter(|&count| count > 0)
    }

    /// Whether a switch is on.
    ///
    /// # Panics
    /// As [`Settings::value`].
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) != 0.0
    }

    /// Returns all sizes and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, f64)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
    }
}

/// Formats as `layers=12 d_model=768`.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, value)) in self.iter().enumerate() {
            let blank = if number == 0 { "" } else { " " };
            write!(f, "{blank}{name}={value}")?;
        }
        Ok(())
    }
}
