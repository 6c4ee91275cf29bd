//! What a caller of the zoo can get wrong.

use strsim::osa_distance;
use thiserror::Error;

/// Why there is no such model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ZooError {
    /// No entry and no preset is called so.
    #[error("there is no model `{name}`: did you mean `{nearest}`? There are {}", names.join(", "))]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// The nearest name that exists.
        nearest: String,
        /// All names.
        names: Vec<String>,
    },
    /// The model has no size of this name.
    #[error(
        "the model `{model}` has no size `{size}`: did you mean `{nearest}`? It has {}",
        sizes.join(", ")
    )]
    UnknownSize {
        /// The model.
        model: String,
        /// What was asked for.
        size: String,
        /// The nearest size that exists.
        nearest: String,
        /// All sizes of the model.
        sizes: Vec<String>,
    },
    /// A setting that is not of the form `key=value`.
    #[error("`{setting}` is no setting: write a size and its value, such as `layers=4`")]
    NoSetting {
        /// What was given.
        setting: String,
    },
    /// A value that the size cannot have.
    #[error("`{size}={value}`: {rule}")]
    BadValue {
        /// The size.
        size: String,
        /// What was given.
        value: String,
        /// What it must be.
        rule: String,
    },
    /// Each size is in range, but they do not go together.
    #[error("the model `{model}` cannot have these sizes: {source:#}")]
    Sizes {
        /// The model.
        model: String,
        /// Why not.
        r#source: anyhow::Error,
    },
    /// The name belongs to another model.
    #[error("there is a model `{name}` already: names of models and presets must be unique")]
    Taken {
        /// The name.
        name: String,
    },
    /// A size that cannot be called so.
    #[error("the model `{model}` cannot have a size `{size}`: {rule}")]
    SizeName {
        /// The model.
        model: String,
        /// The size.
        size: String,
        /// What its name must be.
        rule: String,
    },
}

impl ZooError {
    pub(super) fn unknown_model<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<String> = names.map(str::to_owned).collect();
        Self::UnknownModel {
            name: name.to_owned(),
            nearest: nearest(name, &names),
            names,
        }
    }

    pub(super) fn unknown_size(model: &str, size: &str, sizes: Vec<String>) -> Self {
        Self::UnknownSize {
            model: model.to_owned(),
            size: size.to_owned(),
            nearest: meant(size, &sizes),
            sizes,
        }
    }
}

/// What models call the same, each in its own way.
const SAME: [&[&str]; 4] = [
    &["layers", "depth", "blocks3"],
    &["d_model", "hidden", "width", "filters"],
    &["outputs", "classes", "vocab"],
    &["context", "image", "inputs"],
];

/// The size that the model has for another model's `size`, or else the nearest name.
fn meant(size: &str, sizes: &[String]) -> String {
    let groups = SAME.iter().filter(|group| group.contains(&size));
    let own = groups
        .flat_map(|group| sizes.iter().filter(|own| group.contains(&own.as_str())))
        .next();
    own.cloned().unwrap_or_else(|| nearest(size, sizes))
}

/// The name with the fewest edits from `wanted`: insertions, deletions, replacements and
/// swaps of neighbours.
pub(crate) fn nearest(wanted: &str, names: &[String]) -> String {
    let wanted = wanted.to_lowercase();
    let best = (names.iter())
        // Of two as near, the one of more alike length: `gtp2` is `gpt2`, not `gpt`.
        .min_by_key(|name| {
            (
                osa_distance(&wanted, name),
                name.len().abs_diff(wanted.len()),
            )
        });
    best.cloned().unwrap_or_default()
}

/// Whether a name may be another one with slips: more of its letters are right than wrong.
#[cfg(feature = "cli")]
pub(crate) fn is_slip(wanted: &str, name: &str) -> bool {
    2 * osa_distance(&wanted.to_lowercase(), name) < wanted.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_of_another_model_is_answered_with_the_own_one() {
        let mlp = ["inputs", "hidden", "depth", "outputs"].map(str::to_owned);
        assert_eq!(meant("layers", &mlp), "depth");
        assert_eq!(meant("d_model", &mlp), "hidden");
        assert_eq!(meant("classes", &mlp), "outputs");
        assert_eq!(meant("hiden", &mlp), "hidden");
        let gpt = ["layers", "d_model", "context"].map(str::to_owned);
        assert_eq!(meant("depth", &gpt), "layers");
        assert_eq!(meant("contekst", &gpt), "context");
    }

    #[test]
    fn the_nearest_name_has_the_fewest_edits() {
        let names = ["gpt", "gpt2-xl", "llama"].map(str::to_owned);
        assert_eq!(nearest("gpt2xl", &names), "gpt2-xl");
        assert_eq!(nearest("LAMA", &names), "llama");
        // Two letters that changed places are one edit.
        let short = ["mlp", "gpt"].map(str::to_owned);
        assert_eq!(nearest("gtp", &short), "gpt");
    }
}
