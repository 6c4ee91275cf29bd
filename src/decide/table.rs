//! Plain text tables: columns as wide as their widest cell, two blanks between.

use std::fmt::Write as _;

use super::output::wrapped;

/// Least width to which the last column is broken.
const NARROWEST: usize = 16;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Rows of cells under a heading.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|&(_, align)| align).collect(),
            rows: vec![columns.iter().map(|&(name, _)| name.to_owned()).collect()],
        }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Formats the table as lines.
    pub fn render(&self) -> String {
        self.render_within(usize::MAX)
    }

    /// Removes those of the columns `names` that have the same value in all of several rows, and
    /// returns them, each with its name, from the left.
    pub(crate) fn take_same(&mut self, names: &[&str]) -> Vec<(String, String)> {
        let mut taken = Vec::new();
        let mut column = 0;
        while column < self.columns.len() && self.rows.len() > 2 {
            let mut cells = self.rows[1..].iter().map(|row| &row[column]);
            let first = cells.next();
            let same = cells.all(|cell| Some(cell) == first);
            if !same || !names.contains(&self.rows[0][column].as_str()) {
                column += 1;
                continue;
            }
            let cells = self.remove(column);
            taken.push((cells[0].clone(), cells[1].clone()));
        }
        taken
    }

    /// Formats the table as lines of at most `width` columns. Drops as many `spare` columns as
    /// necessary, the first ones first, and lists them in a line below.
    pub(crate) fn render_without(mut self, spare: &[&str], width: usize) -> String {
        let (mut spare, mut gone) = (spare.iter(), Vec::new());
        loop {
            let text = self.render_within(width);
            let fits = text.lines().all(|line| line.chars().count() <= width);
            let Some(name) = spare.next().filter(|_| !fits) else {
                return text + &left_out(&gone, width);
            };
            if let Some(column) = self.rows[0].iter().position(|own| own == name) {
                self.remove(column);
                gone.push(*name);
            }
        }
    }

    /// Removes a column and returns its cells, the name first.
    fn remove(&mut self, column: usize) -> Vec<String> {
        self.columns.remove(column);
        let rows = self.rows.iter_mut();
        rows.map(|row| row.remove(column)).collect()
    }

    /// Breaks the heading into lines, so that columns are as narrow as their cells and words permit.
    fn broken_heading(&self) -> Vec<Vec<String>> {
        let (heading, cells) = self.rows.split_at(1);
        let names = heading.iter().flatten().enumerate().map(|(column, name)| {
            let cells = cells.iter().map(|row| row[column].chars().count());
            let words = name.split(' ').map(|word| word.chars().count());
            let width = cells.chain(words).max().unwrap_or_default();
            let lines = wrapped(name, width);
            lines.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        let names: Vec<Vec<String>> = names.collect();
        let height = names.iter().map(Vec::len).max().unwrap_or_default();
        // Aligned with the bottom of the heading.
        let line = |at: usize| {
            let part = |name: &Vec<String>| {
                let place = (at + name.len()).checked_sub(height);
                place.map_or_else(String::new, |place| name[place].clone())
            };
            names.iter().map(part).collect()
        };
        (0..height).map(line).collect()
    }

    /// Formats the table as lines of at most `width` columns, as far as breaking the heading and the
    /// last column permits.
    pub fn render_within(&self, width: usize) -> String {
        let text = lines(&self.columns, &self.rows, width);
        if text.lines().all(|line| line.chars().count() <= width) {
            return text;
        }
        let cells = self.rows.iter().skip(1).cloned();
        let rows: Vec<Vec<String>> = self.broken_heading().into_iter().chain(cells).collect();
        lines(&self.columns, &rows, width)
    }
}

/// Returns a note of the columns left out, if any.
fn left_out(names: &[&str], width: usize) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names = names.join(", ");
    wrapped(
        &format!("(no room for: {names}; --format html has them)"),
        width,
    ) + "\n"
}

/// Formats rows as lines; breaks the last column if it exceeds `width`.
fn lines(columns: &[Align], rows: &[Vec<String>], width: usize) -> String {
    let wide = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(wide).collect();
    let (_, before) = widths.split_last().unwrap_or((&0, &[]));
    let indent = before.iter().map(|width| width + 2).sum();
    let room = width.saturating_sub(indent).max(NARROWEST);
    let mut text = String::new();
    for row in rows {
        let last = row.last().map(|cell| wrapped(cell, room));
        let mut last = last.iter().flat_map(|cell| cell.lines());
        let mut line = String::new();
        for (column, (align, &width)) in columns.iter().zip(&widths).enumerate() {
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
    fn a_heading_that_is_too_wide_is_broken_between_words() {
        let mut table = Table::new(&[("schedule", Align::Left), ("95 % of steps", Align::Right)]);
        table.row(["1f1b".into(), "35.21 ms".into()]);
        assert_eq!(
            table.render_within(20),
            "           95 % of\nschedule     steps\n1f1b      35.21 ms\n"
        );
        assert_eq!(
            table.render_within(40),
            "schedule  95 % of steps\n1f1b           35.21 ms\n"
        );
    }

    #[test]
    fn where_columns_are_few_those_to_spare_are_left_out() {
        let columns = ["a", "bbb", "ccc"].map(|name| (name, Align::Right));
        let table = || {
            let mut table = Table::new(&columns);
            table.row(["1".into(), "2".into(), "3".into()]);
            table
        };
        let spare = ["ccc", "bbb"];
        assert_eq!(table().render_without(&spare, 11), table().render());
        let said = "(no room\nfor: ccc;\n--format\nhtml has\nthem)\n";
        let without = table().render_without(&spare, 10);
        assert_eq!(without, format!("a  bbb\n1    2\n{said}"));
        // Without room, only the spare columns go.
        for width in [5, 0] {
            assert!(table().render_without(&spare, width).starts_with("a\n1\n("));
        }
    }

    #[test]
    fn what_all_rows_say_is_taken_out() {
        let columns = ["a", "b", "c"].map(|name| (name, Align::Right));
        let mut table = Table::new(&columns);
        table.row(["1".into(), "2".into(), "3".into()]);
        assert!(table.take_same(&["a", "b"]).is_empty(), "of one row");
        table.row(["1".into(), "4".into(), "3".into()]);
        let taken = table.take_same(&["a", "b"]);
        assert_eq!(taken, [("a".to_owned(), "1".to_owned())]);
        assert_eq!(table.render(), "b  c\n2  3\n4  3\n");
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
