//! Lines of text beside numbers, each with a title.

use super::output;

/// Columns before a line's text.
const INDENT: usize = 15;

/// A title and its text.
#[derive(Clone, Debug)]
pub struct Said {
    title: &'static str,
    text: String,
}

impl Said {
    /// A text under a title.
    pub fn new(title: &'static str, text: impl Into<String>) -> Self {
        Self {
            title,
            text: text.into(),
        }
    }

    /// Whether the text is not empty.
    pub(crate) fn is_something(&self) -> bool {
        !self.text.is_empty()
    }

    /// Formats it as a sentence, for a page.
    pub fn sentence(&self) -> String {
        format!("{}: {}", self.title, self.text)
    }
}

/// Formats all as lines.
pub fn lines(all: &[Said], width: usize) -> String {
    let lines = all.iter().map(|own| line(own.title, &own.text, width));
    lines.collect()
}

/// Formats a title and its text; a long text continues below itself.
pub fn line(title: &str, text: &str, width: usize) -> String {
    let room = width.saturating_sub(INDENT).max(INDENT);
    let text = output::wrapped(text, room);
    let text = text.replace('\n', &format!("\n{:INDENT$}", ""));
    format!("{title:<INDENT$}{text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_goes_on_below_what_it_says() {
        assert_eq!(
            line("cut", "stage 0 computes long", 32),
            "cut            stage 0 computes\n               long\n"
        );
    }
}
