//! Sizes computed from symbols, in the format of `sympy.srepr`.

use super::program::Scalar;
use gpipe_torch::Number;

/// Limit of nested functions.
const MAX_DEPTH: usize = 64;

/// Evaluates an expression such as `Add(Symbol('s0', integer=True), Integer(-3))`; `symbol` returns the
/// values of symbols. `None` if a symbol has no value, or a function is unknown.
pub(super) fn value(text: &str, symbol: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let (value, rest) = term(text, symbol, 0)?;
    rest.is_empty().then_some(value)
}

/// Evaluates the term at the beginning of a text, and returns the rest.
fn term<'t>(
    text: &'t str,
    symbol: &dyn Fn(&str) -> Option<i64>,
    depth: usize,
) -> Option<(i64, &'t str)> {
    let (name, mut rest) = text.split_once('(').filter(|_| depth < MAX_DEPTH)?;
    match name {
        "Integer" => {
            let (number, rest) = rest.split_once(')')?;
            return Some((number.parse().ok()?, rest));
        }
        "Symbol" => {
            let (own, rest) = rest.strip_prefix('\'')?.split_once('\'')?;
            return Some((symbol(own)?, rest.split_once(')')?.1));
        }
        _ => {}
    }
    let mut values = Vec::new();
    loop {
        let (value, behind) = term(rest, symbol, depth + 1)?;
        values.push(value);
        rest = match behind.strip_prefix(", ") {
            Some(next) => next,
            None => return Some((of(name, &values)?, behind.strip_prefix(')')?)),
        };
    }
}

/// Applies a function to numbers.
fn of(name: &str, values: &[i64]) -> Option<i64> {
    let what = match name {
        "Add" => Scalar::Add,
        "Mul" => Scalar::Mul,
        "Max" => Scalar::Max,
        "Min" => Scalar::Min,
        "Pow" => Scalar::Pow,
        "FloorDiv" | "CleanDiv" => Scalar::FloorDiv,
        "Mod" | "PythonMod" => Scalar::Mod,
        _ => return None,
    };
    let (first, others) = values.split_first()?;
    others.iter().try_fold(*first, |sum, other| {
        match what.apply(&[Number::Int(sum), Number::Int(*other)]) {
            Ok(Number::Int(number)) => Some(number),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_computed_as_pytorch_writes_them() {
        let s = "Symbol('s53', positive=True, integer=True)";
        let halved = format!("Add(FloorDiv(Add({s}, Integer(-3)), Integer(2)), Integer(2))");
        let of = |text: &str, s: i64| value(text, &|own| (own == "s53").then_some(s));
        assert_eq!(of(&halved, 16), Some(8));
        assert_eq!(of(&halved, 17), Some(9));
        assert_eq!(of(s, 5), Some(5));
        assert_eq!(of(&format!("Mul(Integer(2), {s}, {s})"), 3), Some(18));
        for wrong in [
            "Symbol('s0', integer=True)".to_owned(),
            format!("sin({s})"),
            format!("{s})"),
            format!("Add({s}"),
            format!("FloorDiv({s}, Integer(0))"),
            format!("{}{s}{}", "Add(".repeat(1000), ")".repeat(1000)),
            String::new(),
        ] {
            assert_eq!(of(&wrong, 16), None, "{wrong}");
        }
    }
}
