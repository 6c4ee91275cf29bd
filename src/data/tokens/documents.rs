//! Documents of token files.

use super::{BLOCK, Tokens};
use crate::{DataError, Dataset, Place, Source};

/// Token sequences up to an end token: [`Tokens::documents`].
#[derive(Debug, Clone)]
pub struct Documents {
    tokens: Tokens,
    /// End of each document, including its end token.
    ends: Vec<usize>,
    end: u32,
}

impl Tokens {
    /// Splits the tokens into documents by an end token, such as GPT-2's 50256, each including that
    /// token; for [`Dataset::pack`]. The tokens are scanned once; 8 bytes per document stay in memory.
    ///
    /// # Errors
    /// There are no tokens, or one cannot be read or is not in the vocabulary.
    pub fn documents(&self, end: u32) -> Result<Dataset<Documents>, DataError> {
        let mut ends = Vec::new();
        for start in (0..self.len()).step_by(BLOCK) {
            let mut place = start;
            self.valid(start..self.len().min(start + BLOCK), |token| {
                place += 1;
                if token == end {
                    ends.push(place);
                }
            })?;
        }
        if ends.last() != Some(&self.len()) && !self.is_empty() {
            ends.push(self.len());
        }
        if ends.is_empty() {
            return Err(DataError::Settings(
                "there is no token, and so no document".to_owned(),
            ));
        }
        let tokens = self.clone();
        Ok(Dataset::new(Documents { tokens, ends, end }))
    }
}

impl Documents {
    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[index]
    }
}

impl Source for Documents {
    type Item = Vec<i64>;

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, _: u64, index: usize) -> Result<Vec<i64>, DataError> {
        self.tokens.get(self.range(index))
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.tokens.place(self.range(index).start)
    }

    fn identity(&self) -> String {
        let (documents, end) = (self.ends.len(), self.end);
        format!(
            "{documents} documents, each to token {end}, in {}",
            self.tokens.identity()
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn documents_are_what_a_token_ends(tokens in prop::collection::vec(0_u32..4, 1..60)) {
            let documents = Tokens::new(tokens.clone()).documents(2).unwrap();
            let all: Vec<_> = (0..documents.len()).map(|n| documents.get(0, n).unwrap()).collect();
            let wanted = tokens.split_inclusive(|token| *token == 2);
            let wanted = wanted.map(|own| own.iter().map(|own| i64::from(*own)).collect());
            prop_assert_eq!(all, wanted.collect::<Vec<Vec<i64>>>());
        }
    }
}
