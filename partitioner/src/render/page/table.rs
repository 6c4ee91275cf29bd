//! Tables that screen readers can read: a caption, a scope for each heading, and roles that remain
//! where a narrow window shows rows as cards, with the column's name above each cell.

use super::escape::{bound, escaped};
use std::fmt::Write as _;

/// Number of columns that fit a narrow window.
const NARROW: usize = 3;

/// A table under construction.
pub(in crate::render) struct Table {
    html: String,
    /// Names of the first column and of the others.
    first: String,
    columns: Vec<String>,
}

impl Table {
    /// Begins a table with these columns, of which the first names the rows. A column whose name begins
    /// with `*` has words, not numbers.
    pub(in crate::render) fn new(caption: &str, columns: &[&str]) -> Self {
        let caption = escaped(caption);
        let cards = if columns.len() > NARROW { " cards" } else { "" };
        let mut html = format!(
            "<div class=\"scroll{cards}\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n\
             <table role=\"table\">\n<caption>{caption}</caption>\n<thead role=\"rowgroup\"><tr role=\"row\">"
        );
        for column in columns {
            let (class, name) = match column.strip_prefix('*') {
                Some(name) => (" class=\"w\"", name),
                None => ("", *column),
            };
            // Writing to a String cannot fail, here and below.
            let _ = write!(
                html,
                "<th role=\"columnheader\" scope=\"col\"{class}>{name}</th>"
            );
        }
        html.push_str("</tr></thead>\n<tbody role=\"rowgroup\">\n");
        let mut names = columns
            .iter()
            .map(|name| name.trim_start_matches('*').to_owned());
        Self {
            html,
            first: names.next().unwrap_or_default(),
            columns: names.collect(),
        }
    }

    /// Adds a row; its head and cells are HTML. A cell that begins with `*` has words; the last of too
    /// few cells spans the missing ones.
    pub(in crate::render) fn row(&mut self, head: &str, cells: &[String]) {
        self.marked("", head, cells);
    }

    /// Adds a row of its own class.
    pub(in crate::render) fn marked(&mut self, class: &str, head: &str, cells: &[String]) {
        let class = match class {
            "" => String::new(),
            class => format!(" class=\"{class}\""),
        };
        // Names the column, since a number alone says nothing.
        let key = match head.parse::<u64>() {
            Ok(_) => format!(" data-k=\"{}\"", self.first),
            Err(_) => String::new(),
        };
        let _ = write!(
            self.html,
            "<tr role=\"row\"{class}><th role=\"rowheader\"{key} scope=\"row\">{head}</th>"
        );
        let missing = self.columns.len().saturating_sub(cells.len());
        for (number, (cell, column)) in cells.iter().zip(&self.columns).enumerate() {
            let (class, html) = match cell.strip_prefix('*') {
                Some(words) => (" class=\"w\"", bound(words)),
                None => ("", cell.clone()),
            };
            let wide = missing > 0 && number + 1 == cells.len();
            let (span, column) = if wide {
                (format!(" colspan=\"{}\"", missing + 1), "")
            } else {
                (String::new(), column.as_str())
            };
            let _ = write!(
                self.html,
                "<td role=\"cell\"{class}{span} data-k=\"{column}\">{html}</td>"
            );
        }
        self.html.push_str("</tr>\n");
    }

    /// Returns the whole table.
    pub(in crate::render) fn finish(mut self) -> String {
        self.html.push_str("</tbody>\n</table>\n</div>\n");
        self.html
    }
}

/// Returns the pieces of a bar, each a class and a share of the whole; screen readers read the numbers
/// beside it instead.
pub(in crate::render) fn bar(pieces: &[(&str, f64)]) -> String {
    bar_with_mark(pieces, None)
}

/// Same as `bar`, with a line across it at a share of the whole, such as a limit.
pub(in crate::render) fn bar_with_mark(pieces: &[(&str, f64)], mark: Option<f64>) -> String {
    let mut html = String::from("<span class=\"bar\" aria-hidden=\"true\">");
    for (class, share) in pieces.iter().filter(|(_, share)| *share > 0.0) {
        let percent = 100.0 * share.min(1.0);
        let _ = write!(
            html,
            "<i class=\"{class}\" style=\"width:{percent:.2}%\"></i>"
        );
    }
    if let Some(share) = mark {
        let _ = write!(
            html,
            "<b style=\"left:{:.2}%\"></b>",
            100.0 * share.min(1.0)
        );
    }
    html.push_str("</span>");
    html
}
