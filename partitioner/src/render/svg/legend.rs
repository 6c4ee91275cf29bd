//! What colours and hatchings mean: in a picture of its own a row above it, in a page a list beside
//! what scrolls.

use super::canvas::{MARGIN, RIGHT, WIDTH};
use std::fmt::Write as _;

/// Pixels of a sample.
const WIDE: f64 = 16.0;
const LINE: f64 = 26.0;
/// What numbers at the right end of the same row take at most.
const NUMBERS: f64 = 200.0;

/// What there is to explain, in order.
#[derive(Default)]
pub(in crate::render) struct Legend {
    keys: Vec<Key>,
    /// How actions are named.
    label: Option<String>,
}

/// Samples side by side, each the attributes of a rectangle, or a line; and what they mean.
struct Key {
    samples: Vec<String>,
    /// The class of a line.
    line: Option<&'static str>,
    name: String,
}

impl Legend {
    /// One more meaning.
    pub(in crate::render) fn add(&mut self, samples: Vec<String>, name: &str) {
        let name = name.to_owned();
        self.keys.push(Key {
            samples,
            line: None,
            name,
        });
    }

    /// One more meaning, of lines; for a legend in a page.
    pub(in crate::render) fn add_line(&mut self, class: &'static str, name: &str) {
        self.keys.push(Key {
            samples: Vec::new(),
            line: Some(class),
            name: name.to_owned(),
        });
    }

    /// How actions are named, with an example.
    pub(super) fn label(&mut self, words: &str) {
        self.label = Some(words.to_owned());
    }

    /// Side by side at the top of a picture, from the left.
    pub(in crate::render) fn draw(&self, svg: &mut String) {
        let mut x = MARGIN;
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
        // The step and its bubble stand at the right end.
        if let Some(label) = &self.label
            && x + text_width(label) < WIDTH - RIGHT - NUMBERS
        {
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"19\">{label}</text>");
        }
    }

    /// A list that takes as many rows as it needs, and that stays where the picture scrolls.
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

/// About what a text takes in 12 pixels of a font without serifs, rather more than less: a width for
/// all characters left some names of a legend three times as far from the next as others.
pub(super) fn text_width(text: &str) -> f64 {
    let width = |c: char| match c {
        'f' | 'i' | 'j' | 'l' | 't' | ' ' | '(' | ')' | ',' | '-' => 4.2,
        'r' => 5.0,
        'm' | 'w' | 'M' | 'W' => 10.4,
        _ => 7.2,
    };
    text.chars().map(width).sum()
}
