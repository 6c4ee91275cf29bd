//! Notes about the columns of a table.

use gpipe_partitioner::words::count;

use super::cell::{is_number, listed};
use super::dates::moment;
use super::forms::Form;
use super::layout::Layout;

/// This many distinct numbers may be classes in any case.
const MOST_CLASSES: usize = 20;
/// Limit of the targets' distance from 0, and of their deviation.
const FAR: f64 = 30.0;
/// Minimum of rows for detecting row numbers: in fewer rows, consecutive numbers may be chance.
const LEAST_COUNTED: usize = 8;

/// Notes that targets are scaled.
pub(in super::super) fn scaled(column: &str, (mean, std): (f64, f64)) -> String {
    format!(
        "`{column}` is learnt as (`{column}` - {}) / {}",
        digits(mean, std),
        digits(std, std)
    )
}

/// Rounds a number to the third digit of a deviation.
fn digits(number: f64, deviation: f64) -> String {
    let digits = 2 - deviation.log10().floor() as i32;
    let place = 10_f64.powi(-digits);
    match usize::try_from(digits) {
        Ok(digits) => format!("{number:.digits$}"),
        Err(_) => ((number / place).round() * place).to_string(),
    }
}

/// Whether apparent classes are rather numbers: hardly any occurs twice.
pub(super) fn are_numbers(names: &[String], rows: usize) -> bool {
    names.len() > MOST_CLASSES.max(rows / 2) && names.iter().all(|name| name.parse::<f64>().is_ok())
}

/// Notes that targets are so large that a model, whose outputs begin near 0, takes long to learn them.
pub(super) fn far_from_outputs(targets: &[f64], column: &str) -> Option<String> {
    let rows = targets.len() as f64;
    let mean = targets.iter().sum::<f64>() / rows;
    let deviation = (targets.iter().map(|own| (own - mean).powi(2)).sum::<f64>() / rows).sqrt();
    let far = mean.abs() > FAR || deviation > FAR;
    (far && deviation > 0.0).then(|| {
        // With fewer digits, the remainder of the mean would be no smaller.
        let (mean, deviation) = (digits(mean, deviation), digits(deviation, deviation));
        format!(
            "`{column}` is about {mean} on average with a standard deviation of {deviation}, and outputs \
             begin near 0: models learn it faster as (`{column}` - {mean}) / {deviation}, so write that \
             to the file"
        )
    })
}

/// Notes the first input column of `x` that only numbers the rows; `x` holds the rows one after
/// another.
pub(super) fn counting(layout: &Layout, x: &[f64]) -> Option<String> {
    let width = layout.width();
    let rows = x.len() / width.max(1);
    let counts = |place: usize| {
        let value = |row: usize| x[row * width + place];
        let next = |row: usize| (value(row - 1) + 1.0).total_cmp(&value(row)).is_eq();
        rows >= LEAST_COUNTED && (1..rows).all(next)
    };
    let mut place = 0;
    let mut inputs = layout.inputs.iter();
    let counting = inputs.find(|own| {
        let first = place;
        place += own.column.width();
        own.column.form == Form::Numbers && counts(first)
    });
    let name = &counting?.name;
    Some(format!(
        "`{name}` counts the rows, and is an input as any other: leave it out with --drop-columns \
         {name}"
    ))
}

/// Notes that column names look like values, as in a table without a header.
pub(super) fn no_header<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let is_value = |name: &&str| is_number(name) || moment(name).is_some();
    let odd: Vec<&str> = names.filter(is_value).collect();
    (!odd.is_empty()).then(|| {
        format!(
            "the first line is taken for the names of the columns, though {} there are values: put a \
             header above it if it has none",
            listed(&odd)
        )
    })
}

/// Notes that rows were left out.
pub(super) fn left_out(rows: usize) -> Option<String> {
    let rows = (rows > 0).then(|| count(rows, "row"))?;
    Some(format!("{rows} with a cell without a value left out"))
}
