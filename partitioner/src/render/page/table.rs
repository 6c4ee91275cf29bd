//! Tables that a screen reader can read: a caption, a scope for each heading.

use super::escape::{bound, escaped};
use std::fmt::Write as _;

/// A table that is being written.
pub(in crate::render) struct Table {
    html: String,
}

impl Table {
    /// The begin of a table with these columns, of which the first names the rows. A
    /// column whose name begins with `*` is words, not numbers.
    pub(in crate::render) fn new(caption: &str, columns: &[&str]) -> Self {
        let caption = escaped(caption);
        let mut html = format!(
            "<div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n\
             <table>\n<caption>{caption}</caption>\n<thead><tr>"
        );
        for column in columns {
            // Writing to a String cannot fail, here and below.
            let _ = match column.strip_prefix('*') {
                Some(column) => write!(html, "<th scope=\"col\" class=\"w\">{column}</th>"),
                None => write!(html, "<th scope=\"col\">{column}</th>"),
            };
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        Self { html }
    }

    /// A row; its head and cells are HTML. A cell that begins with `*` is words.
    pub(in crate::render) fn row(&mut self, head: &str, cells: &[String]) {
        self.marked("", head, cells);
    }

    /// A row of a class of its own.
    pub(in crate::render) fn marked(&mut self, class: &str, head: &str, cells: &[String]) {
        let class = match class {
            "" => String::new(),
            class => format!(" class=\"{class}\""),
        };
        let _ = write!(self.html, "<tr{class}><th scope=\"row\">{head}</th>");
        for cell in cells {
            let _ = match cell.strip_prefix('*') {
                Some(words) => write!(self.html, "<td class=\"w\">{}</td>", bound(words)),
                None => write!(self.html, "<td>{cell}</td>"),
            };
        }
        self.html.push_str("</tr>\n");
    }

    /// The whole table.
    pub(in crate::render) fn finish(mut self) -> String {
        self.html.push_str("</tbody>\n</table>\n</div>\n");
        self.html
    }
}

/// Pieces of a bar, each a class and a share of the whole; readers hear the numbers
/// beside it instead.
pub(in crate::render) fn bar(pieces: &[(&str, f64)]) -> String {
    let mut html = String::from("<span class=\"bar\" aria-hidden=\"true\">");
    for (class, share) in pieces.iter().filter(|(_, share)| *share > 0.0) {
        let percent = 100.0 * share.min(1.0);
        let _ = write!(
            html,
            "<i class=\"{class}\" style=\"width:{percent:.2}%\"></i>"
        );
    }
    html.push_str("</span>");
    html
}
