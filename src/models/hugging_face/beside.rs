//! What goes beside the weights of a language model: what its tokens stand for.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::HuggingFaceError;
use super::folder::{self, CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use super::vocabulary;

/// Says how to generate: among other things where to stop.
const GENERATION: &str = "generation_config.json";
/// Files of a tokenizer besides [`TOKENIZER`], which Python reads and this library carries along.
const OTHERS: [&str; 5] = [
    TOKENIZER_CONFIG,
    GENERATION,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];
/// What the end of a text is called where nothing says so.
const ENDS: [&str; 6] = [
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<eos>",
];

/// A `tokenizer.json` with the files that belong to it, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFiles {
    /// Their text by their names.
    files: BTreeMap<String, String>,
    ids: TokenIds,
}

/// Tokens that mean something to whoever generates, as `config.json` has them: a number, a list
/// of them, or null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenIds {
    pub(super) begin: Value,
    pub(super) end: Value,
    pub(super) pad: Value,
}

impl TokenizerFiles {
    /// Reads a `tokenizer.json` (the file, or the folder that it is in) with what is beside it.
    ///
    /// *Returns* none where there is no such file.
    ///
    /// # Errors
    /// [`HuggingFaceError::File`]: a file cannot be read, is not JSON or is no tokenizer.
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

    /// The tokenizer of a model with one token a character, its place in `vocabulary`.
    pub fn of_characters(vocabulary: &[char]) -> Self {
        let tokenizer = vocabulary::write(vocabulary);
        Self {
            files: BTreeMap::from([(TOKENIZER.to_owned(), format!("{tokenizer:#}\n"))]),
            ids: TokenIds::default(),
        }
    }

    /// The text of the `tokenizer.json`.
    pub fn tokenizer(&self) -> &str {
        self.files.get(TOKENIZER).map_or("", String::as_str)
    }

    /// The characters of a tokenizer that has one token for each, in the order of their numbers;
    /// none of any other.
    pub fn characters(&self) -> Option<Vec<char>> {
        let tokenizer = serde_json::from_str(self.tokenizer()).ok()?;
        vocabulary::read(&tokenizer)
    }

    /// Tokens that end a text: what `generation_config.json` says, or else `config.json`, or what
    /// the tokenizer calls so.
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

    /// All files, with those that Python needs.
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

    /// The token that the tokenizer's own files name as the end, or that has a name which many
    /// give it.
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

    /// What an added token is called.
    fn content(&self, id: i64) -> Option<String> {
        let tokenizer = self.json(TOKENIZER);
        let mut added = tokenizer["added_tokens"].as_array()?.iter();
        let token = added.find(|token| token["id"] == id)?;
        token["content"].as_str().map(str::to_owned)
    }
}
