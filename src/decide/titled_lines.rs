//! Lines of text beside numbers, each with a title.

use gpipe_partitioner::{Machine, Timeline, VOTES};

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

/// Returns how long replicas take to all-reduce their gradients; none for one replica.
pub(crate) fn exchange(timeline: &Timeline) -> Option<Said> {
    let exchanges = timeline.exchanges().iter();
    let longest = exchanges.map(|own| own.end - own.start).max()?;
    let text = format!(
        "{longest} for the gradients of the stage that takes longest; {} of the step exposed",
        timeline.exposed()
    );
    Some(Said::new("all-reduce", text))
}

/// Returns how long processes take to agree on a step; none for one process.
pub(crate) fn agreement(machine: &Machine, step: &Timeline) -> Option<Said> {
    let processes = machine.processes();
    (processes > 1).then(|| {
        let text = format!(
            "{processes} processes take {} more until all have agreed on the step and its update",
            machine.agreement(step, VOTES)
        );
        Said::new("agreement", text)
    })
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
