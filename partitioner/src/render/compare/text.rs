//! The comparison for a terminal.

use super::{CauseRow, both, causes, end, numbers, wrapped};
use crate::explain::Explanation;
use crate::render::text::{Page, in_lines};
use std::fmt::Write as _;

/// Draws the measured and the predicted timeline as [`text`](crate::render::text) does, in at most
/// `width` columns (at least 20) on one time axis; below, the causes of the difference and a
/// sentence about it; `what` names the step ("Step 3"). The meaning of a cause is shown if there is
/// room for it.
pub fn compare_text(explanation: &Explanation, what: &str, width: usize) -> String {
    let width = width.clamp(20, 10_000);
    let devices = explanation.measured().devices();
    let page = Page::new(width, devices, end(explanation));
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    for (name, timeline) in both(explanation) {
        let _ = writeln!(text, "{name:<9}  {}", numbers(timeline));
        text.push_str(&page.rows(timeline));
    }
    let _ = writeln!(text, "{}", page.axis());
    let legend = page.legend(explanation.measured(), &text);
    text.push_str(&in_lines(&legend, width));
    text.push('\n');
    text.push_str(&table(&causes(explanation), width));
    text.push('\n');
    for line in wrapped(&explanation.sentence(what), width) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn table(rows: &[CauseRow], width: usize) -> String {
    let widest =
        |cell: fn(&CauseRow) -> &str| rows.iter().map(|row| cell(row).chars().count()).max();
    let name = widest(|row| row.name).unwrap_or_default();
    let delta = widest(|row| &row.delta).unwrap_or_default();
    let share = widest(|row| &row.share).unwrap_or_default();
    let mut table = String::new();
    for row in rows {
        let line = format!(
            "{:<name$}  {:>delta$}  {:>share$}",
            row.name, row.delta, row.share
        );
        let room = width.saturating_sub(line.chars().count() + 2);
        let meaning = if row.meaning.len() <= room {
            row.meaning
        } else {
            ""
        };
        let _ = writeln!(table, "{}", format!("{line}  {meaning}").trim_end());
    }
    table
}
