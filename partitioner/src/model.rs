//! Identity of the model of a profile or plan.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::json::{Object, Text, shorten, within};

/// Most bytes of a name.
const MAX_NAME: usize = 4096;
/// Most settings of a model.
const MAX_SETTINGS: usize = 64;
/// Largest setting: all whole numbers up to here are exact.
const MAX_VALUE: f64 = (1_u64 << 53) as f64;

/// A model's name and settings, as stored in profiles and plans.
///
/// # Examples
/// ```
/// use gpipe_partitioner::ModelId;
///
/// let model = ModelId::new("gpt", [("layers", 6.0), ("dropout", 0.1)]);
/// assert_eq!(model.setting("layers"), Some(6.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelId {
    name: String,
    settings: Vec<(String, f64)>,
}

impl ModelId {
    /// Creates a model with its settings, of which the first of each name counts; values that no
    /// file can hold (beyond 2⁵³ or not finite, a name of kilobytes) are left out or cut off.
    pub fn new<S: Into<String>>(
        name: impl Into<String>,
        settings: impl IntoIterator<Item = (S, f64)>,
    ) -> Self {
        let short = |text: String| text.chars().take(MAX_NAME / 4).collect::<String>();
        let settings = settings.into_iter();
        let mut settings: Vec<(String, f64)> = settings
            .map(|(name, value)| (short(name.into()), value))
            .filter(|(_, value)| value.abs() <= MAX_VALUE)
            .collect();
        settings.sort_by(|one, other| one.0.cmp(&other.0));
        settings.dedup_by(|later, first| later.0 == first.0);
        settings.truncate(MAX_SETTINGS);
        Self {
            name: short(name.into()),
            settings,
        }
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settings, by name.
    pub fn settings(&self) -> &[(String, f64)] {
        &self.settings
    }

    /// Settings in a line; none if there are none.
    pub(crate) fn sizes(&self) -> Option<String> {
        let sizes = self.settings.iter();
        let sizes: Vec<String> = sizes
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        (!sizes.is_empty()).then(|| sizes.join(" "))
    }

    /// One setting.
    pub fn setting(&self, name: &str) -> Option<f64> {
        let setting = self.settings.iter().find(|(own, _)| own == name)?;
        Some(setting.1)
    }

    pub(crate) fn to_value(&self) -> Value {
        let whole = |value: f64| value.fract() == 0.0;
        let setting = |(name, value): &(String, f64)| match *value {
            value if whole(value) => (name.clone(), json!(value as i64)),
            value => (name.clone(), json!(value)),
        };
        let settings: Map<String, Value> = self.settings.iter().map(setting).collect();
        json!({"name": self.name, "settings": settings})
    }
}

impl<'de> Deserialize<'de> for ModelId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            name: Text<MAX_NAME>,
            settings: Settings,
        }
        let Object(Fields { name, settings }) = Object::deserialize(from)?;
        Ok(Self {
            name: name.0,
            ..Self::new("", settings.0)
        })
    }
}

/// Settings by name, without duplicates.
struct Settings(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(String, f64)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut settings: Self::Value = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if settings.iter().any(|(known, _)| *known == name) {
                        let name = shorten(&name);
                        return Err(A::Error::custom(format_args!("{name} is given twice")));
                    }
                    if settings.len() == MAX_SETTINGS {
                        return Err(A::Error::custom(format_args!(
                            "has more than the {MAX_SETTINGS} fields that it may have"
                        )));
                    }
                    settings.push((name, map.next_value::<Setting>()?.0));
                }
                Ok(settings)
            }
        }
        from.deserialize_any(Fields).map(Self)
    }
}

/// One setting.
struct Setting(f64);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        within(from, -MAX_VALUE, MAX_VALUE).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<ModelId, String> {
        let text = value.to_string();
        crate::json::parse(text.as_bytes(), "p").map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_survives_writing_and_reading() {
        let sizes = [
            ("width", 64.0),
            ("dropout", 0.1),
            ("shift", -2.5),
            ("none", 0.0),
        ];
        let model = ModelId::new("mlp", sizes);
        assert_eq!(read(&model.to_value()), Ok(model.clone()));
        assert_eq!(model.to_value()["settings"]["width"].as_u64(), Some(64));
        assert_eq!(
            (model.setting("dropout"), model.setting("depth")),
            (Some(0.1), None)
        );
        // A model of odd values can be read again.
        let long = "x".repeat(5000);
        let names = (0..2000).map(|number| (number.to_string(), 1.0));
        let odd = [
            (long.clone(), f64::NAN),
            (long.clone(), 1.0),
            ("big".into(), 1e300),
        ];
        let model = ModelId::new(long, odd.into_iter().chain(names));
        assert_eq!(model.settings().len(), MAX_SETTINGS);
        assert!(read(&model.to_value()) == Ok(model));
    }

    #[test]
    fn what_is_no_model_is_refused_with_its_place() {
        let many = (0..=MAX_SETTINGS).map(|number| (number.to_string(), json!(number)));
        let many: Map<String, Value> = many.collect();
        for (value, wanted) in [
            (json!([]), "p: must be an object"),
            (json!({"name": "mlp"}), "settings: is missing"),
            (json!({"settings": {}}), "name: is missing"),
            (json!({"name": 1, "settings": {}}), "name: must be a text"),
            (
                json!({"name": "mlp", "settings": {"width": "64"}}),
                "settings.width: must be a number",
            ),
            (
                json!({"name": "mlp", "settings": {}, "colour": 1}),
                "colour: is not a field here",
            ),
            (
                json!({"name": "mlp", "settings": many}),
                "settings: has more than the 64 fields",
            ),
        ] {
            let error = read(&value).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        let twice = br#"{"name": "mlp", "settings": {"width": 1, "width": 2}}"#;
        let error = crate::json::parse::<ModelId>(twice, "p").unwrap_err();
        assert!(
            error.to_string().contains("width is given twice"),
            "{error}"
        );
    }
}
