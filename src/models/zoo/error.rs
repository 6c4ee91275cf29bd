//! Errors of callers of the zoo.

use gpipe_partitioner::words::{instead, meant};
use thiserror::Error;

/// An error of selecting a model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ZooError {
    /// No entry and no preset has this name.
    #[error(
        "there is no model `{name}`{}",
        instead(near.as_deref(), &format!("there are {}", names.join(", ")))
    )]
    UnknownModel {
        /// The requested name.
        name: String,
        /// A similar name, if there is one.
        near: Option<String>,
        /// All names.
        names: Vec<String>,
    },
    /// The model has no size of this name.
    #[error(
        "the model `{model}` has no size `{size}`{}",
        instead(near.as_deref(), &format!("it has {}", sizes.join(", ")))
    )]
    UnknownSize {
        /// The model.
        model: String,
        /// The requested size.
        size: String,
        /// A similar size, or the counterpart of another model's size.
        near: Option<String>,
        /// All sizes of the model.
        sizes: Vec<String>,
    },
    /// A setting that is not of the form `key=value`.
    #[error("`{setting}` is no setting: write a size and its value, such as `layers=4`")]
    NoSetting {
        /// The given setting.
        setting: String,
    },
    /// A value that is invalid for the size.
    #[error("`{size}={value}`: {rule}")]
    BadValue {
        /// The size.
        size: String,
        /// The given value.
        value: String,
        /// The rule for valid values.
        rule: String,
    },
    /// Each size is valid, but their combination is not.
    #[error("the model `{model}` cannot have these sizes: {source:#}")]
    Sizes {
        /// The model.
        model: String,
        /// The reason.
        r#source: anyhow::Error,
    },
    /// The name belongs to another model.
    #[error("there is a model `{name}` already: names of models and presets must be unique")]
    Taken {
        /// The name.
        name: String,
    },
    /// A size has an invalid name.
    #[error("the model `{model}` cannot have a size `{size}`: {rule}")]
    SizeName {
        /// The model.
        model: String,
        /// The size.
        size: String,
        /// The rule for names.
        rule: String,
    },
}

impl ZooError {
    pub(super) fn unknown_model<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<String> = names.map(str::to_owned).collect();
        Self::UnknownModel {
            name: name.to_owned(),
            near: meant(name, names.iter().map(String::as_str)).map(str::to_owned),
            names,
        }
    }

    pub(super) fn unknown_size(model: &str, size: &str, sizes: Vec<String>) -> Self {
        Self::UnknownSize {
            model: model.to_owned(),
            size: size.to_owned(),
            near: size_meant(size, &sizes).map(str::to_owned),
            sizes,
        }
    }
}

/// Sizes that correspond between models.
const SAME: [&[&str]; 4] = [
    &["layers", "depth", "blocks3"],
    &["d_model", "hidden", "width", "filters"],
    &["outputs", "classes", "vocab"],
    &["context", "image", "inputs"],
];

/// Returns the model's counterpart of another model's `size`, or else a similar name.
fn size_meant<'a>(size: &str, sizes: &'a [String]) -> Option<&'a str> {
    let mut sizes = sizes.iter().map(String::as_str);
    let groups = SAME.iter().filter(|group| group.contains(&size));
    let own = groups
        .flat_map(|group| sizes.clone().filter(|own| group.contains(own)))
        .next();
    own.or_else(|| meant(size, &mut sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_of_another_model_is_answered_with_the_own_one() {
        let mlp = ["inputs", "hidden", "depth", "outputs"].map(str::to_owned);
        assert_eq!(size_meant("layers", &mlp), Some("depth"));
        assert_eq!(size_meant("d_model", &mlp), Some("hidden"));
        assert_eq!(size_meant("classes", &mlp), Some("outputs"));
        assert_eq!(size_meant("hiden", &mlp), Some("hidden"));
        let gpt = ["layers", "d_model", "context"].map(str::to_owned);
        assert_eq!(size_meant("depth", &gpt), Some("layers"));
        assert_eq!(size_meant("contekst", &gpt), Some("context"));
        assert_eq!(size_meant("temperature", &gpt), None);
    }
}
