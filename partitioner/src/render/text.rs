//! The familiar timeline as text: one row a device.

use super::chunks::Chunks;
use crate::ids::{DeviceId, StageId};
use crate::schedule::ActionKind;
use crate::timeline::Timeline;
use crate::units::Micros;
use std::fmt::Write as _;

/// One row a device, in at most `width` columns (at least 20), readable without
/// colour: an action starts with its name where that fits, and goes on with its
/// kind's sign (F `>`, B `<`, I `-`, W `=`, R `~`); `.` is idle. The stage is
/// left out where each device has one; where devices have several and it does not fit, letters of
/// all but the device's first stage are lower case. Where a device is idle and gradients of its stage are
/// exchanged between replicas stands `A` and `:`. Below: the time axis, the bubble, and the
/// signs where there is room for them.
pub fn text(timeline: &Timeline, width: usize) -> String {
    let page = Page::new(width, timeline.devices(), timeline.makespan());
    let mut picture = page.rows(timeline);
    let bubble = format!("bubble {:.1} %", 100.0 * timeline.bubble_fraction());
    let legend = format!("{bubble}   {}", legend(timeline));
    let fits = legend.len() <= width.min(page.width());
    // Writing to a String cannot fail.
    let _ = writeln!(picture, "{}", page.axis());
    let _ = writeln!(picture, "{}", if fits { legend } else { bubble });
    let small = "lower case: later stages of the device";
    if has_small(&picture) && small.len() <= width {
        let _ = writeln!(picture, "{small}");
    }
    picture
}

/// Whether letters of a row are lower case, behind its name.
fn has_small(rows: &str) -> bool {
    let mut bars = rows.lines().filter_map(|row| row.split_once('|'));
    bars.any(|(_, bars)| bars.contains(|c: char| c.is_ascii_lowercase()))
}

/// Where rows begin and end, and which time is at their end.
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

    /// One row a device.
    pub(super) fn rows(&self, timeline: &Timeline) -> String {
        let chunks = Chunks::new(timeline);
        let scale = self.columns as f64 / self.end.get().max(f64::MIN_POSITIVE);
        let mut rows = String::new();
        for device in 0..timeline.devices() {
            let name = format!("dev {device}");
            let row = row(timeline, DeviceId(device), self.columns, scale, &chunks);
            // Writing to a String cannot fail.
            let _ = writeln!(rows, "{name:<w$}|{row}|", w = self.margin - 1);
        }
        rows
    }

    /// Begin and end of the time axis.
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

/// The signs of the kinds that occur.
pub(super) fn legend(timeline: &Timeline) -> String {
    let mut legend = String::new();
    for kind in ActionKind::ALL {
        if timeline.spans().iter().any(|span| span.action.kind == kind) {
            let name = match kind {
                ActionKind::Forward => "forward",
                ActionKind::Backward => "backward",
                ActionKind::BackwardInput => "input gradient",
                ActionKind::BackwardWeight => "weight gradient",
                ActionKind::Recompute => "recompute",
            };
            // Writing to a String cannot fail.
            let _ = write!(legend, "{}{} {name}  ", kind.letter(), sign(kind));
        }
    }
    if !timeline.exchanges().is_empty() {
        legend.push_str("A: all-reduce  ");
    }
    legend + ". idle"
}

/// The sign that fills an action of a kind.
const fn sign(kind: ActionKind) -> char {
    match kind {
        ActionKind::Forward => '>',
        ActionKind::Backward => '<',
        ActionKind::BackwardInput => '-',
        ActionKind::BackwardWeight => '=',
        ActionKind::Recompute => '~',
    }
}

/// `scale` is in columns a microsecond.
fn row(
    timeline: &Timeline,
    device: DeviceId,
    columns: usize,
    scale: f64,
    chunks: &Chunks,
) -> String {
    let mut cells = vec!['.'; columns];
    for span in timeline.spans_on(device) {
        let first = (span.start.get() * scale).round() as usize;
        let last = (span.end.get() * scale).round() as usize;
        let name = span.action.to_string();
        let name = label(
            &name,
            last.saturating_sub(first),
            chunks,
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
        let first = (exchange.start.get() * scale).round() as usize;
        let last = (exchange.end.get() * scale).round() as usize;
        let name = format!("{}A", exchange.stage);
        let width = last.saturating_sub(first);
        let label = label(&name, width, chunks, (device, exchange.stage));
        let signs = label.chars().chain(std::iter::repeat(':'));
        let idle = cells.iter_mut().take(last).skip(first).zip(signs);
        for (cell, sign) in idle.filter(|(cell, _)| **cell == '.') {
            *cell = sign;
        }
    }
    cells.into_iter().collect()
}

/// The longest form of a name that leaves room in `width` columns: with the
/// stage, without it, the letter alone, nothing. Without the stage, letters of a device's later
/// stages are lower case.
fn label(full: &str, width: usize, chunks: &Chunks, of: (DeviceId, StageId)) -> String {
    let short = full.trim_start_matches(|c: char| c.is_ascii_digit());
    let short = match chunks.chunk(of.0, of.1) {
        0 => short.to_owned(),
        _ => short.to_lowercase(),
    };
    let whole = if chunks.one_each() { &short } else { full };
    // Where names begin with letters they are told from each other without a sign between them.
    let close = usize::from(!chunks.one_each());
    let names = [(whole, close), (&short, close), (&short[..1], 1)];
    let fits = (names.into_iter()).find(|(name, more)| name.len() + more <= width);
    fits.map_or("", |(name, _)| name).to_owned()
}
