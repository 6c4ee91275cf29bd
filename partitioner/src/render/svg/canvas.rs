//! Drawing of timelines: lanes, bars, axis and legend on one scale.

use super::legend::Legend;
use super::look::{self, EXCHANGE, look};
use super::names::Names;
use crate::ids::{DeviceId, StageId};
use crate::render::chunks::Chunks;
use crate::render::ticks;
use crate::schedule::ActionKind;
use crate::timeline::{Exchange, Span, Timeline};
use crate::units::Micros;
use std::fmt::Write as _;
use std::ops::Range;

/// Sizes in pixels.
pub(in crate::render) const WIDTH: f64 = 1200.0;
pub(in crate::render) const MARGIN: f64 = 70.0;
pub(in crate::render) const ROW: f64 = 30.0;
pub(in crate::render) const BAR: f64 = 24.0;
pub(in crate::render) const TOP: f64 = 34.0;
pub(in crate::render) const BOTTOM: f64 = 30.0;
/// Free space on the right.
pub(in crate::render) const RIGHT: f64 = 10.0;
/// Top of a picture in a page, which has the legend beside it.
pub(in crate::render) const BELOW_LEGEND: f64 = TOP - 6.0;
/// Narrower bars have no stroke, which would cover most of them; same as in `zoom.js`.
const STROKED: f64 = 3.0;
/// Approximate width of a digit on the axis.
const DIGIT: f64 = 6.8;
/// Most ticks of the time axis; same as in `zoom.js`.
const ALONG: u32 = 8;
/// Characters of a list of stages that fit the margin, and their size.
const LISTED: usize = 12;
const LIST: f64 = 9.0;

/// Describes an action, for readers who do not know the letters.
pub(in crate::render) fn described(span: &Span) -> String {
    let action = span.action;
    format!(
        "{action}: {}, stage {}, micro-batch {}",
        look(action.kind).name,
        action.stage,
        action.micro
    )
}

/// Formats start, end and duration.
pub(in crate::render) fn times(span: &Span) -> String {
    format!("{} to {} ({})", span.start, span.end, span.duration())
}

/// An SVG under construction, with the end of its time axis.
pub(in crate::render) struct Canvas {
    pub(in crate::render) svg: String,
    end: Micros,
    chunks: Chunks,
    names: Names,
    /// Names of rows, drawn on top of everything: the script keeps them in view.
    side: String,
}

impl Canvas {
    /// Begins a document that shows these heights: background, style and patterns. `label` and `words`, a
    /// short description of the picture, are already escaped.
    pub(in crate::render) fn new(
        heights: Range<f64>,
        end: Micros,
        spans: usize,
        label: &str,
        words: &str,
    ) -> Self {
        let mut svg = String::with_capacity(220 * spans + 4096);
        let own = format!(
            " xmlns=\"http://www.w3.org/2000/svg\" data-end=\"{}\"",
            end.get()
        );
        let top = heights.start;
        open(&mut svg, &own, heights, label, words);
        look::definitions(&mut svg);
        let _ = writeln!(
            svg,
            "<rect class=\"ground\" y=\"{top}\" width=\"100%\" height=\"100%\"/>"
        );
        Self::with(svg, end)
    }

    /// Begins a picture in a page that has another one, whose style and patterns it shares.
    pub(in crate::render) fn within_a_page(
        height: f64,
        end: Micros,
        label: &str,
        words: &str,
    ) -> Self {
        let mut svg = String::new();
        let own = format!(" data-end=\"{}\"", end.get());
        open(&mut svg, &own, 0.0..height, label, words);
        svg.push_str("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
        Self::with(svg, end)
    }

    fn with(svg: String, end: Micros) -> Self {
        Self {
            svg,
            end,
            names: Names::new(&Chunks::default(), &[], Micros::ZERO),
            chunks: Chunks::default(),
            side: String::new(),
        }
    }

    /// Defines the kinds of work that occur, and the shades of chunks if devices have several, and returns
    /// their legend. The chunks are those of the first timeline.
    pub(in crate::render) fn explain(&mut self, timelines: &[&Timeline]) -> Legend {
        let spans = || timelines.iter().flat_map(|timeline| timeline.spans());
        self.chunks = timelines
            .first()
            .map_or_else(Chunks::default, |own| Chunks::new(own));
        let pixel = self.end * (1.0 / (WIDTH - MARGIN - RIGHT));
        self.names = Names::new(&self.chunks, timelines, pixel);
        let occurs = |kind: &ActionKind| spans().any(|span| span.action.kind == *kind);
        let kinds: Vec<ActionKind> = ActionKind::ALL.into_iter().filter(occurs).collect();
        let chunks = self.chunks.count();
        let shades = (chunks > 1).then(|| look::shade(chunks - 1, chunks) + 1);
        if shades.is_some() {
            // Only for pictures with chunks.
            look::shades(&mut self.svg, &kinds, chunks);
        }
        let mut legend = Legend::default();
        let sample = |pattern: String| format!("class=\"key\" fill=\"url(#k{pattern})\"");
        let first = if shades.is_some() { "0" } else { "" };
        for &kind in &kinds {
            let pattern = format!("{}{first}", kind.letter());
            legend.add(vec![sample(pattern)], look(kind).name);
        }
        if timelines
            .iter()
            .any(|timeline| !timeline.exchanges().is_empty())
        {
            // Only for pictures with exchanges of replicas.
            look::exchange(&mut self.svg);
            legend.add(vec![sample("A".to_owned())], EXCHANGE.name);
        }
        if let (Some(shades), Some(kind)) = (shades, kinds.first()) {
            let pattern = |shade| sample(format!("{}{shade}", kind.letter()));
            let name = match chunks {
                2 => "chunks 0, 1".to_owned(),
                _ => format!("chunks 0 to {}", chunks - 1),
            };
            legend.add((0..shades).map(pattern).collect(), &name);
        }
        if let Some(span) = spans().next() {
            let parts = if self.chunks.one_each() {
                "action and micro-batch"
            } else {
                "stage, action, micro-batch"
            };
            let all = spans().all(|span| self.name_of(span).is_some());
            let room = if all { "" } else { ", where there is room" };
            legend.label(&format!("{}: {parts}{room}", self.names.name(span.action)));
        }
        legend
    }

    /// Position of a point in time.
    pub(in crate::render) fn place(&self, time: Micros) -> f64 {
        let share = time.get() / self.end.get();
        MARGIN + if share.is_nan() { 0.0 } else { share } * (WIDTH - MARGIN - RIGHT)
    }

    /// Draws a device's row at `y`: its name, the stages if it has several, and its background until `end`.
    pub(in crate::render) fn lane(&mut self, device: DeviceId, y: f64, end: Micros) {
        let _ = writeln!(
            self.svg,
            "<rect class=\"lane\" x=\"{MARGIN}\" y=\"{y}\" width=\"{:.2}\" height=\"{BAR}\"/>",
            self.place(end) - MARGIN
        );
        let _ = write!(
            self.side,
            "<rect class=\"ground\" y=\"{}\" width=\"{}\" height=\"{ROW}\"/>",
            y - (ROW - BAR) / 2.0,
            MARGIN - 3.0
        );
        let stages = self.chunks.of(device);
        let is_named = match stages {
            [] => true,
            [stage] => self.chunks.one_each() && stage.index() == device.index(),
            _ => false,
        };
        let _ = if is_named {
            writeln!(
                self.side,
                "<text x=\"6\" y=\"{}\">device {device}</text>",
                y + 16.0
            )
        } else {
            writeln!(
                self.side,
                "<text x=\"6\" y=\"{}\">device {device}</text>\
                 <text x=\"6\" y=\"{}\" font-size=\"{LIST}\">{}</text>",
                y + 11.0,
                y + 22.0,
                listed(stages)
            )
        };
    }

    /// Returns an action's name if there is room for it, and the attribute of its size.
    fn name_of(&self, span: &Span) -> Option<(String, &'static str)> {
        let width = self.place(span.end) - self.place(span.start);
        self.names.of(span.action, width)
    }

    /// Draws an action in the row at `y`, with its title.
    pub(in crate::render) fn bar(&mut self, span: &Span, y: f64, title: &str) {
        let (x, end) = (self.place(span.start), self.place(span.end));
        let width = end - x;
        let letter = span.action.kind.letter();
        let (class, pattern) = if self.chunks.one_each() {
            (letter.to_string(), letter.to_string())
        } else {
            let chunk = self.chunks.chunk(span.device, span.action.stage);
            let shade = look::shade(chunk, self.chunks.count());
            (format!("{letter} c{shade}"), format!("{letter}{shade}"))
        };
        let _ = write!(
            self.svg,
            "<g class=\"{class}\"><title>{title}</title>\
             <rect{} x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"url(#k{pattern})\"/>",
            stroke(width)
        );
        if let Some((label, class)) = self.name_of(span) {
            let _ = write!(
                self.svg,
                "<text{class} x=\"{:.2}\" y=\"{}\">{label}</text>",
                x + width / 2.0,
                y + 16.0
            );
        }
        self.svg.push_str("</g>\n");
    }

    /// Draws an exchange of gradients in the row at `y`, before and so behind the row's actions.
    pub(in crate::render) fn exchange(&mut self, exchange: &Exchange, y: f64) {
        let Exchange {
            stage, start, end, ..
        } = *exchange;
        let (x, right) = (self.place(start), self.place(end));
        // The script identifies a row by its height, so exchanges have their own.
        let _ = write!(
            self.svg,
            "<g class=\"A\"><title>{stage}A: {}, stage {stage}\n{start} to {end} ({})</title>\
             <rect{} x=\"{x:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"url(#kA)\"/>",
            EXCHANGE.name,
            end - start,
            stroke(right - x),
            y + 0.5,
            right - x,
            BAR - 1.0
        );
        let name = self.names.of_exchange(&stage.to_string(), right - x);
        if let Some((label, class)) = name {
            let (middle, base) = (f64::midpoint(x, right), y + 16.0);
            let _ = write!(
                self.svg,
                "<text{class} x=\"{middle:.2}\" y=\"{base}\">{label}</text>"
            );
        }
        self.svg.push_str("</g>\n");
    }

    /// Draws a line through the rows of `devices` devices, from `y` on, if a timeline ends before the axis.
    pub(in crate::render) fn end_at(&mut self, end: Micros, y: f64, devices: usize) {
        let last = ROW * devices as f64 - (ROW - BAR);
        let x = self.place(end).min(WIDTH - RIGHT);
        let _ = writeln!(
            self.svg,
            "<path class=\"end\" d=\"M{x:.2} {}v{}\"/>",
            y - 3.0,
            last.max(0.0) + 6.0
        );
    }

    /// Adds to the part that stays in view.
    pub(in crate::render) fn beside(&mut self, svg: &str) {
        self.side.push_str(svg);
    }

    /// Draws the time axis, with its upper edge at `y`.
    pub(in crate::render) fn axis(&mut self, y: f64) {
        self.svg
            .push_str("<svg class=\"axis\" aria-hidden=\"true\">\n");
        for (time, label) in ticks::times(self.end, ALONG) {
            let x = self.place(time);
            let fits = x + 0.5 * DIGIT * label.chars().count() as f64 <= WIDTH;
            let anchor = if fits { "middle" } else { "end" };
            let _ = writeln!(
                self.svg,
                "<path class=\"tick\" d=\"M{x:.2} {y}v5\"/>\
                 <text x=\"{x:.2}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
                y + 17.0
            );
        }
        self.svg.push_str("</svg>\n");
    }

    /// Returns the whole document.
    pub(in crate::render) fn finish(mut self) -> String {
        if !self.side.is_empty() {
            let side = &self.side;
            let _ = write!(
                self.svg,
                "<svg class=\"side\" aria-hidden=\"true\">\n{side}</svg>\n"
            );
        }
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// Returns the attribute of a bar that is too narrow for a stroke.
fn stroke(width: f64) -> &'static str {
    if width < STROKED { " class=\"n\"" } else { "" }
}

/// Formats a short list of stages.
fn listed(stages: &[StageId]) -> String {
    let names: Vec<String> = stages.iter().map(ToString::to_string).collect();
    let list = format!("stages {}", names.join(", "));
    match stages {
        [stage] => format!("stage {stage}"),
        _ if list.len() <= LISTED => list,
        _ => format!("{} stages", stages.len()),
    }
}

/// Writes the start tag; a document of its own has a namespace and gives the end of its time axis.
fn open(svg: &mut String, own: &str, heights: Range<f64>, label: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<svg{own} viewBox=\"0 {} {WIDTH} {}\" class=\"tl\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{label}\">\n\
         <desc>{words}</desc>",
        heights.start,
        heights.end - heights.start
    );
}

/// Returns the style and the patterns only, for a page without a timeline whose pictures share them.
pub(in crate::render) fn shared() -> String {
    let mut svg = String::from("<svg width=\"0\" height=\"0\" aria-hidden=\"true\">\n");
    look::definitions(&mut svg);
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::svg::legend::text_width;

    /// Regression: `stages 0, 15` almost touched the first bar.
    #[test]
    fn a_list_of_stages_is_apart_from_the_first_bar() {
        let list = listed(&[StageId(0), StageId(15)]);
        let end = 6.0 + text_width(&list) * LIST / 12.0;
        assert!(end < MARGIN - 6.0, "{list}: {end}");
    }
}
