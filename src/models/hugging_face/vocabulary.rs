//! `tokenizer.json` of character models.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Makes a tokenizer that maps each character to its index in `vocabulary`.
pub(super) fn write(vocabulary: &[char]) -> Value {
    let number = |(number, character): (usize, &char)| (character.to_string(), json!(number));
    let vocab: Map<String, Value> = vocabulary.iter().enumerate().map(number).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": false,
        },
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    })
}

/// Makes the tokenizer's configuration for `transformers`; `end` is the end-of-text token.
pub(super) fn config(end: Option<&str>) -> Value {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
    });
    if let Some(end) = end {
        config["eos_token"] = json!(end);
    }
    config
}

/// Returns the characters of a character tokenizer, in order; `None` for other tokenizers.
pub(super) fn read(tokenizer: &Value) -> Option<Vec<char>> {
    let model = &tokenizer["model"];
    if model["type"] != "WordLevel" {
        return None;
    }
    let mut characters = BTreeMap::new();
    for (token, number) in model["vocab"].as_object()? {
        let mut all = token.chars();
        let (character, None) = (all.next()?, all.next()) else {
            return None;
        };
        characters.insert(number.as_u64()?, character);
    }
    let numbers = characters.keys().copied();
    let dense = numbers.eq(0..characters.len() as u64);
    (dense && !characters.is_empty()).then(|| characters.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_survives_the_way_there_and_back() {
        let characters: Vec<char> = "\n !\"\\aéß鯨🐋".chars().collect();
        assert_eq!(read(&write(&characters)), Some(characters));
    }

    #[test]
    fn another_tokenizer_has_no_characters() {
        for other in [
            json!({"model": {"type": "BPE", "vocab": {"a": 0}}}),
            json!({"model": {"type": "WordLevel", "vocab": {"ab": 0}}}),
            json!({"model": {"type": "WordLevel", "vocab": {"a": 1}}}),
            json!({"model": {"type": "WordLevel", "vocab": {}}}),
            json!([]),
        ] {
            assert_eq!(read(&other), None, "{other}");
        }
    }
}
