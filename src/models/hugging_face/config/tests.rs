use super::*;

fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 24, "rms_norm_eps": 1e-5,
    })
}

fn with(mut config: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else {
        unreachable!("fields are an object")
    };
    for (name, value) in fields {
        config[name] = value;
    }
    config
}

#[track_caller]
fn settings(config: &Value, wanted: &[&str]) {
    let (architecture, settings) = read(config).unwrap();
    assert_eq!(architecture, Architecture::Llama);
    for wanted in wanted {
        assert!(
            settings.iter().any(|own| own == wanted),
            "{wanted}: {settings:?}"
        );
    }
}

#[test]
fn what_our_model_does_not_do_is_refused_by_its_name() {
    settings(
        &llama(),
        &["kv_heads=4", "theta=10000", "tied=0", "norm_eps=0.00001"],
    );
    let cases = [
        ("hidden_act", json!("gelu"), "`hidden_act` is \"gelu\""),
        (
            "rope_scaling",
            json!({"rope_type": "llama3"}),
            "`rope_scaling`: has no `factor`",
        ),
        (
            "rope_scaling",
            json!({"type": "linear", "factor": 2.0, "low": 1}),
            "`rope_scaling`: `low` is 1",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "rope_theta": 1}),
            "`rope_parameters` has the type \"yarn\"",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1, "partial_rotary_factor": 0.5}),
            "`partial_rotary_factor` is 0.5",
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
        (
            "model_type",
            json!("bert"),
            "`model_type` is \"bert\", not \"gpt2\", ",
        ),
        ("model_type", Value::Null, "is no model's config"),
        (
            "logit_scale",
            json!(0.5),
            "`logit_scale` is 0.5, and what that changes is not known",
        ),
        ("quantization_config", json!({"bits": 4}), "not quantized"),
    ];
    for (field, value, wanted) in cases {
        let error = read(&with(llama(), json!({field: value}))).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    // Disabled features, and those known to have no effect, change nothing.
    let off = json!({"use_mrope": false, "is_llama_config": true, "pruned_heads": {}});
    settings(&with(llama(), off), &["vocab=11"]);
}

#[test]
fn what_our_model_does_is_a_setting() {
    let scaled = json!({"rope_theta": 5e5, "head_dim": 8, "attention_bias": true, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0,
        "original_max_position_embeddings": 64,
    }});
    let wanted = [
        "head_dim=8",
        "theta=500000",
        "rope_factor=8",
        "rope_context=64",
        "rope_low=1.5",
        "rope_high=3",
        "qkv_bias=1",
        "out_bias=1",
        "mlp_bias=0",
        "qk_norm=0",
    ];
    settings(&with(llama(), scaled), &wanted);
    let qwen2 = json!({"model_type": "qwen2", "num_key_value_heads": 2, "rms_norm_eps": null});
    settings(
        &with(llama(), qwen2),
        &[
            "qkv_bias=1",
            "out_bias=0",
            "norm_eps=0.000001",
            "context=32768",
        ],
    );
    let qwen3 = json!({"model_type": "qwen3", "tie_word_embeddings": true});
    settings(
        &with(llama(), qwen3),
        &["head_dim=128", "qk_norm=1", "qkv_bias=0", "tied=1"],
    );
    let sliding = json!({"model_type": "qwen3", "use_sliding_window": true});
    let error = read(&with(llama(), sliding)).unwrap_err();
    assert!(error.contains("`use_sliding_window` is true"), "{error}");
}

/// If it is shorter than the context. The default is 4096.
#[test]
fn a_mistral_has_its_window() {
    let mistral = |fields| with(with(llama(), json!({"model_type": "mistral"})), fields);
    settings(
        &mistral(json!({})),
        &["window=4096", "context=131072", "kv_heads=8"],
    );
    settings(&mistral(json!({"sliding_window": null})), &["window=0"]);
    let all = json!({"sliding_window": 64, "max_position_embeddings": 64});
    settings(&mistral(all), &["window=0"]);
    let some = json!({"sliding_window": 63, "max_position_embeddings": 64});
    settings(&mistral(some), &["window=63"]);
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
    for (field, value) in [
        ("n_inner", json!(7)),
        ("attn_pdrop", json!(0.0)),
        ("rms_norm_eps", json!(1e-5)),
    ] {
        let mut other = json!({"model_type": "gpt2"});
        other[field] = value;
        assert!(read(&other).unwrap_err().contains(field));
    }
}
