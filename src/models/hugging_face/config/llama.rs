//! The configuration of Llama, and of models that differ from it in few switches.

use serde_json::{Value, json};

use super::{Fields, Sizes};
use crate::zoo::Settings;

/// `transformers`' models that are all `llama` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    pub(super) fn of(model_type: &str) -> Option<Self> {
        let all = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];
        all.into_iter().find(|own| own.names().0 == model_type)
    }

    /// Returns the family with these settings.
    fn with(sizes: &Settings) -> Result<Self, String> {
        let on = |name: &str| sizes.is_on(name);
        let (qkv, out, mlp) = (on("qkv_bias"), on("out_bias"), on("mlp_bias"));
        let window = sizes.optional_count("window").is_some();
        match (on("qk_norm"), window, (qkv, out, mlp)) {
            (true, false, (false, false, false) | (true, true, false)) => Ok(Self::Qwen3),
            (false, false, (true, false, false)) => Ok(Self::Qwen2),
            (false, true, (false, false, false)) => Ok(Self::Mistral),
            (false, false, (true, true, _) | (false, false, _)) => Ok(Self::Llama),
            _ => Err(
                "transformers has no model with this choice of biases (qkv_bias, out_bias, \
                 mlp_bias), norms (qk_norm) and window together"
                    .to_owned(),
            ),
        }
    }

    /// Returns the name in configurations, and the class in Python.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Llama => ("llama", "LlamaForCausalLM"),
            Self::Mistral => ("mistral", "MistralForCausalLM"),
            Self::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Self::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
        }
    }

    /// Returns the defaults of `transformers` for the numbers of key and value heads and of tokens.
    fn defaults(self, heads: f64) -> (f64, f64) {
        match self {
            Self::Llama => (heads, 2048.0),
            Self::Mistral => (8.0, 131_072.0),
            Self::Qwen2 | Self::Qwen3 => (32.0, 32_768.0),
        }
    }
}

pub(super) fn write(sizes: &Settings) -> Result<Value, String> {
    let family = Family::with(sizes)?;
    let (kind, class) = family.names();
    let divided = sizes.count("d_model") / sizes.count("heads");
    let theta = sizes.value("theta");
    let scaling = scaling(sizes);
    let mut parameters = json!({"rope_type": "default", "rope_theta": theta});
    for (name, value) in scaling.as_object().into_iter().flatten() {
        parameters[name] = value.clone();
    }
    let mut config = json!({
        "architectures": [class],
        "model_type": kind,
        "vocab_size": sizes.count("vocab"),
        "max_position_embeddings": sizes.count("context"),
        "hidden_size": sizes.count("d_model"),
        "num_hidden_layers": sizes.count("layers"),
        "num_attention_heads": sizes.count("heads"),
        "num_key_value_heads": sizes.count("kv_heads"),
        "head_dim": sizes.optional_count("head_dim").unwrap_or(divided),
        "intermediate_size": sizes.count("d_ff"),
        "hidden_act": "silu",
        "rms_norm_eps": sizes.value("norm_eps"),
        // Versions before 5 read the first two, later ones the third.
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": parameters,
        "tie_word_embeddings": sizes.is_on("tied"),
    });
    match family {
        Family::Llama => {
            config["attention_bias"] = json!(sizes.is_on("qkv_bias"));
            config["mlp_bias"] = json!(sizes.is_on("mlp_bias"));
        }
        Family::Mistral => config["sliding_window"] = json!(sizes.optional_count("window")),
        Family::Qwen2 => config["use_sliding_window"] = json!(false),
        Family::Qwen3 => {
            config["attention_bias"] = json!(sizes.is_on("qkv_bias"));
            config["use_sliding_window"] = json!(false);
        }
    }
    Ok(config)
}

/// Returns `rope_scaling`, null without scaling.
fn scaling(sizes: &Settings) -> Value {
    let factor = sizes.value("rope_factor");
    match sizes.optional_count("rope_context") {
        Some(context) => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": sizes.value("rope_low"),
            "high_freq_factor": sizes.value("rope_high"),
            "original_max_position_embeddings": context,
        }),
        None if (factor - 1.0).abs() > 0.0 => json!({"rope_type": "linear", "factor": factor}),
        None => Value::Null,
    }
}

pub(super) fn read(fields: &Fields<'_>, family: Family) -> Result<Sizes, String> {
    let (width, heads) = (
        fields.number("hidden_size", None)?,
        fields.number("num_attention_heads", None)?,
    );
    fields.is("hidden_act", &json!("silu"), &json!("silu"))?;
    fields.is("attention_dropout", &json!(0.0), &json!(0.0))?;
    let (kv_heads, context) = family.defaults(heads);
    let context = fields.number("max_position_embeddings", Some(context))?;
    let mut sizes = vec![
        ("vocab", fields.number("vocab_size", None)?),
        ("context", context),
        ("d_model", width),
        ("layers", fields.number("num_hidden_layers", None)?),
        ("heads", heads),
        (
            "kv_heads",
            fields.number("num_key_value_heads", Some(kv_heads))?,
        ),
        ("head_dim", head_dim(fields, family, width / heads)?),
        ("d_ff", fields.number("intermediate_size", None)?),
        ("norm_eps", fields.number("rms_norm_eps", Some(1e-6))?),
        switch("tied", fields.flag("tie_word_embeddings", false)?),
    ];
    let window = window(fields, family)?.filter(|&window| window < context);
    sizes.push(("window", window.unwrap_or_default()));
    sizes.extend(switches(fields, family)?);
    sizes.extend(rope(fields)?);
    Ok(sizes)
}

fn switch(name: &'static str, on: bool) -> (&'static str, f64) {
    (name, f64::from(u8::from(on)))
}

/// Returns the head's size, or 0 if it follows from the width.
fn head_dim(fields: &Fields<'_>, family: Family, divided: f64) -> Result<f64, String> {
    let default = match family {
        Family::Qwen3 => 128.0,
        _ => divided,
    };
    let head = fields.number("head_dim", Some(default))?;
    let same = head.total_cmp(&divided).is_eq();
    Ok(if same { 0.0 } else { head })
}

/// Returns the attention window, unless it covers all tokens.
fn window(fields: &Fields<'_>, family: Family) -> Result<Option<f64>, String> {
    match family {
        Family::Llama => Ok(None),
        Family::Mistral if !fields.has("sliding_window") => Ok(Some(4096.0)),
        Family::Mistral if fields.get("sliding_window").is_null() => Ok(None),
        Family::Mistral => fields.number("sliding_window", None).map(Some),
        Family::Qwen2 | Family::Qwen3 => {
            fields.is("use_sliding_window", &json!(false), &json!(false))?;
            // Their values are unused then.
            fields.get("sliding_window");
            fields.get("max_window_layers");
            let all = fields.get("layer_types").as_array();
            match all.and_then(|all| all.iter().find(|one| *one != "full_attention")) {
                Some(other) => Err(format!(
                    "`layer_types` has {other}, but all layers here have \"full_attention\""
                )),
                None => Ok(None),
            }
        }
    }
}

fn switches(fields: &Fields<'_>, family: Family) -> Result<[(&'static str, f64); 4], String> {
    let (attention, mlp) = match family {
        Family::Llama => (
            fields.flag("attention_bias", false)?,
            fields.flag("mlp_bias", false)?,
        ),
        Family::Qwen3 => (fields.flag("attention_bias", false)?, false),
        Family::Mistral | Family::Qwen2 => (false, false),
    };
    Ok([
        switch("qkv_bias", attention || family == Family::Qwen2),
        switch("out_bias", attention),
        switch("mlp_bias", mlp),
        switch("qk_norm", family == Family::Qwen3),
    ])
}

/// Returns the rotary embedding's base, and its scaling for longer texts.
fn rope(fields: &Fields<'_>) -> Result<Sizes, String> {
    let (old, new) = (fields.get("rope_scaling"), fields.get("rope_parameters"));
    let (name, scaling) = if new.is_null() {
        ("rope_scaling", old)
    } else {
        ("rope_parameters", new)
    };
    let mut sizes = vec![
        ("rope_factor", 1.0),
        ("rope_context", 0.0),
        ("rope_low", 1.0),
        ("rope_high", 4.0),
    ];
    let own = Fields::new(scaling);
    let (new, old) = (own.get("rope_type"), own.get("type"));
    let within = |why: String| format!("`{name}`: {why}");
    let number = |key| own.number(key, None).map_err(within);
    match new.as_str().or(old.as_str()) {
        None | Some("default") => {}
        Some("linear") => sizes[0].1 = number("factor")?,
        Some("llama3") => {
            sizes[0].1 = number("factor")?;
            sizes[1].1 = number("original_max_position_embeddings")?;
            sizes[2].1 = number("low_freq_factor")?;
            sizes[3].1 = number("high_freq_factor")?;
        }
        Some(kind) => {
            return Err(format!(
                "`{name}` has the type {kind:?}, but the rotary embedding here is stretched as \
                 \"linear\" and \"llama3\" say, or not at all"
            ));
        }
    }
    let theta = match own.get("rope_theta").as_f64() {
        Some(theta) => theta,
        None => fields.number("rope_theta", Some(10_000.0))?,
    };
    // If the new form is present, the old one repeats it.
    fields.get("rope_theta");
    own.is("partial_rotary_factor", &json!(1.0), &json!(1.0))
        .map_err(within)?;
    own.check_rest().map_err(within)?;
    sizes.push(("theta", theta));
    Ok(sizes)
}
