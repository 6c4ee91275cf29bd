//! What timelines are drawn with: lanes, bars, axis and legend on one scale.

use super::look::{self, EXCHANGE, Look, look};
use crate::ids::{DeviceId, StageId};
use crate::render::chunks::Chunks;
use crate::render::ticks;
use crate::schedule::ActionKind;
use crate::timeline::{Exchange, Span, Timeline};
use crate::units::Micros;
use std::fmt::Write as _;

/// Pixels.
pub(in crate::render) const WIDTH: f64 = 1200.0;
pub(in crate::render) const MARGIN: f64 = 70.0;
pub(in crate::render) const ROW: f64 = 30.0;
pub(in crate::render) const BAR: f64 = 24.0;
pub(in crate::render) const TOP: f64 = 34.0;
pub(in crate::render) const BOTTOM: f64 = 30.0;
/// Free at the right.
pub(in crate::render) const RIGHT: f64 = 10.0;
/// A digit's width in the labels' font.
const DIGIT: f64 = 6.8;
/// Sizes of labels, the largest first: their class, a digit's width, how many digits a W has more than
/// one, and what stays free of a bar.
const SIZES: [(&str, f64, f64, f64); 3] = [
    ("", DIGIT, 0.5, 2.0),
    (" class=\"s\"", 5.2, 0.6, 3.0),
    (" class=\"t\"", 4.4, 0.6, 3.0),
];
/// The most ticks of the time axis, as `zoom.js` has it.
const ALONG: u32 = 8;
/// Characters of a list of stages that fit the margin.
const LISTED: usize = 12;

/// What an action is, for whoever cannot tell it from its letters.
pub(in crate::render) fn described(span: &Span) -> String {
    let action = span.action;
    format!(
        "{action}: {}, stage {}, micro-batch {}",
        look(action.kind).name,
        action.stage,
        action.micro
    )
}

/// From when to when.
pub(in crate::render) fn times(span: &Span) -> String {
    format!("{} to {} ({})", span.start, span.end, span.duration())
}

/// An SVG that is being written, with the end of its time axis.
pub(in crate::render) struct Canvas {
    pub(in crate::render) svg: String,
    end: Micros,
    chunks: Chunks,
    /// Of the highest micro-batch: names of one kind have one size.
    digits: usize,
    /// Names of rows, to be drawn on top of all bars: the script keeps them in view.
    side: String,
}

impl Canvas {
    /// The begin of a document: ground, style and patterns. `label` and `words`, the
    /// picture in a few of them, are SVG's text.
    pub(in crate::render) fn new(
        height: f64,
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
        open(&mut svg, &own, height, label, words);
        look::definitions(&mut svg);
        Self::with(svg, end)
    }

    /// The begin of a picture in a page that has another one, whose style and patterns
    /// it shares.
    pub(in crate::render) fn within_a_page(
        height: f64,
        end: Micros,
        label: &str,
        words: &str,
    ) -> Self {
        let mut svg = String::new();
        open(&mut svg, "", height, label, words);
        svg.push_str("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
        Self::with(svg, end)
    }

    fn with(svg: String, end: Micros) -> Self {
        Self {
            svg,
            end,
            chunks: Chunks::new(&Timeline::default()),
            digits: 1,
            side: String::new(),
        }
    }

    /// The kinds of work that occur, from the left, and the shades of chunks where devices have
    /// several.
    pub(in crate::render) fn legend(&mut self, timeline: &Timeline) {
        self.chunks = Chunks::new(timeline);
        let micros = timeline.spans().iter().map(|span| span.action.micro);
        self.digits = micros.max().map_or(1, |micro| micro.to_string().len());
        let occurs = |kind: &ActionKind| (timeline.spans().iter()).any(|s| s.action.kind == *kind);
        let kinds: Vec<ActionKind> = ActionKind::ALL.into_iter().filter(occurs).collect();
        let chunks = self.chunks.count();
        let shades = (chunks > 1).then(|| look::shade(chunks - 1, chunks) + 1);
        let mut x = MARGIN;
        if shades.is_some() {
            // Pictures without chunks are spared them.
            look::shades(&mut self.svg, &kinds, chunks);
        }
        for &kind in &kinds {
            let Look { name, .. } = look(kind);
            let letter = kind.letter().to_string();
            x = match shades {
                None => self.key(x, &[letter], name),
                Some(_) => self.key(x, &[format!("{letter}0")], name),
            };
        }
        if !timeline.exchanges().is_empty() {
            // And those without replicas of these.
            look::exchange(&mut self.svg);
            x = self.key(x, &["A".to_owned()], EXCHANGE.name);
        }
        if let (Some(shades), Some(kind)) = (shades, kinds.first()) {
            let patterns = (0..shades).map(|shade| format!("{}{shade}", kind.letter()));
            let patterns: Vec<String> = patterns.collect();
            let name = match chunks {
                2 => "chunks 0, 1".to_owned(),
                _ => format!("chunks 0 to {}", chunks - 1),
            };
            self.key(x, &patterns, &name);
        }
    }

    /// Patterns side by side and what they mean; tells where there is room for more.
    fn key(&mut self, x: f64, patterns: &[String], name: &str) -> f64 {
        let mut right = x;
        for pattern in patterns {
            // Writing to a String cannot fail, here and below.
            let _ = write!(
                self.svg,
                "<rect class=\"key\" x=\"{right}\" y=\"8\" width=\"16\" height=\"14\" fill=\"url(#k{pattern})\"/>"
            );
            right += 16.0;
        }
        let _ = writeln!(
            self.svg,
            "<text x=\"{}\" y=\"19\">{name}</text>",
            right + 5.0
        );
        right + 5.0 + text_width(name) + 16.0
    }

    /// Where a point in time is drawn.
    pub(in crate::render) fn place(&self, time: Micros) -> f64 {
        let share = time.get() / self.end.get();
        MARGIN + if share.is_nan() { 0.0 } else { share } * (WIDTH - MARGIN - RIGHT)
    }

    /// A device's row at `y`: its name, the stages where it has several, and its ground.
    pub(in crate::render) fn lane(&mut self, device: DeviceId, y: f64) {
        let _ = writeln!(
            self.svg,
            "<rect class=\"lane\" x=\"{MARGIN}\" y=\"{y}\" width=\"{}\" height=\"{BAR}\"/>",
            WIDTH - MARGIN - RIGHT
        );
        let _ = write!(
            self.side,
            "<rect class=\"ground\" y=\"{}\" width=\"{}\" height=\"{ROW}\"/>",
            y - (ROW - BAR) / 2.0,
            MARGIN - 3.0
        );
        let stages = self.chunks.of(device);
        let _ = if self.chunks.one_each() || stages.is_empty() {
            writeln!(
                self.side,
                "<text x=\"6\" y=\"{}\">device {device}</text>",
                y + 16.0
            )
        } else {
            writeln!(
                self.side,
                "<text x=\"6\" y=\"{}\">device {device}</text>\
                 <text x=\"6\" y=\"{}\" font-size=\"10\">{}</text>",
                y + 11.0,
                y + 22.0,
                listed(stages)
            )
        };
    }

    /// An action, in the row at `y`, with what is said of it when pointed at.
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
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"url(#k{pattern})\"/>",
        );
        if let Some((label, class)) = self.label(span, width) {
            let _ = write!(
                self.svg,
                "<text{class} x=\"{:.2}\" y=\"{}\">{label}</text>",
                x + width / 2.0,
                y + 16.0
            );
        }
        self.svg.push_str("</g>\n");
    }

    /// An action's name as far as it fits so many pixels, and the class of its size.
    fn label(&self, span: &Span, width: f64) -> Option<(String, &'static str)> {
        let full = span.action.to_string();
        // Without its stage an action of one of several is two.
        let short = (self.chunks.one_each())
            .then(|| format!("{}{}", span.action.kind.letter(), span.action.micro));
        let more = self
            .digits
            .saturating_sub(span.action.micro.to_string().len()) as f64;
        let is_wide = span.action.kind == ActionKind::BackwardWeight;
        let names = || [Some(&full), short.as_ref()].into_iter().flatten();
        SIZES.into_iter().find_map(|(class, digit, wide, free)| {
            let wide = if is_wide { wide } else { 0.0 };
            let fits = |name: &&String| (name.len() as f64 + more + wide) * digit + free < width;
            names().find(fits).map(|name| (name.clone(), class))
        })
    }

    /// Gradients on their way, in the row at `y`: drawn before its actions, which they are
    /// behind.
    pub(in crate::render) fn exchange(&mut self, exchange: &Exchange, y: f64) {
        let Exchange {
            stage, start, end, ..
        } = *exchange;
        let (x, right) = (self.place(start), self.place(end));
        // By its height a row is known to the script, and these are one of their own.
        let _ = write!(
            self.svg,
            "<g class=\"A\"><title>{stage}A: {}, stage {stage}\n{start} to {end} ({})</title>\
             <rect x=\"{x:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"url(#kA)\"/>",
            EXCHANGE.name,
            end - start,
            y + 0.5,
            right - x,
            BAR - 1.0
        );
        let label = if self.chunks.one_each() {
            "A".to_owned()
        } else {
            format!("{stage}A")
        };
        if label.len() as f64 * DIGIT + 2.0 < right - x {
            let (middle, base) = (f64::midpoint(x, right), y + 16.0);
            let _ = write!(
                self.svg,
                "<text x=\"{middle:.2}\" y=\"{base}\">{label}</text>"
            );
        }
        self.svg.push_str("</g>\n");
    }

    /// The time axis, its upper edge at `y`.
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

    /// The whole document.
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

/// About what a text takes in 12 pixels of a font without serifs, rather more than less: a width for
/// all characters left some names of a legend three times as far from the next as others.
fn text_width(text: &str) -> f64 {
    let width = |c: char| match c {
        'f' | 'i' | 'j' | 'l' | 't' | ' ' | '(' | ')' | ',' | '-' => 4.2,
        'r' => 5.0,
        'm' | 'w' | 'M' | 'W' => 10.4,
        _ => 7.2,
    };
    text.chars().map(width).sum()
}

/// Stages in few words.
fn listed(stages: &[StageId]) -> String {
    let names: Vec<String> = stages.iter().map(ToString::to_string).collect();
    let list = format!("stages {}", names.join(", "));
    match stages {
        [stage] => format!("stage {stage}"),
        _ if list.len() <= LISTED => list,
        _ => format!("{} stages", stages.len()),
    }
}

/// The start tag; a document of its own has a namespace and tells where its time axis ends.
fn open(svg: &mut String, own: &str, height: f64, label: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<svg{own} viewBox=\"0 0 {WIDTH} {height}\" class=\"tl\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{label}\">\n\
         <desc>{words}</desc>"
    );
}

/// The style and the patterns alone, for a page whose pictures share them and that has
/// no timeline.
pub(in crate::render) fn shared() -> String {
    let mut svg = String::from("<svg width=\"0\" height=\"0\" aria-hidden=\"true\">\n");
    look::definitions(&mut svg);
    svg + "</svg>\n"
}
