//! Files of NumPy's `save`: a header line and the data.
//!
//! *Source*: NumPy's `numpy/lib/format.py`, versions 1.0, 2.0 and 3.0.

use tch::Kind;

use super::Array;
use super::part::Part;
use crate::DataError;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Limit of the header's length; NumPy's own headers of plain numbers are below 200 bytes.
const MOST_HEADER: u64 = 1 << 16;

/// Opens a file as an array called `name`.
pub(super) fn array(name: &str, file: &Part) -> Result<Array, DataError> {
    let bad = |what: String| file.bad(0, format!("the array `{name}`: {what}"));
    let (text, start) = header(file, &bad)?;
    let Description {
        descr,
        columns,
        shape,
    } = Description::parse(&text).map_err(|why| bad(format!("its header {text:?} {why}")))?;
    let kind = kind(&descr).map_err(|why| bad(format!("its numbers are `{descr}`: {why}")))?;
    if columns && shape.len() > 1 {
        return Err(bad(
            "its numbers are in Fortran's order, column by column: save numpy.ascontiguousarray \
             of it"
                .to_owned(),
        ));
    }
    let data = file.within(start, file.len() - start);
    let data = data.ok_or_else(|| bad("its header is longer than the file".to_owned()))?;
    Array::of(name, kind, &shape, data)
}

/// Reads the header and the offset of the data; `bad` makes the error.
fn header(file: &Part, bad: &impl Fn(String) -> DataError) -> Result<(String, u64), DataError> {
    let mut start = [0; 12];
    let there = file.len().min(12) as usize;
    file.read(&mut start[..there], 0)?;
    if !start.starts_with(MAGIC) {
        let what = "this is no .npy file: it does not begin with \\x93NUMPY";
        return Err(bad(what.to_owned()));
    }
    let [_, _, _, _, _, _, version, _, a, b, c, d] = start;
    let (before, length) = match version {
        1 => (10, u64::from(u16::from_le_bytes([a, b]))),
        2 | 3 => (12, u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => {
            let what = format!("its version is {version}, and 1 to 3 are known");
            return Err(bad(what));
        }
    };
    if length > MOST_HEADER || before + length > file.len() {
        return Err(bad(format!(
            "it announces a header of {length} bytes, but the file has {}: was it copied whole?",
            file.len()
        )));
    }
    let mut text = vec![0; length as usize];
    file.read(&mut text, before)?;
    let text = String::from_utf8(text).map_err(|_| bad("its header is no text".to_owned()))?;
    Ok((text.trim_end().to_owned(), before + length))
}

/// The parsed header.
#[derive(Debug, Default, PartialEq, Eq)]
struct Description {
    descr: String,
    /// Whether the array is in Fortran order.
    columns: bool,
    shape: Vec<usize>,
}

impl Description {
    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
    fn parse(text: &str) -> Result<Self, String> {
        let inside = text
            .trim()
            .strip_prefix('{')
            .and_then(|own| own.strip_suffix('}'));
        let mut rest = inside.ok_or("is not in braces")?.trim();
        let (mut descr, mut columns, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            let value = after
                .trim_start()
                .strip_prefix(':')
                .ok_or("lacks a colon")?
                .trim_start();
            rest = match key {
                "descr" if value.starts_with('[') => {
                    return Err(
                        "is of several columns of different kinds: save each by itself".to_owned(),
                    );
                }
                "descr" => {
                    let (own, after) = quoted(value)?;
                    descr = Some(own.to_owned());
                    after
                }
                "fortran_order" => {
                    let (own, after) = truth(value)?;
                    columns = Some(own);
                    after
                }
                "shape" => {
                    let (own, after) = sides(value)?;
                    shape = Some(own);
                    after
                }
                other => return Err(format!("has an unknown entry `{other}`")),
            };
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        let lacks = |what: &str| format!("lacks `{what}`");
        Ok(Self {
            descr: descr.ok_or_else(|| lacks("descr"))?,
            columns: columns.ok_or_else(|| lacks("fortran_order"))?,
            shape: shape.ok_or_else(|| lacks("shape"))?,
        })
    }
}

/// Splits off a quoted string.
fn quoted(text: &str) -> Result<(&str, &str), &'static str> {
    let quote = text.chars().next().filter(|own| ['\'', '"'].contains(own));
    let quote = quote.ok_or("lacks a quote")?;
    text[1..].split_once(quote).ok_or("lacks a closing quote")
}

fn truth(text: &str) -> Result<(bool, &str), &'static str> {
    let yes = text.strip_prefix("True").map(|rest| (true, rest));
    let no = || text.strip_prefix("False").map(|rest| (false, rest));
    yes.or_else(no)
        .ok_or("does not tell True or False as fortran_order")
}

fn sides(text: &str) -> Result<(Vec<usize>, &str), String> {
    let inside = text.strip_prefix('(').and_then(|own| own.split_once(')'));
    let (inside, rest) = inside.ok_or("has no shape in parentheses")?;
    let sides = inside
        .split(',')
        .map(str::trim)
        .filter(|side| !side.is_empty());
    let side = |side: &str| {
        // Python 2 wrote long integers with this suffix.
        let number = side.strip_suffix('L').unwrap_or(side).parse();
        number.map_err(|_| format!("has a side `{side}`, which is no number"))
    };
    Ok((sides.map(side).collect::<Result<_, _>>()?, rest))
}

/// Converts NumPy's name of a type.
fn kind(descr: &str) -> Result<Kind, String> {
    let mut letters = descr.chars();
    let order = letters.next().filter(|own| "<>=|".contains(*own));
    let name = if order.is_some() {
        letters.as_str()
    } else {
        descr
    };
    let kind = match name {
        "b1" | "?" => Kind::Bool,
        "u1" => Kind::Uint8,
        "i1" => Kind::Int8,
        "i2" => Kind::Int16,
        "i4" => Kind::Int,
        "i8" => Kind::Int64,
        "f2" => Kind::Half,
        "f4" => Kind::Float,
        "f8" => Kind::Double,
        "u2" | "u4" | "u8" => {
            return Err("unsigned numbers of more than a byte: save .astype('int64')".to_owned());
        }
        "O" => return Err("objects, not numbers: save numbers (.astype('float32')), or of classes the number of each".to_owned()),
        _ if name.starts_with(['U', 'S']) => {
            return Err("texts, not numbers: save the number of each class".to_owned());
        }
        _ => return Err("libtorch has none such: save .astype('float32')".to_owned()),
    };
    if order == Some('>') && kind.elt_size_in_bytes() > 1 {
        return Err("big-endian: save .astype with `<` in place of `>`".to_owned());
    }
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_of_numpy_is_read() {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }";
        let description = Description::parse(text).unwrap();
        assert_eq!(description.shape, [60_000, 28, 28]);
        assert_eq!((&*description.descr, description.columns), ("<f4", false));
        let line = Description::parse("{\"shape\":(3,),'fortran_order':True,'descr':'|b1'}");
        assert_eq!(line.unwrap().shape, [3]);
    }

    #[test]
    fn numbers_that_libtorch_has_not_are_named_with_what_to_do() {
        for (descr, wanted) in [
            ("<u2", "int64"),
            (">f4", "big-endian"),
            ("|O", "objects"),
            ("<U5", "texts"),
            ("<c8", "none such"),
        ] {
            let error = kind(descr).unwrap_err();
            assert!(error.contains(wanted), "{descr}: {error}");
        }
        assert_eq!(kind("|u1"), Ok(Kind::Uint8));
        assert_eq!(kind(">i1"), Ok(Kind::Int8));
    }

    proptest! {
        /// Any line is parsed or rejected.
        #[test]
        fn no_line_is_too_strange(text in "[{}'\":,()a-z0-9 é<|]{0,60}") {
            let _ = Description::parse(&text);
        }

        #[test]
        fn what_numpy_writes_is_read(shape in prop::collection::vec(0_usize..1000, 1..5)) {
            let sides: Vec<_> = shape.iter().map(|side| format!("{side}, ")).collect();
            let sides = sides.concat();
            let text = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({sides}), }}");
            prop_assert_eq!(Description::parse(&text).unwrap().shape, shape);
        }
    }
}
