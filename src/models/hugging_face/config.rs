//! `config.json`: the sizes of a model in the terms of `transformers`.

mod fields;
mod gpt2;
mod llama;

use serde_json::{Value, json};

use super::architecture::Architecture;
use super::beside::TokenIds;
use crate::zoo::Settings;
use fields::Fields;

/// Sizes of a zoo model, by name.
type Sizes = Vec<(&'static str, f64)>;

/// How to train all other models.
const OTHERWISE: &str = "any other model of transformers is trained from a .pt2: in Python, export a module \
                         that returns its logits, and name the file with --model";

/// Supported models.
const KNOWN: &str = "\"gpt2\", \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"";

/// Returns the configuration of a model, with its special tokens.
///
/// # Errors
/// `transformers` has no model with these settings.
pub(super) fn write(
    architecture: Architecture,
    sizes: &Settings,
    ids: &TokenIds,
) -> Result<Value, String> {
    let mut config = match architecture {
        Architecture::Gpt2 => gpt2::write(sizes),
        Architecture::Llama => llama::write(sizes)?,
    };
    let all = [
        ("bos_token_id", &ids.begin),
        ("eos_token_id", &ids.end),
        ("pad_token_id", &ids.pad),
    ];
    for (name, id) in all {
        config[name] = id.clone();
    }
    for name in ["dtype", "torch_dtype"] {
        config[name] = json!("float32");
    }
    Ok(config)
}

/// Returns the model and its settings, as `key=value`.
///
/// # Errors
/// The model, or one of its features, is not supported.
pub(super) fn read(config: &Value) -> Result<(Architecture, Vec<String>), String> {
    let fields = Fields::new(config);
    let Some(kind) = config["model_type"].as_str() else {
        return Err("is no model's config: it has no `model_type`".to_owned());
    };
    if !config["quantization_config"].is_null() {
        return Err(
            "has a `quantization_config`: take the weights that were not quantized".to_owned(),
        );
    }
    let (architecture, settings) =
        computed(kind, &fields).map_err(|why| format!("{why}; {OTHERWISE}"))?;
    let setting = |(key, value): (&str, f64)| format!("{key}={value}");
    Ok((architecture, settings.into_iter().map(setting).collect()))
}

/// Returns the model of a kind and its sizes, if all its features are supported.
fn computed(kind: &str, fields: &Fields<'_>) -> Result<(Architecture, Sizes), String> {
    let read = match (kind, llama::Family::of(kind)) {
        ("gpt2", _) => (Architecture::Gpt2, gpt2::read(fields)?),
        (_, Some(family)) => (Architecture::Llama, llama::read(fields, family)?),
        _ => {
            return Err(format!(
                "`model_type` is {kind:?}, not {KNOWN}, which are those that are computed here"
            ));
        }
    };
    fields.check_rest()?;
    Ok(read)
}

#[cfg(test)]
mod tests;
