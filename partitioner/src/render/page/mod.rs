//! Common parts of all pages: one style, one script, sections with headings.
//!
//! A page is one file that loads nothing. All of its content is there without the script, which only
//! navigates the actions of a timeline and stretches its axis.

mod escape;
mod table;

use escape::bound;
pub(super) use escape::{capital, escaped, name, sentence, whole_sentence};
pub(super) use table::{Table, bar, bar_with_mark};

use crate::units::Micros;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
/// Keeps names of rows in view, stretches the time axis of a timeline, and shows the action under the pointer
/// or selected by the arrow keys.
const SCRIPT: &str = concat!(
    include_str!("pin.js"),
    include_str!("zoom.js"),
    include_str!("chart.js")
);

/// A page under construction.
pub(super) struct Page {
    title: String,
    kind: &'static str,
    intro: String,
    sections: Vec<(&'static str, &'static str)>,
    body: String,
}

/// A number in large type at the top.
pub(super) struct Fact {
    pub(super) name: String,
    /// HTML, like the note.
    pub(super) value: String,
    pub(super) note: String,
}

impl Fact {
    pub(super) fn new(name: impl Into<String>, value: String, note: String) -> Self {
        let name = name.into();
        Self { name, value, note }
    }
}

/// Most letters of a word that fit a card.
const CARD: usize = 10;

impl Page {
    /// Creates a page of a kind ("profile and plan") with an unescaped title.
    pub(super) fn new(kind: &'static str, title: &str) -> Self {
        Self {
            title: escaped(title),
            kind,
            intro: String::new(),
            sections: Vec::new(),
            body: String::new(),
        }
    }

    /// Adds HTML between the title and the first section.
    pub(super) fn intro(&mut self, html: &str) {
        self.intro.push_str(&bound(html));
    }

    /// Adds sentences: warnings, which stand out one by one, and notes below them in one box.
    pub(super) fn notes(&mut self, warnings: &[String], notes: &[String]) {
        for warning in warnings {
            self.intro(&format!(
                "<p class=\"say warn\">{}</p>\n",
                whole_sentence(warning)
            ));
        }
        if !notes.is_empty() {
            let items = notes
                .iter()
                .map(|note| format!("<p>{}</p>\n", whole_sentence(note)));
            let items: String = items.collect();
            self.intro(&format!("<div class=\"say\">\n{items}</div>\n"));
        }
    }

    /// Adds the numbers at the top.
    pub(super) fn facts(&mut self, facts: &[Fact]) {
        self.intro.push_str("<dl class=\"facts\">\n");
        for Fact { name, value, note } in facts {
            // `interleaved-1f1b` breaks at its hyphen: both parts fit a card in smaller letters.
            let mut words = value.split_inclusive([' ', '-']);
            let class = if words.any(|word| word.chars().count() > CARD) {
                " class=\"long\""
            } else {
                ""
            };
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                self.intro,
                "<div><dt>{name}</dt><dd{class}>{}</dd><dd class=\"note\">{}</dd></div>",
                bound(value),
                bound(note)
            );
        }
        self.intro.push_str("</dl>\n");
    }

    /// Adds a section with a heading.
    pub(super) fn section(&mut self, id: &'static str, heading: &'static str, html: &str) {
        self.sections.push((id, heading));
        let _ = write!(
            self.body,
            "<section id=\"{id}\" aria-labelledby=\"h-{id}\">\n<h2 id=\"h-{id}\">{heading}</h2>\n\
             {html}</section>\n"
        );
    }

    /// Returns the whole page.
    pub(super) fn finish(self) -> String {
        let Self {
            title,
            kind,
            intro,
            sections,
            body,
        } = self;
        let mut page = String::with_capacity(body.len() + intro.len() + 16_384);
        let _ = write!(
            page,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the content</a>\n\
             <header>\n<p class=\"kind\">gpipe-rs: {kind}</p>\n<h1>{title}</h1>\n</header>\n\
             {}<main id=\"main\" tabindex=\"-1\">\n{intro}{body}</main>\n\
             <footer>Made by gpipe-rs {}. This file is all there is: it loads nothing.</footer>\n\
             <script>{SCRIPT}</script>\n</body>\n</html>\n",
            links(&sections),
            env!("CARGO_PKG_VERSION")
        );
        page
    }
}

/// Returns the list of sections, if there are several.
fn links(sections: &[(&str, &str)]) -> String {
    if sections.len() < 2 {
        return String::new();
    }
    let links = sections.iter();
    let links = links.map(|(id, heading)| format!("<li><a href=\"#{id}\">{heading}</a></li>"));
    let links: String = links.collect();
    format!("<nav aria-label=\"Sections\"><ul>{links}</ul></nav>\n")
}

/// Returns a picture of actions that the script navigates; `keys` says so if it runs.
pub(super) fn chart(label: &str, svg: &str) -> String {
    let picture = actions(" id=\"chart\"", " id=\"detail\"", label, svg);
    format!(
        "<p id=\"keys\">Point at an action for its times, or go to the picture with the Tab key: the \
         arrow keys lead from action to action, Home and End to a row\u{2019}s first and last. Zoom \
         with the keys + and -, the buttons, or Ctrl and the mouse wheel, and drag to move.</p>\n{picture}"
    )
}

/// Same as `chart`, for a page that already has the explanation.
pub(super) fn another_chart(label: &str, svg: &str) -> String {
    actions("", "", label, svg)
}

fn actions(own: &str, detail: &str, label: &str, svg: &str) -> String {
    format!(
        "<div class=\"zoom\" role=\"group\" aria-label=\"Zoom\">\
         <button type=\"button\" data-step=\"+\" aria-label=\"Zoom in\">+</button>\
         <button type=\"button\" data-step=\"-\" aria-label=\"Zoom out\">\u{2212}</button>\
         <button type=\"button\" data-step=\"0\">Whole timeline</button></div>\n\
         <div{own} class=\"chart\" tabindex=\"0\" role=\"group\" aria-label=\"{label}\" \
         aria-describedby=\"keys\">\n{svg}</div>\n<output{detail} class=\"detail\">Point at an action, or press an arrow key in the picture: its \
         times are shown here.</output>\n"
    )
}

/// Formats a time in a table; zero has no unit, as another unit than its column's would look like more.
pub(super) fn time(time: Micros) -> String {
    below(time, time)
}

/// Formats a time in the unit of the largest one of its column.
pub(super) fn below(time: Micros, largest: Micros) -> String {
    /// Times that have no digits in the smallest unit.
    const NOTHING: f64 = 0.05;
    if time.get() < NOTHING {
        "0".to_owned()
    } else {
        time.in_column(largest)
    }
}

/// Formats a share in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
