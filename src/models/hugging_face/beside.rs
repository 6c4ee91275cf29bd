//! Tokenizer files beside the weights of a language model.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::HuggingFaceError;
use super::folder::{self, CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use super::vocabulary;

/// Settings of generation, such as end-of-text tokens.
const GENERATION: &str = "generation_config.json";
/// Files of a tokenizer besides [`TOKENIZER`], which Python reads and this library copies.
const OTHERS: [&str; 5] = [
    TOKENIZER_CONFIG,
    GENERATION,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];
/// Common names of the end-of-text token, if none is configured.
const ENDS: [&str; 6] = [
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<eos>",
];

/// A `tokenizer.json` and its companion files, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFiles {
    /// Contents of the files by name.
    files: BTreeMap<String, String>,
    ids: TokenIds,
}

/// Special tokens as in `config.json`: a number, a list of numbers, or null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenIds {
    pub(super) begin: Value,
    pub(super) end: Value,
    pub(super) pad: Value,
}

impl TokenizerFiles {
    /// Reads a `tokenizer.json` (the file, or its folder) and its companion files.
    ///
    /// *Returns* `None` if there is no such file.
    ///
    /// # Errors
    /// [`HuggingFaceError::File`]: a file cannot be read, is not JSON or is not a tokenizer.
    pub fn read(path: &Path) -> Result<Option<Self>, HuggingFaceError> {
        let (folder, file) = if path.is_dir() {
            (path.to_owned(), path.join(TOKENIZER))
        } else {
            (folder::parent(path), path.to_owned())
        };
        let Some(text) = folder::read_text(&file)? else {
            return Ok(None);
        };
        let tokenizer: Value = folder::parse(&file, &text)?;
        if tokenizer["model"].is_null() {
            let why = "is no tokenizer.json of Hugging Face's: it has no `model`";
            return Err(folder::wrong(&file, why));
        }
        let mut files = BTreeMap::from([(TOKENIZER.to_owned(), text)]);
        for name in OTHERS {
            if let Some(text) = folder::read_text(&folder.join(name))? {
                files.insert(name.to_owned(), text);
            }
        }
        let config = folder.join(CONFIG);
        let config = match folder::read_text(&config)? {
            Some(text) => folder::parse(&config, &text)?,
            None => Value::Null,
        };
        let mut own = Self {
            files,
            ids: TokenIds {
                begin: config["bos_token_id"].clone(),
                end: config["eos_token_id"].clone(),
                pad: config["pad_token_id"].clone(),
            },
        };
        if own.ids.end.is_null() {
            own.ids.end = own.named_end(&tokenizer).map_or(Value::Null, Value::from);
        }
        Ok(Some(own))
    }

    /// Makes the tokenizer of a character model: a token is a character's index in `vocabulary`.
    pub fn of_characters(vocabulary: &[char]) -> Self {
        let tokenizer = vocabulary::write(vocabulary);
        Self {
            files: BTreeMap::from([(TOKENIZER.to_owned(), format!("{tokenizer:#}\n"))]),
            ids: TokenIds::default(),
        }
    }

    /// Returns the contents of the `tokenizer.json`.
    pub fn tokenizer(&self) -> &str {
        self.files.get(TOKENIZER).map_or("", String::as_str)
    }

    /// Returns the characters of a character tokenizer, in order; `None` for other tokenizers.
    pub fn characters(&self) -> Option<Vec<char>> {
        let tokenizer = serde_json::from_str(self.tokenizer()).ok()?;
        vocabulary::read(&tokenizer)
    }

    /// Returns the end-of-text tokens: from `generation_config.json`, else from `config.json`, else
    /// from the tokenizer.
    pub fn ends(&self) -> Vec<i64> {
        let generation = self.json(GENERATION);
        let own = &generation["eos_token_id"];
        let all = if own.is_null() { &self.ids.end } else { own };
        match all {
            Value::Array(all) => all.iter().filter_map(Value::as_i64).collect(),
            one => one.as_i64().into_iter().collect(),
        }
    }

    pub(super) fn ids(&self) -> &TokenIds {
        &self.ids
    }

    /// Returns all files, including those that Python needs.
    pub(super) fn files(&self) -> BTreeMap<String, String> {
        let mut files = self.files.clone();
        files.entry(TOKENIZER_CONFIG.to_owned()).or_insert_with(|| {
            let end = self.ends().first().and_then(|&end| self.content(end));
            format!("{:#}\n", vocabulary::config(end.as_deref()))
        });
        files
    }

    fn json(&self, name: &str) -> Value {
        let text = self.files.get(name);
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Returns the end token named in the tokenizer's own files, or one with a common name.
    fn named_end(&self, tokenizer: &Value) -> Option<i64> {
        let config = self.json(TOKENIZER_CONFIG);
        let own = &config["eos_token"];
        let own = own.as_str().or(own["content"].as_str());
        let added = tokenizer["added_tokens"].as_array();
        let number = |name: &str| {
            let mut added = added.into_iter().flatten();
            let added = added.find(|token| token["content"] == name);
            let number = added.map_or(&tokenizer["model"]["vocab"][name], |token| &token["id"]);
            number.as_i64()
        };
        own.into_iter().chain(ENDS).find_map(number)
    }

    /// Returns the name of an added token.
    fn content(&self, id: i64) -> Option<String> {
        let tokenizer = self.json(TOKENIZER);
        let mut added = tokenizer["added_tokens"].as_array()?.iter();
        let token = added.find(|token| token["id"] == id)?;
        token["content"].as_str().map(str::to_owned)
    }
}
