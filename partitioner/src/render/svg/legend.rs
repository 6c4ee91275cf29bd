//! Legend of colours and hatchings: a row above a stand-alone picture, a list beside the scrolling
//! part of a page.

use std::fmt::Write as _;
use std::ops::Range;

/// Sizes of a sample in pixels.
const WIDE: f64 = 16.0;
const LINE: f64 = 26.0;
/// Most pixels of the numbers at the right end of the same row.
const NUMBERS: f64 = 200.0;

/// Entries of the legend, in order.
#[derive(Default)]
pub(in crate::render) struct Legend {
    keys: Vec<Key>,
    /// Explanation of the actions' names.
    label: Option<String>,
}

/// Samples side by side, each the attributes of a rectangle, or a line; and their meaning.
struct Key {
    samples: Vec<String>,
    /// The class of a line.
    line: Option<&'static str>,
    name: String,
}

impl Legend {
    /// Adds an entry.
    pub(in crate::render) fn add(&mut self, samples: Vec<String>, name: &str) {
        let name = name.to_owned();
        self.keys.push(Key {
            samples,
            line: None,
            name,
        });
    }

    /// Adds an entry of a line; for a legend in a page.
    pub(in crate::render) fn add_line(&mut self, class: &'static str, name: &str) {
        self.keys.push(Key {
            samples: Vec::new(),
            line: Some(class),
            name: name.to_owned(),
        });
    }

    /// Sets the explanation of the actions' names, with an example.
    pub(super) fn label(&mut self, words: &str) {
        self.label = Some(words.to_owned());
    }

    /// Draws the entries side by side at the top of a picture, from the left.
    pub(in crate::render) fn draw(&self, svg: &mut String, across: Range<f64>) {
        let mut x = across.start;
        for Key { samples, name, .. } in &self.keys {
            for sample in samples {
                // Writing to a String cannot fail, here and below.
                let _ = write!(
                    svg,
                    "<rect {sample} x=\"{x}\" y=\"8\" width=\"{WIDE}\" height=\"14\"/>"
                );
                x += WIDE;
            }
            let _ = writeln!(svg, "<text x=\"{}\" y=\"19\">{name}</text>", x + 5.0);
            x += 5.0 + text_width(name) + 16.0;
        }
        // The step and its bubble are at the right end.
        if let Some(label) = &self.label
            && x + text_width(label) < across.end - NUMBERS
        {
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"19\">{label}</text>");
        }
    }

    /// Returns a list, which wraps, and stays in place when the picture scrolls.
    pub(in crate::render) fn html(&self) -> String {
        let mut html = String::from("<ul class=\"keys\" aria-label=\"Legend\">\n");
        for Key {
            samples,
            line,
            name,
        } in &self.keys
        {
            let wide = line.map_or(WIDE * samples.len() as f64, |_| LINE);
            let _ = write!(
                html,
                "<li><svg class=\"tl\" width=\"{wide}\" height=\"14\" aria-hidden=\"true\">"
            );
            for (sample, number) in samples.iter().zip(0..) {
                let x = WIDE * f64::from(number);
                let _ = write!(
                    html,
                    "<rect {sample} x=\"{x}\" width=\"{WIDE}\" height=\"14\"/>"
                );
            }
            if let Some(class) = line {
                let _ = write!(html, "<path class=\"{class}\" d=\"M0 7H{LINE}\"/>");
            }
            let _ = writeln!(html, "</svg>{name}</li>");
        }
        if let Some(label) = &self.label {
            let _ = writeln!(html, "<li>{label}</li>");
        }
        html + "</ul>\n"
    }
}

/// Approximate width of a text in a 12-pixel sans-serif font, rather too large than too small.
/// Widths differ by character: with a single one, some entries of a legend were three times as far
/// apart as others.
pub(super) fn text_width(text: &str) -> f64 {
    let width = |c: char| match c {
        'f' | 'i' | 'j' | 'l' | 't' | ' ' | '(' | ')' | ',' | '-' => 4.2,
        'r' => 5.0,
        'm' | 'w' | 'M' | 'W' => 10.4,
        _ => 7.2,
    };
    text.chars().map(width).sum()
}
