//! A measured step above its prediction, on one time axis, with the causes of the difference.

mod html;
mod svg;
mod text;

pub use html::{ComparePage, StepMemory, compare_html};
pub use svg::compare_svg;
pub use text::compare_text;

use crate::explain::{Delta, Explanation};
use crate::timeline::Timeline;
use crate::units::Micros;

/// Returns the two timelines with their names, measured first.
fn both(explanation: &Explanation) -> [(&'static str, &Timeline); 2] {
    [
        ("measured", explanation.measured()),
        ("predicted", explanation.predicted()),
    ]
}

/// Returns the end of the common time axis.
fn end(explanation: &Explanation) -> Micros {
    let [measured, predicted] = both(explanation).map(|(_, timeline)| timeline.makespan());
    measured.max(predicted)
}

/// Formats a timeline's length and bubble.
fn numbers(timeline: &Timeline) -> String {
    format!(
        "{}, bubble {:.1} %",
        timeline.makespan(),
        100.0 * timeline.bubble_fraction()
    )
}

/// A row of the table of causes.
struct CauseRow {
    name: &'static str,
    delta: String,
    /// Share of the prediction.
    share: String,
    meaning: &'static str,
}

/// Returns the causes in the order of attribution, and their sum.
fn causes(explanation: &Explanation) -> Vec<CauseRow> {
    let predicted = explanation.predicted().makespan();
    let row = |name, delta: Delta, meaning| CauseRow {
        name,
        delta: longer(delta),
        share: if is_nothing(delta) {
            "0".to_owned()
        } else {
            format!("{:+.1} %", 100.0 * delta.share_of(predicted))
        },
        meaning,
    };
    let each = explanation.differences().iter().map(|difference| {
        let cause = difference.cause;
        row(cause.name(), difference.delta, cause.meaning())
    });
    let sum = row(
        "together",
        explanation.difference(),
        "measured less predicted",
    );
    each.chain([sum]).collect()
}

/// Formats a difference for a table; zero has no sign and no unit.
fn longer(delta: Delta) -> String {
    if is_nothing(delta) {
        "0".to_owned()
    } else {
        delta.to_string()
    }
}

/// Whether it is displayed as zero.
fn is_nothing(delta: Delta) -> bool {
    delta.size().to_string() == Micros::ZERO.to_string()
}

/// Breaks `text` into lines of at most `columns` characters, except for longer words.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
