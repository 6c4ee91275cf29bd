//! What is said beside numbers: a title each, and what is to be said of it.

use super::output;

/// Columns before what a line says.
const INDENT: usize = 15;

/// A title, and what is said of it.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    title: &'static str,
    text: String,
}

impl Said {
    pub(crate) fn new(title: &'static str, text: impl Into<String>) -> Self {
        Self {
            title,
            text: text.into(),
        }
    }

    /// Whether there is anything to say.
    pub(crate) fn is_something(&self) -> bool {
        !self.text.is_empty()
    }

    /// In a sentence, for a page.
    pub(crate) fn sentence(&self) -> String {
        format!("{}: {}", self.title, self.text)
    }
}

/// All of them, a line each.
pub(crate) fn lines(all: &[Said], width: usize) -> String {
    let lines = all.iter().map(|own| line(own.title, &own.text, width));
    lines.collect()
}

/// A title and what is said of it, which goes on below itself where it is too long.
pub(crate) fn line(title: &str, text: &str, width: usize) -> String {
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
