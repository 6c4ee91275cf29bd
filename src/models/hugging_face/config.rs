//! `config.json`: the sizes of a model in `transformers`' words.

use serde_json::{Value, json};

use super::architecture::Architecture;
use crate::models::zoo::Settings;

/// Added to variances by every norm of either model.
const EPS: f64 = 1e-5;

pub(super) fn write(architecture: Architecture, sizes: &Settings) -> Value {
    match architecture {
        Architecture::Gpt2 => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": sizes.count("vocab"),
            "n_positions": sizes.count("context"),
            "n_embd": sizes.count("d_model"),
            "n_layer": sizes.count("layers"),
            "n_head": sizes.count("heads"),
            "n_inner": null,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": EPS,
            "resid_pdrop": sizes.value("dropout"),
            "embd_pdrop": sizes.value("dropout"),
            "attn_pdrop": sizes.value("dropout"),
            "tie_word_embeddings": true,
            "bos_token_id": null,
            "eos_token_id": null,
            "dtype": "float32",
            "torch_dtype": "float32",
        }),
        Architecture::Llama => json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": sizes.count("vocab"),
            "max_position_embeddings": sizes.count("context"),
            "hidden_size": sizes.count("d_model"),
            "num_hidden_layers": sizes.count("layers"),
            "num_attention_heads": sizes.count("heads"),
            "num_key_value_heads": sizes.count("kv_heads"),
            "head_dim": sizes.count("d_model") / sizes.count("heads"),
            "intermediate_size": sizes.count("d_ff"),
            "hidden_act": "silu",
            "rms_norm_eps": EPS,
            // Versions before 5 read the first, later ones the second.
            "rope_theta": sizes.value("theta"),
            "rope_parameters": {"rope_type": "default", "rope_theta": sizes.value("theta")},
            "attention_bias": false,
            "mlp_bias": false,
            "tie_word_embeddings": sizes.is_on("tied"),
            "bos_token_id": null,
            "eos_token_id": null,
            "dtype": "float32",
            "torch_dtype": "float32",
        }),
    }
}

/// The model and its settings, as `key=value`.
///
/// # Errors
/// The model, or something that it does, is not one of ours.
pub(super) fn read(config: &Value) -> Result<(Architecture, Vec<String>), String> {
    let fields = Fields(config);
    let (architecture, settings) = match config["model_type"].as_str() {
        Some("gpt2") => (Architecture::Gpt2, gpt2(&fields)?),
        Some("llama") => (Architecture::Llama, llama(&fields)?),
        Some(other) => {
            return Err(format!(
                "`model_type` is {other:?}, not \"gpt2\" or \"llama\""
            ));
        }
        None => return Err("is no model's config: it has no `model_type`".to_owned()),
    };
    let setting = |(key, value): (&str, f64)| format!("{key}={value}");
    Ok((architecture, settings.into_iter().map(setting).collect()))
}

type Sizes = Vec<(&'static str, f64)>;

fn gpt2(fields: &Fields<'_>) -> Result<Sizes, String> {
    let width = fields.number("n_embd", Some(768.0))?;
    let dropout = fields.number("resid_pdrop", Some(0.1))?;
    fields.is("n_inner", &json!(4.0 * width), &Value::Null)?;
    let activation = &fields.0["activation_function"];
    if activation != "gelu_pytorch_tanh" {
        fields.is(
            "activation_function",
            &json!("gelu_new"),
            &json!("gelu_new"),
        )?;
    }
    fields.is("layer_norm_epsilon", &json!(EPS), &json!(EPS))?;
    fields.is("embd_pdrop", &json!(dropout), &json!(0.1))?;
    fields.is("attn_pdrop", &json!(dropout), &json!(0.1))?;
    fields.is("scale_attn_weights", &json!(true), &json!(true))?;
    fields.is(
        "scale_attn_by_inverse_layer_idx",
        &json!(false),
        &json!(false),
    )?;
    fields.is("add_cross_attention", &json!(false), &json!(false))?;
    fields.is("tie_word_embeddings", &json!(true), &json!(true))?;
    Ok(vec![
        ("vocab", fields.number("vocab_size", Some(50_257.0))?),
        ("context", fields.number("n_positions", Some(1024.0))?),
        ("d_model", width),
        ("layers", fields.number("n_layer", Some(12.0))?),
        ("heads", fields.number("n_head", Some(12.0))?),
        ("dropout", dropout),
    ])
}

fn llama(fields: &Fields<'_>) -> Result<Sizes, String> {
    let (width, heads) = (
        fields.number("hidden_size", None)?,
        fields.number("num_attention_heads", None)?,
    );
    fields.is("head_dim", &json!(width / heads), &Value::Null)?;
    fields.is("hidden_act", &json!("silu"), &json!("silu"))?;
    fields.is("rms_norm_eps", &json!(EPS), &json!(1e-6))?;
    fields.is("attention_bias", &json!(false), &json!(false))?;
    fields.is("mlp_bias", &json!(false), &json!(false))?;
    fields.is("attention_dropout", &json!(0.0), &json!(0.0))?;
    Ok(vec![
        ("vocab", fields.number("vocab_size", None)?),
        (
            "context",
            fields.number("max_position_embeddings", Some(2048.0))?,
        ),
        ("d_model", width),
        ("layers", fields.number("num_hidden_layers", None)?),
        ("heads", heads),
        (
            "kv_heads",
            fields.number("num_key_value_heads", Some(heads))?,
        ),
        ("d_ff", fields.number("intermediate_size", None)?),
        ("theta", theta(fields)?),
        (
            "tied",
            f64::from(u8::from(fields.flag("tie_word_embeddings", false)?)),
        ),
    ])
}

/// The rotary embedding's base, where it is not stretched for longer texts.
fn theta(fields: &Fields<'_>) -> Result<f64, String> {
    let new = &fields.0["rope_parameters"];
    for (name, scaling) in [
        ("rope_scaling", &fields.0["rope_scaling"]),
        ("rope_parameters", new),
    ] {
        let kind = scaling["rope_type"].as_str().or(scaling["type"].as_str());
        if !scaling.is_null() && kind.is_some_and(|kind| kind != "default") {
            return Err(format!(
                "`{name}` is {scaling}, but `llama` has the rotary embedding unscaled"
            ));
        }
    }
    match new["rope_theta"].as_f64() {
        Some(theta) => Ok(theta),
        None => fields.number("rope_theta", Some(10_000.0)),
    }
}

struct Fields<'a>(&'a Value);

impl Fields<'_> {
    /// A number, or what `transformers` takes where it is not there.
    fn number(&self, name: &str, default: Option<f64>) -> Result<f64, String> {
        match (&self.0[name], default) {
            (Value::Null, Some(default)) => Ok(default),
            (Value::Null, None) => Err(format!("has no `{name}`")),
            (value, _) => {
                let number = value.as_f64();
                number.ok_or_else(|| format!("`{name}` is {value}, not a number"))
            }
        }
    }

    /// Whether something is so, or what `transformers` takes where it is not there.
    fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match &self.0[name] {
            Value::Null => Ok(default),
            Value::Bool(flag) => Ok(*flag),
            value => Err(format!("`{name}` is {value}, not true or false")),
        }
    }

    /// Checks that a field is what our model does; `default` is what it means not to be
    /// there, null for that.
    fn is(&self, name: &str, ours: &Value, default: &Value) -> Result<(), String> {
        let given = match &self.0[name] {
            Value::Null => default,
            given => given,
        };
        let same = match (given.as_f64(), ours.as_f64()) {
            (Some(given), Some(ours)) => (given - ours).abs() <= ours.abs() * 1e-9,
            _ => given == ours || given.is_null(),
        };
        if same {
            return Ok(());
        }
        let missing = if self.0[name].is_null() {
            " by default"
        } else {
            ""
        };
        Err(format!(
            "`{name}` is {given}{missing}, but the model here has {ours}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_our_model_does_not_do_is_refused_by_its_name() {
        let llama = json!({
            "model_type": "llama", "vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 24, "rms_norm_eps": 1e-5,
        });
        let (architecture, settings) = read(&llama).unwrap();
        assert_eq!(architecture, Architecture::Llama);
        assert!(settings.contains(&"kv_heads=4".to_owned()), "{settings:?}");
        assert!(settings.contains(&"theta=10000".to_owned()), "{settings:?}");
        assert!(settings.contains(&"tied=0".to_owned()), "{settings:?}");
        let cases = [
            (
                "rms_norm_eps",
                json!(1e-6),
                "`rms_norm_eps` is 1e-6, but the model here has",
            ),
            (
                "rms_norm_eps",
                Value::Null,
                "`rms_norm_eps` is 1e-6 by default",
            ),
            ("head_dim", json!(8), "`head_dim` is 8, but"),
            ("hidden_act", json!("gelu"), "`hidden_act` is \"gelu\""),
            ("rope_scaling", json!({"rope_type": "llama3"}), "unscaled"),
            (
                "rope_parameters",
                json!({"rope_type": "yarn", "rope_theta": 1}),
                "unscaled",
            ),
            ("vocab_size", Value::Null, "has no `vocab_size`"),
            (
                "vocab_size",
                json!("many"),
                "`vocab_size` is \"many\", not a number",
            ),
            (
                "tie_word_embeddings",
                json!("yes"),
                "`tie_word_embeddings` is \"yes\", not true or false",
            ),
            (
                "attention_dropout",
                json!(0.1),
                "`attention_dropout` is 0.1, but the model here has 0",
            ),
            ("model_type", json!("bert"), "not \"gpt2\" or \"llama\""),
            ("model_type", Value::Null, "is no model's config"),
        ];
        for (field, value, wanted) in cases {
            let mut other = llama.clone();
            other[field] = value;
            let error = read(&other).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_config_with_nothing_but_its_kind_is_gpt2() {
        let (_, settings) = read(&json!({"model_type": "gpt2"})).unwrap();
        let wanted = [
            "vocab=50257",
            "context=1024",
            "d_model=768",
            "layers=12",
            "heads=12",
        ];
        assert_eq!(settings[..5], wanted);
        for (field, value) in [("n_inner", json!(7)), ("attn_pdrop", json!(0.0))] {
            let mut other = json!({"model_type": "gpt2"});
            other[field] = value;
            assert!(read(&other).unwrap_err().contains(field));
        }
    }
}
