//! A plain table: columns as wide as their widest cell, two blanks between.

use std::fmt::Write as _;

use super::output::wrapped;

/// The least columns that the last one is broken into.
const NARROWEST: usize = 16;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|&(_, align)| align).collect(),
            rows: vec![columns.iter().map(|&(name, _)| name.to_owned()).collect()],
        }
    }

    /// One more row, with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The table as lines.
    pub(crate) fn render(&self) -> String {
        self.render_within(usize::MAX)
    }

    /// The table as lines of at most `width` columns, as far as the last column can be
    /// broken into several lines for it.
    pub(crate) fn render_within(&self, width: usize) -> String {
        let wide = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(wide).collect();
        let (_, before) = widths.split_last().unwrap_or((&0, &[]));
        let indent = before.iter().map(|width| width + 2).sum();
        let room = width.saturating_sub(indent).max(NARROWEST);
        let mut text = String::new();
        for row in &self.rows {
            let last = row.last().map(|cell| wrapped(cell, room));
            let mut last = last.iter().flat_map(|cell| cell.lines());
            let mut line = String::new();
            for (column, (align, &width)) in self.columns.iter().zip(&widths).enumerate() {
                let at_end = column == before.len();
                let cell = if at_end {
                    last.next().unwrap_or_default()
                } else {
                    row[column].as_str()
                };
                // Writing to a String cannot fail.
                let _ = match align {
                    Align::Left if at_end => write!(line, "{cell}"),
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
            for more in last {
                let _ = writeln!(text, "{:indent$}{more}", "");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_blanks_at_their_end() {
        let mut table = Table::new(&[("name", Align::Left), ("µs", Align::Right)]);
        table.row(["a".into(), "1".into()]);
        table.row(["a longer one".into(), "1000".into()]);
        assert_eq!(
            table.render(),
            "name            µs\na                1\na longer one  1000\n"
        );
    }
    #[test]
    fn a_last_column_that_is_too_wide_goes_on_below_itself() {
        let mut table = Table::new(&[("name", Align::Left), ("why", Align::Left)]);
        table.row(["a".into(), "seventeen columns it has".into()]);
        assert_eq!(
            table.render_within(24),
            "name  why\na     seventeen columns\n      it has\n"
        );
    }
}
