//! Contents of a cell.

use gpipe_partitioner::words::{count, quoted};

/// Spellings of a missing value in lowercase: those of pandas, and a question mark.
const MISSING: [&str; 15] = [
    "", "?", "na", "n/a", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na", "#n/a n/a",
    "1.#ind", "-1.#ind", "1.#qnan",
];

/// Advice for text in a numeric input column.
pub(super) const INPUTS: &str = "other rows of this column have numbers; mend the cell, or leave the \
                                 column out with --drop-columns";
/// Advice for text in a numeric column of rows to predict.
pub(super) const ASKED: &str =
    "rows that were trained on have numbers here: mend the cell, or leave out the row";
/// Advice for text in a numeric target column.
pub(super) const TARGETS: &str = "this model learns numbers: name the column that has them with --target, \
                                  or take a model and a loss for classes";

/// Parses the number in a cell; `instead` is the advice for text.
pub(super) fn number(cell: &str, column: &str, instead: &str) -> Result<f64, String> {
    match cell.parse::<f64>() {
        Ok(number) if (number as f32).is_finite() => Ok(number),
        Ok(number) => Err(format!("column `{column}`: {}", too_large(cell, number))),
        Err(_) => Err(match &with_commas(cell)[..] {
            [] => format!("column `{column}`: `{cell}` is no number: {instead}"),
            [one] => format!("column `{column}`: `{cell}` has a comma: write `{one}`"),
            [decimals, thousands, ..] => format!(
                "column `{column}`: `{cell}` has a comma: write `{thousands}` if it stands between \
                 thousands, and `{decimals}` if it stands before decimals"
            ),
        }),
    }
}

/// Returns the possible numbers of a text with commas: as decimal or thousands separators.
fn with_commas(cell: &str) -> Vec<String> {
    let is_number = |own: &String| own.parse::<f64>().is_ok();
    let [decimals, thousands] = [('.', ','), (',', '.')].map(|(between, before)| {
        let (whole, decimals) = cell.split_once(before).unwrap_or((cell, ""));
        let mut groups = whole.split(between);
        let first = groups.next().unwrap_or_default();
        let first = first.trim_start_matches(['-', '+']);
        let grouped = whole.contains(between);
        let all_three =
            grouped && (1..=3).contains(&first.len()) && groups.all(|own| own.len() == 3);
        let fits = cell.contains(',') && (all_three || !grouped);
        let number = whole.replace(between, "");
        let number = match decimals {
            "" => number,
            own => format!("{number}.{own}"),
        };
        Some(number).filter(|own| fits && is_number(own))
    });
    decimals.into_iter().chain(thousands).collect()
}

/// Explains that a number exceeds single precision.
fn too_large(cell: &str, number: f64) -> String {
    if number.is_infinite() && !cell.contains(|own: char| own.is_ascii_digit()) {
        return format!(
            "`{cell}` is infinite: mend the cell, or empty it where nobody knows the number"
        );
    }
    format!(
        "{cell} is too large for single precision (at most 3.4e38), which models compute in: mend the \
         cell, or divide the column by a power of ten"
    )
}

/// Whether a cell has a number, possibly in another notation.
pub(super) fn is_number(cell: &str) -> bool {
    !is_missing(cell) && (cell.parse::<f64>().is_ok() || !with_commas(cell).is_empty())
}

/// Explains that input columns have missing values in so many rows, of which this is the first.
pub(super) fn no_input(columns: &[(&str, usize)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let (have, them, own) = if let [(name, _)] = columns {
        (format!("column `{name}` has no value"), "it", "the column")
    } else {
        let each = columns
            .iter()
            .map(|(name, rows)| format!("`{name}` ({})", count(*rows, "row")));
        let each = each.collect::<Vec<_>>().join(", ");
        (
            format!("columns have no value: {each}"),
            "them",
            "the columns",
        )
    };
    format!(
        "{have}: --missing fill fills {them} in, --missing drop leaves out such rows, and \
         --drop-columns {} {own}",
        quoted(names.join(","))
    )
}

/// Explains a missing value in a row to predict.
pub(super) fn unknown(column: &str) -> String {
    format!(
        "column `{column}` has no value, and the run was not trained with --missing fill: fill it in, or \
         leave out the row"
    )
}

/// Explains a missing target.
pub(super) fn no_target(column: &str) -> String {
    format!(
        "column `{column}` has no value: fill it in, or leave out such rows with --missing drop"
    )
}

/// Whether a cell has no value.
pub(super) fn is_missing(cell: &str) -> bool {
    MISSING.contains(&cell.to_lowercase().as_str())
}

/// Lists the first few names.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 12;
    let few = names
        .iter()
        .take(MOST)
        .map(|name| format!("`{}`", name.as_ref()));
    let few = few.collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{few} and {more} more"),
        _ => few,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_is_read_in_each_way_that_it_may_be_meant() {
        for (cell, wanted) in [
            ("1,200", &["1.200", "1200"][..]),
            ("-1,200", &["-1.200", "-1200"]),
            ("12,5", &["12.5"]),
            ("1,200,000", &["1200000"]),
            ("1,200.5", &["1200.5"]),
            ("1.200,5", &["1200.5"]),
            ("1.200.000,5", &["1200000.5"]),
            ("1200,500", &["1200.500"]),
            ("1,2,3", &[]),
            ("1,20.5", &[]),
            ("a,b", &[]),
            (",", &[]),
            ("1.200.000", &[]),
        ] {
            assert_eq!(with_commas(cell), wanted, "{cell}");
        }
    }

    #[test]
    fn what_pandas_takes_for_no_value_is_none() {
        for cell in ["", "#N/A", "<NA>", "NaN", "-1.#IND", "None"] {
            assert!(is_missing(cell), "{cell}");
        }
        assert!(!is_missing("#5"));
    }
}
