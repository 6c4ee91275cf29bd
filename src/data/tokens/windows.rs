//! Windows of tokens with their next tokens.

use super::Tokens;
use crate::{DataError, Gathered, Place, Random, Source};

/// Tokens, and the next token of each.
type Window = (Vec<i64>, Vec<i64>);

fn cut(tokens: &Tokens, start: usize, seq: usize) -> Result<Window, DataError> {
    let mut window = tokens.get(start..start + seq + 1)?;
    let next = window[1..].to_vec();
    window.truncate(seq);
    Ok((window, next))
}

fn require(tokens: &Tokens, seq: usize) -> Result<(), DataError> {
    if seq > 0 && tokens.len() > seq {
        return Ok(());
    }
    let of = match tokens.place(0) {
        Place::File { path, .. } => format!(" of {}", path.display()),
        _ => String::new(),
    };
    Err(DataError::Settings(format!(
        "no window of {seq} tokens, with the one after it, in {} tokens{of}",
        tokens.len()
    )))
}

/// Consecutive windows: [`Tokens::windows`].
#[derive(Debug, Clone)]
pub struct RowOfWindows {
    tokens: Tokens,
    seq: usize,
}

impl RowOfWindows {
    pub(super) fn new(tokens: Tokens, seq: usize) -> Result<Self, DataError> {
        require(&tokens, seq)?;
        Ok(Self { tokens, seq })
    }
}

impl Source for RowOfWindows {
    type Item = Window;

    fn len(&self) -> usize {
        (self.tokens.len() - 1) / self.seq
    }

    fn get(&self, _: u64, index: usize) -> Result<Window, DataError> {
        cut(&self.tokens, index * self.seq, self.seq)
    }

    fn gather(&self, _: u64, indices: &[usize]) -> Option<Gathered> {
        let starts = indices.iter().map(|index| index * self.seq);
        self.tokens.gathered(self.seq, starts)
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.tokens.place(index * self.seq)
    }

    fn identity(&self) -> String {
        format!("windows of {} in {}", self.seq, self.tokens.identity())
    }
}

/// Windows at random positions: [`Tokens::random_windows`].
#[derive(Debug, Clone)]
pub struct RandomWindows {
    tokens: Tokens,
    seq: usize,
    seed: u64,
}

impl RandomWindows {
    pub(super) fn new(tokens: Tokens, seq: usize, seed: u64) -> Result<Self, DataError> {
        require(&tokens, seq)?;
        Ok(Self { tokens, seq, seed })
    }

    /// Returns the start of a window, drawn by its index.
    fn start(&self, index: usize) -> usize {
        let choices = self.tokens.len() - self.seq;
        let mut drawn = Random::new(self.seed).skipping(index as u64);
        drawn.below(choices as u64) as usize
    }
}

impl Source for RandomWindows {
    type Item = Window;

    /// Endless.
    fn len(&self) -> usize {
        usize::MAX
    }

    fn get(&self, _: u64, index: usize) -> Result<Window, DataError> {
        cut(&self.tokens, self.start(index), self.seq)
    }

    fn gather(&self, _: u64, indices: &[usize]) -> Option<Gathered> {
        let starts = indices.iter().map(|&index| self.start(index));
        self.tokens.gathered(self.seq, starts)
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.tokens.place(self.start(index))
    }

    fn identity(&self) -> String {
        format!(
            "windows of {} drawn with seed {} from {}",
            self.seq,
            self.seed,
            self.tokens.identity()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sampler, Split, TextSet};

    /// Runs begun with the sampler continue with the loader.
    #[test]
    fn random_windows_are_those_of_the_sampler() {
        let text: String = ('a'..='z').cycle().take(400).collect();
        let set = TextSet::new(&text);
        let tokens = Tokens::of_text(&set).split(Split::Train);
        let windows = RandomWindows::new(tokens, 8, 7).unwrap();
        let mut sampler = Sampler::new(7);
        for batch in 0..3 {
            let drawn = sampler.batch(&set, 4, 8).unwrap();
            for row in 0..4 {
                let (x, y) = windows.get(0, batch * 4 + row).unwrap();
                assert_eq!(drawn.tokens.row(row).to_vec(), x);
                assert_eq!(drawn.targets.row(row).to_vec(), y);
            }
        }
    }

    #[test]
    fn a_row_of_windows_has_every_token_once() {
        let windows = RowOfWindows::new(Tokens::new((0..11).collect()), 3).unwrap();
        assert_eq!(windows.len(), 3, "the fourth has no token after its last");
        assert_eq!(windows.get(0, 2).unwrap(), (vec![6, 7, 8], vec![7, 8, 9]));
        let short = RowOfWindows::new(Tokens::new((0..3).collect()), 3).unwrap_err();
        assert!(short.to_string().contains("in 3 tokens"), "{short}");
    }
}
