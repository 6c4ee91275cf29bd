//! What is in a cell.

use gpipe_partitioner::words::{count, quoted};

/// What stands for there being no value.
const MISSING: [&str; 7] = ["", "?", "na", "n/a", "nan", "null", "none"];

/// What to do about a text among the numbers of a column of inputs.
pub(super) const INPUTS: &str = "other rows of this column have numbers; mend the cell, or leave the \
                                 column out with --drop-columns";
/// The same of a row that is asked about.
pub(super) const ASKED: &str =
    "rows that were trained on have numbers here: mend the cell, or leave out the row";
/// The same of a target.
pub(super) const TARGETS: &str = "this model learns numbers: name the column that has them with --target, \
                                  or take a model and a loss for classes";

/// The number in a cell; `instead` is what to do where it is a text.
pub(super) fn number(cell: &str, column: &str, instead: &str) -> Result<f64, String> {
    match cell.parse::<f64>() {
        Ok(number) if (number as f32).is_finite() => Ok(number),
        Ok(number) => Err(format!("column `{column}`: {}", too_large(cell, number))),
        Err(_) if with_point(cell).parse::<f64>().is_ok() => Err(format!(
            "column `{column}`: `{cell}` has a comma: write numbers with a point, `{}`",
            with_point(cell)
        )),
        Err(_) => Err(format!(
            "column `{column}`: `{cell}` is no number: {instead}"
        )),
    }
}

/// What is wrong with a number that single precision does not have.
fn too_large(cell: &str, number: f64) -> String {
    if number.is_infinite() && !cell.contains(|own: char| own.is_ascii_digit()) {
        return format!(
            "`{cell}` is infinite: mend the cell, or empty it where nobody knows the number"
        );
    }
    format!(
        "{cell} is too large for single precision (at most 3.4e38), which numbers are read with: mend the \
         cell, or divide the column by a power of ten"
    )
}

fn with_point(cell: &str) -> String {
    cell.replacen(',', ".", 1)
}

/// Whether a cell has a number, if one that is written otherwise.
pub(super) fn is_number(cell: &str) -> bool {
    !is_missing(cell) && with_point(cell).parse::<f64>().is_ok()
}

/// What is said of columns of inputs that have no value in so many rows, the first of them here.
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

/// The same of a row that is asked about.
pub(super) fn unknown(column: &str) -> String {
    format!(
        "column `{column}` has no value, and the run was not trained with --missing fill: fill it in, or \
         leave out the row"
    )
}

/// The same of a target.
pub(super) fn no_target(column: &str) -> String {
    format!(
        "column `{column}` has no value: fill it in, or leave out such rows with --missing drop"
    )
}

/// Whether a cell has no value.
pub(super) fn is_missing(cell: &str) -> bool {
    MISSING.contains(&cell.to_lowercase().as_str())
}
