//! The configuration of GPT-2.

use serde_json::{Value, json};

use super::{Fields, Sizes};
use crate::zoo::Settings;

/// Epsilon that every norm adds to variances.
const EPS: f64 = 1e-5;

pub(super) fn write(sizes: &Settings) -> Value {
    let context = sizes.count("context");
    let positions = sizes.optional_count("positions").unwrap_or(context);
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": sizes.count("vocab"),
        "n_positions": positions,
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
    })
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Sizes, String> {
    let width = fields.number("n_embd", Some(768.0))?;
    let dropout = fields.number("resid_pdrop", Some(0.1))?;
    fields.is("n_inner", &json!(4.0 * width), &Value::Null)?;
    let activation = fields.get("activation_function");
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
