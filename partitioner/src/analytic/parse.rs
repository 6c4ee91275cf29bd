//! Parser of a [`Transformer`], such as `gpt3-175b,sequence=4096`.

use std::str::FromStr;

use super::known::{KNOWN_TRANSFORMERS, KnownTransformer};
use super::transformer::{Attention, Family, Transformer, TransformerError};
use crate::words::{instead, meant};

/// The keys; those required without a name come first.
const KEYS: [&str; 9] = [
    "layers",
    "hidden",
    "heads",
    "sequence",
    "vocabulary",
    "kv-heads",
    "feed-forward",
    "family",
    "attention",
];
/// Number of required keys.
const NEEDED: usize = 5;
/// Longest text that is parsed, in characters.
const MAX_CHARS: usize = 1000;

impl FromStr for Transformer {
    type Err = TransformerError;

    /// Parses a name, keys with values, or a name and keys that change it, separated by commas.
    ///
    /// # Errors
    /// [`TransformerError`].
    fn from_str(text: &str) -> Result<Self, TransformerError> {
        let wrong = |why: String| TransformerError::Text(why);
        if text.chars().count() > MAX_CHARS {
            return Err(wrong(format!("more than {MAX_CHARS} characters")));
        }
        let mut parts = text.split(',').map(str::trim).peekable();
        let named = match parts.next_if(|first| !first.contains('=')) {
            Some(name) => Some(named(name)?),
            None => None,
        };
        let mut given: Vec<(&'static str, &str)> = Vec::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| wrong(format!("`{part}` is no key with a value: {}", form())))?;
            let known = KEYS.into_iter().find(|own| *own == key.trim());
            let key = known.ok_or_else(|| {
                let choices = format!("there are {}", KEYS.join(", "));
                let key = key.trim();
                let more = instead(meant(key, KEYS), &choices);
                wrong(format!("there is no key `{key}`{more}"))
            })?;
            if given.iter().any(|(own, _)| *own == key) {
                return Err(wrong(format!("{key} is there twice")));
            }
            given.push((key, value.trim()));
        }
        match named {
            Some(own) => changed(own, &given),
            None => from_keys(&given),
        }
    }
}

fn form() -> String {
    format!(
        "give {} or a name ({}), such as layers=32,hidden=4096,heads=32,sequence=2048,vocabulary=50304",
        KEYS[..NEEDED].join(", "),
        KNOWN_TRANSFORMERS.map(|known| known.name).join(", ")
    )
}

fn named(name: &str) -> Result<Transformer, TransformerError> {
    let known = KnownTransformer::named(name).ok_or_else(|| {
        let more = instead(
            meant(name, KNOWN_TRANSFORMERS.map(|known| known.name)),
            &form(),
        );
        let name: String = name.chars().take(40).collect();
        TransformerError::Text(format!("there is no model `{name}`{more}"))
    })?;
    Ok(known.transformer())
}

/// Parses keys without a name. By default, heads of keys and the inner size follow from the others.
fn from_keys(given: &[(&'static str, &str)]) -> Result<Transformer, TransformerError> {
    let mut sizes = [0; NEEDED];
    for (size, key) in sizes.iter_mut().zip(KEYS) {
        let found = given.iter().find(|(own, _)| *own == key);
        let (_, value) =
            found.ok_or_else(|| TransformerError::Text(format!("{key} is missing: {}", form())))?;
        *size = number(key, value)?;
    }
    let [layers, hidden, heads, sequence, vocabulary] = sizes;
    let own = Transformer::gpt(layers, hidden, heads, sequence, vocabulary)?;
    changed(own, given)
}

fn changed(
    mut own: Transformer,
    given: &[(&'static str, &str)],
) -> Result<Transformer, TransformerError> {
    let has = |key: &str| given.iter().any(|(own, _)| *own == key);
    for &(key, value) in given {
        let size = match key {
            "layers" => &mut own.layers,
            "hidden" => &mut own.hidden,
            "heads" => &mut own.heads,
            "sequence" => &mut own.sequence,
            "vocabulary" => &mut own.vocabulary,
            "kv-heads" => &mut own.kv_heads,
            "feed-forward" => &mut own.feed_forward,
            "family" => {
                own.family = choice(
                    key,
                    value,
                    &[("gpt", Family::Gpt), ("llama", Family::Llama)],
                )?;
                continue;
            }
            // The last key: attention.
            _ => {
                let all = [("flash", Attention::Flash), ("stored", Attention::Stored)];
                own.attention = choice(key, value, &all)?;
                continue;
            }
        };
        *size = number(key, value)?;
    }
    if has("heads") && !has("kv-heads") {
        own.kv_heads = own.heads;
    }
    if has("hidden") && !has("feed-forward") {
        own.feed_forward = own.hidden.saturating_mul(4);
    }
    own.checked()
}

fn number(key: &str, value: &str) -> Result<usize, TransformerError> {
    let number = value.replace('_', "").parse();
    number.map_err(|_| TransformerError::Text(format!("{key}={value}: must be a whole number")))
}

fn choice<T: Copy>(key: &str, value: &str, all: &[(&str, T)]) -> Result<T, TransformerError> {
    let found = all.iter().find(|(name, _)| *name == value);
    found.map(|(_, own)| *own).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        TransformerError::Text(format!("{key}={value}: must be {}", names.join(" or ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_what_is_named() {
        let own: Transformer = "llama3-70b, sequence=4_096, attention=stored"
            .parse()
            .unwrap();
        assert_eq!((own.sequence, own.kv_heads), (4096, 8));
        assert_eq!(own.attention, Attention::Stored);
        let narrow: Transformer = "gpt3-175b,hidden=1536,heads=16".parse().unwrap();
        assert_eq!((narrow.kv_heads, narrow.feed_forward), (16, 6144));
    }

    #[test]
    fn what_is_no_transformer_is_refused_with_what_would_be() {
        let refused = |text: &str| text.parse::<Transformer>().unwrap_err().to_string();
        let keys = "layers=2,hidden=64,heads=4,sequence=8,vocabulary=100";
        for (text, expected) in [
            ("gpt3-175", "did you mean `gpt3-175b`?"),
            ("", "there is no model ``; give layers"),
            ("layers=2", "hidden is missing: give layers"),
            (
                "gpt3-175b,depth=3",
                "there is no key `depth`; there are layers",
            ),
            ("gpt3-175b,flash", "`flash` is no key with a value"),
            ("gpt3-175b,layers=1,layers=2", "layers is there twice"),
            ("gpt3-175b,layers=x", "layers=x: must be a whole number"),
            ("gpt3-175b,layers=0", "layers=0: must be from 1"),
            ("gpt3-175b,family=bert", "must be gpt or llama"),
            (
                "llama3-70b,kv-heads=7",
                "heads=64 is no multiple of kv-heads=7",
            ),
        ] {
            let error = refused(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(keys.parse::<Transformer>().is_ok());
        assert!(refused(&format!("{keys},{}", "x".repeat(2000))).contains("1000 characters"));
    }
}
