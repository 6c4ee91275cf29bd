//! Character vocabularies.

use std::collections::HashMap;

/// A model's characters; a token is the index of its character.
#[derive(Debug, Clone)]
pub(crate) struct Characters {
    characters: Vec<char>,
    tokens: HashMap<char, i64>,
}

impl Characters {
    /// Makes a vocabulary of characters in token order.
    pub(crate) fn new(characters: Vec<char>) -> Self {
        let tokens = (0..).zip(&characters).map(|(token, &own)| (own, token));
        Self {
            tokens: tokens.collect(),
            characters,
        }
    }

    pub(crate) fn all(&self) -> &[char] {
        &self.characters
    }

    pub(crate) fn len(&self) -> usize {
        self.characters.len()
    }

    /// Encodes a text.
    ///
    /// # Errors
    /// A character has no token; the error gives the character, its place, and the valid ones.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i64>, String> {
        let (mut line, mut column) = (1, 1);
        let mut tokens = Vec::new();
        for character in text.chars() {
            let token = self.tokens.get(&character);
            tokens.push(*token.ok_or_else(|| {
                format!(
                    "the model does not know {character:?} (line {line}, character {column}), which \
                     is not in the text that it was trained on; it knows {}",
                    self.shown()
                )
            })?);
            match character {
                '\n' => (line, column) = (line + 1, 1),
                _ => column += 1,
            }
        }
        Ok(tokens)
    }

    /// Returns the character of a token.
    pub(crate) fn decode(&self, token: i64) -> char {
        let place = usize::try_from(token).ok();
        let own = place.and_then(|place| self.characters.get(place));
        own.copied().unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    /// Lists all characters if they fit a line, else their number.
    fn shown(&self) -> String {
        const MOST: usize = 100;
        if self.len() > MOST {
            return format!("{} others", self.len());
        }
        format!("{:?}", self.characters.iter().collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_tokens_and_strangers_are_told_with_their_place() {
        let known = Characters::new("\n abl".chars().collect());
        let tokens = known.encode("a\nb").unwrap();
        assert_eq!(tokens, [2, 0, 3]);
        let back: String = tokens.iter().map(|&token| known.decode(token)).collect();
        assert_eq!(back, "a\nb");
        assert_eq!(
            (known.decode(99), known.decode(-1)),
            ('\u{fffd}', '\u{fffd}')
        );
        let error = known.encode("all\nall?").unwrap_err();
        assert!(error.contains("'?' (line 2, character 4)"), "{error}");
        assert!(error.ends_with("it knows \"\\n abl\""), "{error}");
    }
}
