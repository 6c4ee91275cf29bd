//! Dynamic dimensions other than the samples', such as sequences of any length.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::error::{Result, unsupported};
use super::expression;
use super::program::{Program, Size, ValueId, ValueInfo};

/// Sizes by symbol.
type Sizes = HashMap<Arc<str>, i64>;

/// Returns names, dimensions and valid sizes.
pub(super) fn dimensions(program: &Program) -> Vec<(&str, usize, RangeInclusive<i64>)> {
    let samples = samples(program);
    let of_input = |id: &ValueId| {
        let info = &program.values[id.0];
        let sizes = info.sizes.iter().flatten().enumerate();
        let dynamic = sizes.filter_map(|(at, size)| match size {
            Size::Symbol(symbol) if Some(symbol) != samples => Some((at, range(program, symbol))),
            _ => None,
        });
        let named = dynamic.map(|(at, range)| (info.name.as_str(), at, range));
        named.collect::<Vec<_>>()
    };
    program.inputs.iter().flat_map(of_input).collect()
}

/// Returns the sizes of symbols for samples with these input shapes; others are unchanged. Shapes are
/// ignored where nothing is dynamic.
///
/// # Errors
/// A size is out of range, or a symbol has two sizes.
pub(super) fn bound(program: &Program, before: &Sizes, items: &[&[i64]]) -> Result<Sizes> {
    let samples = samples(program);
    let mut found: HashMap<&Arc<str>, (i64, String)> = HashMap::new();
    for (id, item) in program.inputs.iter().zip(items) {
        let info = &program.values[id.0];
        let sizes = info.sizes.as_deref().unwrap_or_default();
        if sizes.len() != item.len() + 1 {
            continue;
        }
        for ((at, size), own) in sizes.iter().enumerate().skip(1).zip(*item) {
            let Size::Symbol(symbol) = size else { continue };
            if Some(symbol) == samples {
                continue;
            }
            let place = format!("dimension {at} of the input `{}`", info.name);
            let range = range(program, symbol);
            if !range.contains(own) {
                let what = format!(
                    "the samples have {own} there, but the model was exported for {}: take others, or \
                     export it with another `Dim(…, min=…, max=…)`",
                    shown(&range)
                );
                return Err(unsupported(place, what));
            }
            if let Some((other, there)) = found.get(symbol)
                && other != own
            {
                let what = format!(
                    "the samples have {own} there, but {other} in {there}, and the model was exported \
                     for the same size in both"
                );
                return Err(unsupported(place, what));
            }
            found.insert(symbol, (*own, place));
        }
    }
    let mut sizes = before.clone();
    let found = found.into_iter();
    sizes.extend(found.map(|(symbol, (own, _))| (Arc::clone(symbol), own)));
    Ok(sizes)
}

/// Returns the shape of a value, samples first; `None` if unknown.
pub(super) fn shape(value: &ValueInfo, sizes: &Sizes) -> Option<Vec<i64>> {
    let symbol = |name: &str| sizes.get(name).copied();
    let all = value.sizes.as_ref()?.iter();
    all.map(|size| match size {
        Size::Fixed(fixed) => Some(*fixed),
        Size::Symbol(name) => symbol(name),
        Size::Computed(text) => expression::value(text, &symbol),
    })
    .collect()
}

/// Formats sizes such as `2 to 64` or `2 or more`.
pub(super) fn shown(range: &RangeInclusive<i64>) -> String {
    match (range.start(), range.end()) {
        (least, &i64::MAX) => format!("{least} or more"),
        (least, most) => format!("{least} to {most}"),
    }
}

/// Returns the symbol of the samples' dimension.
fn samples(program: &Program) -> Option<&Arc<str>> {
    let first = program.inputs.first()?;
    match program.values[first.0].sizes.as_ref()?.first()? {
        Size::Symbol(symbol) => Some(symbol),
        _ => None,
    }
}

fn range(program: &Program, symbol: &str) -> RangeInclusive<i64> {
    let range = program.ranges.get(symbol);
    let least = range.and_then(|own| own.min_val);
    let most = range.and_then(|own| own.max_val);
    least.unwrap_or(1).max(1)..=most.unwrap_or(i64::MAX)
}
