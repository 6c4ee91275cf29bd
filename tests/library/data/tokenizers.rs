//! Tokenizers: the tokens of a text depend on the text alone.

use gpipe::data::Tokenizer;
use serde_json::{Value, json};

/// A tokenizer of whole words.
fn words() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"sun": 0, "moon": 1, "?": 2}, "unk_token": "?"},
    })
}

/// A tokenizer that merges letters.
fn merges() -> Value {
    let vocab = json!({"a": 0, "b": 1, "ab": 2, "abab": 3});
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
        "merges": [["a", "b"], ["ab", "ab"]],
    });
    let mut own = words();
    own["model"] = model;
    own
}

fn tokens(json: &Value, text: &str) -> Vec<u32> {
    let own = Tokenizer::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!(own.encode_prompt(text).unwrap(), own.encode(text).unwrap());
    own.encode(text).unwrap()
}

/// Regression test: `truncation` silently cut 5,000 tokens of a text to 512.
#[test]
fn a_text_is_not_cut_to_what_batches_of_texts_are_cut_to() {
    let text = "sun moon ".repeat(50);
    let mut cut = words();
    cut["truncation"] = json!({
        "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0,
    });
    let own = tokens(&cut, &text);
    assert_eq!((own.len(), &own), (100, &tokens(&words(), &text)));
}

/// Regression test: nine tenths of the training data were padding, and prompts ended with it.
#[test]
fn a_text_is_not_filled_to_what_batches_of_texts_are_filled_to() {
    for strategy in [json!({"Fixed": 500}), json!("BatchLongest")] {
        let mut filled = words();
        filled["padding"] = json!({
            "strategy": strategy, "direction": "Left", "pad_to_multiple_of": 64, "pad_id": 2,
            "pad_type_id": 0, "pad_token": "?",
        });
        assert_eq!(tokens(&filled, "sun moon sun"), [0, 1, 0]);
    }
}

/// Regression test: the same text had other tokens each time, so no run could be resumed.
#[test]
fn merges_are_not_left_out_at_random() {
    let text = "abab ".repeat(200);
    for dropout in [0.5, 1.0] {
        let mut random = merges();
        random["model"]["dropout"] = json!(dropout);
        assert_eq!(tokens(&random, &text), [3; 200], "{dropout}");
    }
}
