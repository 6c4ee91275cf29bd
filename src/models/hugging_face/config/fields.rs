//! Fields of a `config.json`, requested by name.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Fields that do not affect a model's computation: authorship, initialisation, the format of its
/// outputs in Python, and defaults of generation there.
const NEUTRAL: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    // Of SmolLM2.
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    // The oldest name of `n_positions`, in addition to it.
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    // The same sums, computed in parts.
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// A JSON object, with a record of requested fields.
pub(super) struct Fields<'a> {
    value: &'a Value,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(value: &'a Value) -> Self {
        Self {
            value,
            asked: RefCell::default(),
        }
    }

    /// Returns a field, or null if it is missing.
    pub(super) fn get(&self, name: &'static str) -> &'a Value {
        self.asked.borrow_mut().insert(name);
        &self.value[name]
    }

    /// Whether a field is present, including null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.value.get(name).is_some()
    }

    /// Returns a number, or the default of `transformers` if it is missing.
    pub(super) fn number(&self, name: &'static str, default: Option<f64>) -> Result<f64, String> {
        match (self.get(name), default) {
            (Value::Null, Some(default)) => Ok(default),
            (Value::Null, None) => Err(format!("has no `{name}`")),
            (value, _) => {
                let number = value.as_f64();
                number.ok_or_else(|| format!("`{name}` is {value}, not a number"))
            }
        }
    }

    /// Returns a boolean, or the default of `transformers` if it is missing.
    pub(super) fn flag(&self, name: &'static str, default: bool) -> Result<bool, String> {
        match self.get(name) {
            Value::Null => Ok(default),
            Value::Bool(flag) => Ok(*flag),
            value => Err(format!("`{name}` is {value}, not true or false")),
        }
    }

    /// Checks that a field has the only value that our model supports; `default` is the meaning of a
    /// missing field, null for the supported one.
    pub(super) fn is(
        &self,
        name: &'static str,
        ours: &Value,
        default: &Value,
    ) -> Result<(), String> {
        let own = self.get(name);
        let given = if own.is_null() { default } else { own };
        let same = match (given.as_f64(), ours.as_f64()) {
            (Some(given), Some(ours)) => (given - ours).abs() <= ours.abs() * 1e-9,
            _ => given == ours || given.is_null(),
        };
        if same {
            return Ok(());
        }
        let missing = if own.is_null() { " by default" } else { "" };
        Err(format!(
            "`{name}` is {given}{missing}, but the model here has {ours}"
        ))
    }

    /// Rejects fields that were not requested, as they may affect the computation, except disabled ones
    /// (null, false, empty).
    pub(super) fn check_rest(&self) -> Result<(), String> {
        let asked = self.asked.borrow();
        let known = |name: &str| {
            asked.contains(name) || NEUTRAL.contains(&name) || name.starts_with("summary_")
        };
        let mut all = self.value.as_object().into_iter().flat_map(Map::iter);
        match all.find(|(name, value)| !known(name) && is_on(value)) {
            Some((name, value)) => Err(format!(
                "`{name}` is {value}, and what that changes is not known here: take it out of the \
                 file if it changes nothing that the model computes"
            )),
            None => Ok(()),
        }
    }
}

fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
    }
}
