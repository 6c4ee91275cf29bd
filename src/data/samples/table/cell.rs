//! What is in a cell.

/// What stands for there being no value.
const MISSING: [&str; 7] = ["", "?", "na", "n/a", "nan", "null", "none"];

/// What to do about an input that is a text.
pub(super) const INPUTS: &str = "inputs are numbers; leave the column out with --drop-columns, or make a column of \
                      0 and 1 for each of its values";
/// The same of a target.
pub(super) const TARGETS: &str = "this model learns numbers: name the column that has them with --target, or \
                       take a model and a loss for classes";

/// The number in a cell; `instead` is what to do where it is a text.
pub(super) fn number(cell: &str, column: &str, instead: &str) -> Result<f64, String> {
    if is_missing(cell) {
        return Err(missing(column));
    }
    match cell.parse::<f64>() {
        Ok(number) if (number as f32).is_finite() => Ok(number),
        Ok(_) => Err(format!(
            "column `{column}`: {cell} is not finite in single precision"
        )),
        Err(_) if cell.replacen(',', ".", 1).parse::<f64>().is_ok() => Err(format!(
            "column `{column}`: `{cell}` has a comma: write numbers with a point, `{}`",
            cell.replacen(',', ".", 1)
        )),
        Err(_) => Err(format!(
            "column `{column}`: `{cell}` is no number: {instead}"
        )),
    }
}

pub(super) fn missing(column: &str) -> String {
    format!(
        "column `{column}` has no value: fill it in, or leave out the row, or the column with \
         --drop-columns"
    )
}

/// Whether a cell has no value.
pub(super) fn is_missing(cell: &str) -> bool {
    MISSING.contains(&cell.to_lowercase().as_str())
}
