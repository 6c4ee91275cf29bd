//! A plain table: columns as wide as their widest cell, two blanks between.

use std::fmt::Write as _;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under a heading.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(super) fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|&(_, align)| align).collect(),
            rows: vec![columns.iter().map(|&(name, _)| name.to_owned()).collect()],
        }
    }

    /// One more row, with a cell for each column.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// The table as lines.
    pub(super) fn render(&self) -> String {
        let wide = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(wide).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(&self.columns).zip(&widths) {
                // Writing to a String cannot fail.
                let _ = match align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
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
}
