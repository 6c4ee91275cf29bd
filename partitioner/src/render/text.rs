//! The timeline as text: one row per device.

use super::chunks::Chunks;
use crate::ids::{DeviceId, StageId};
use crate::schedule::ActionKind;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;
use std::fmt::Write as _;

/// Draws one row per device, in at most `width` columns (at least 20), readable without colour: an action
/// starts with its name if that fits, and goes on with its kind's sign (F `>`, B `<`, I `-`, W `=`, R
/// `~`); `.` is idle. The stage is omitted if each device has one; if devices have several and it does
/// not fit everywhere, letters of all but the device's first stage are lower case. `A` and `:` mark
/// exchanges of gradients between replicas while the device is idle. Below: the time axis, the bubble,
/// and the signs.
pub fn text(timeline: &Timeline, width: usize) -> String {
    let page = Page::new(width, timeline.devices(), timeline.makespan());
    let mut picture = page.rows(timeline);
    // Writing to a String cannot fail.
    let _ = writeln!(picture, "{}", page.axis());
    let bubble = format!("bubble {:.1} %", 100.0 * timeline.bubble_fraction());
    let mut items = vec![bubble];
    items.extend(page.legend(timeline, &picture));
    picture.push_str(&in_lines(&items, page.width()));
    picture
}

/// Joins items, with space between them, into lines of at most `width` columns; longer items are dropped.
pub(super) fn in_lines(items: &[String], width: usize) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for item in items.iter().filter(|own| own.chars().count() <= width) {
        let long = line.chars().count() + 2 + item.chars().count() > width;
        if long && !line.is_empty() {
            lines.push_str(&std::mem::take(&mut line));
            lines.push('\n');
        }
        if !line.is_empty() {
            line.push_str("  ");
        }
        line.push_str(item);
    }
    lines + &line + "\n"
}

/// Whether a row has lower-case letters after its name.
fn has_small(rows: &str) -> bool {
    let mut bars = rows.lines().filter_map(|row| row.split_once('|'));
    bars.any(|(_, bars)| bars.contains(|c: char| c.is_ascii_lowercase()))
}

/// Layout of rows, and the time at their end.
pub(super) struct Page {
    margin: usize,
    columns: usize,
    end: Micros,
}

impl Page {
    pub(super) fn new(width: usize, devices: usize, end: Micros) -> Self {
        let margin = format!("dev {} |", devices.saturating_sub(1)).len();
        let columns = width.clamp(20, 10_000).saturating_sub(margin + 1).max(1);
        Self {
            margin,
            columns,
            end,
        }
    }

    /// Columns of a row, with its name and its bars.
    pub(super) fn width(&self) -> usize {
        self.margin + self.columns + 1
    }

    /// Columns per microsecond.
    fn scale(&self) -> f64 {
        self.columns as f64 / self.end.get().max(f64::MIN_POSITIVE)
    }

    /// Whether all actions have room for their names with the stage, and a gap between them.
    fn has_whole_names(&self, timeline: &Timeline) -> bool {
        let scale = self.scale();
        let fits = |span: &Span| {
            let (first, last) = cells_of(span.start, span.end, scale);
            span.action.to_string().len() < last.saturating_sub(first)
        };
        timeline.spans().iter().all(fits)
    }

    /// Returns the signs of the kinds that occur, and the meaning of the names in a picture.
    pub(super) fn legend(&self, timeline: &Timeline, picture: &str) -> Vec<String> {
        let mut items = signs(timeline);
        if Chunks::new(timeline).one_each() {
            // Names have a letter and a number only.
        } else if self.has_whole_names(timeline) {
            items.push("2F0 forward of micro-batch 0 on stage 2".to_owned());
        } else if has_small(picture) {
            items.push("F0 forward of micro-batch 0".to_owned());
            items.push("lower case: later stages of the device".to_owned());
        }
        items
    }

    /// Draws one row per device.
    pub(super) fn rows(&self, timeline: &Timeline) -> String {
        let names = Names {
            chunks: Chunks::new(timeline),
            are_whole: self.has_whole_names(timeline),
        };
        let scale = self.scale();
        let mut rows = String::new();
        for device in 0..timeline.devices() {
            let name = format!("dev {device}");
            let row = row(timeline, DeviceId(device), self.columns, scale, &names);
            // Writing to a String cannot fail.
            let _ = writeln!(rows, "{name:<w$}|{row}|", w = self.margin - 1);
        }
        rows
    }

    /// Draws start and end of the time axis.
    pub(super) fn axis(&self) -> String {
        let (margin, end) = (self.margin, self.end.to_string());
        let axis = format!(
            "{:margin$}0{end:>w$}",
            "",
            w = self.columns.saturating_sub(1)
        );
        axis.trim_end().to_owned()
    }
}

/// Returns the cells between two times.
fn cells_of(start: Micros, end: Micros, scale: f64) -> (usize, usize) {
    let cell = |time: Micros| (time.get() * scale).round() as usize;
    (cell(start), cell(end))
}

/// Returns the signs of the kinds that occur.
fn signs(timeline: &Timeline) -> Vec<String> {
    let mut legend = Vec::new();
    for kind in ActionKind::ALL {
        if timeline.spans().iter().any(|span| span.action.kind == kind) {
            let name = match kind {
                ActionKind::Forward => "forward",
                ActionKind::Backward => "backward",
                ActionKind::BackwardInput => "input gradient",
                ActionKind::BackwardWeight => "weight gradient",
                ActionKind::Recompute => "recompute",
            };
            legend.push(format!("{}{} {name}", kind.letter(), sign(kind)));
        }
    }
    if !timeline.exchanges().is_empty() {
        legend.push("A: all-reduce".to_owned());
    }
    legend.push(". idle".to_owned());
    legend
}

/// Form of the names in a picture.
struct Names {
    chunks: Chunks,
    /// Whether all names include the stage.
    are_whole: bool,
}

/// Returns the sign that fills an action of a kind.
const fn sign(kind: ActionKind) -> char {
    match kind {
        ActionKind::Forward => '>',
        ActionKind::Backward => '<',
        ActionKind::BackwardInput => '-',
        ActionKind::BackwardWeight => '=',
        ActionKind::Recompute => '~',
    }
}

/// `scale` is in columns per microsecond.
fn row(timeline: &Timeline, device: DeviceId, columns: usize, scale: f64, names: &Names) -> String {
    let mut cells = vec!['.'; columns];
    for span in timeline.spans_on(device) {
        let (first, last) = cells_of(span.start, span.end, scale);
        let name = span.action.to_string();
        let name = names.label(
            &name,
            last.saturating_sub(first),
            (device, span.action.stage),
        );
        let signs = name
            .chars()
            .chain(std::iter::repeat(sign(span.action.kind)));
        for (cell, sign) in cells.iter_mut().take(last).skip(first).zip(signs) {
            *cell = sign;
        }
    }
    for exchange in timeline.exchanges_on(device) {
        let (first, last) = cells_of(exchange.start, exchange.end, scale);
        let name = format!("{}A", exchange.stage);
        let width = last.saturating_sub(first);
        let label = names.label(&name, width, (device, exchange.stage));
        let signs = label.chars().chain(std::iter::repeat(':'));
        let idle = cells.iter_mut().take(last).skip(first).zip(signs);
        for (cell, sign) in idle.filter(|(cell, _)| **cell == '.') {
            *cell = sign;
        }
    }
    cells.into_iter().collect()
}

impl Names {
    /// Returns the longest form of a name that fits `width` columns: with the stage if all have it,
    /// without it, the letter alone, nothing. Without the stage, letters of a device's later stages are
    /// lower case.
    fn label(&self, full: &str, width: usize, of: (DeviceId, StageId)) -> String {
        let chunks = &self.chunks;
        let short = full.trim_start_matches(|c: char| c.is_ascii_digit());
        if self.are_whole && !chunks.one_each() && full.len() < width {
            return full.to_owned();
        }
        let short = match chunks.chunk(of.0, of.1) {
            0 => short.to_owned(),
            _ => short.to_lowercase(),
        };
        // Names that begin with letters need no sign between them.
        let close = usize::from(!chunks.one_each());
        let names = [(&short[..], close), (&short[..1], 1)];
        let fits = (names.into_iter()).find(|(name, more)| name.len() + more <= width);
        fits.map_or("", |(name, _)| name).to_owned()
    }
}
