//! A measured step and its prediction under each other, on one time axis, with
//! the difference named.

mod html;
mod svg;
mod text;

pub use html::{ComparePage, StepMemory, compare_html};
pub use svg::compare_svg;
pub use text::compare_text;

use crate::explain::{Delta, Explanation};
use crate::timeline::Timeline;
use crate::units::Micros;

/// The two timelines with their names, measured first.
fn both(explanation: &Explanation) -> [(&'static str, &Timeline); 2] {
    [
        ("measured", explanation.measured()),
        ("predicted", explanation.predicted()),
    ]
}

/// Where the common time axis ends.
fn end(explanation: &Explanation) -> Micros {
    let [measured, predicted] = both(explanation).map(|(_, timeline)| timeline.makespan());
    measured.max(predicted)
}

/// A timeline's length and bubble.
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
    /// Of the prediction.
    share: String,
    meaning: &'static str,
}

/// The causes in the order in which they were taken, and their sum.
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

/// A difference in a table; none has no sign and no unit.
fn longer(delta: Delta) -> String {
    if is_nothing(delta) {
        "0".to_owned()
    } else {
        delta.to_string()
    }
}

/// Whether it would be written as no time.
fn is_nothing(delta: Delta) -> bool {
    delta.size().to_string() == Micros::ZERO.to_string()
}

/// `text` in lines of at most `columns` characters, but for longer words.
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
