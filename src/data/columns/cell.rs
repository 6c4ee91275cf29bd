//! A value of an Arrow array.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Date32Type, Date64Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use time::OffsetDateTime;

/// A value, in the types that are supported.
#[derive(Debug, Clone)]
pub(super) enum Cell<'a> {
    Null,
    Whole(i64),
    Number(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(ArrayRef),
    /// A structure or any other type.
    Other,
}

impl Cell<'_> {
    /// Name of the type, for messages.
    pub(super) fn is(&self) -> &'static str {
        match self {
            Self::Null => "no value",
            Self::Whole(_) => "a whole number",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "a list",
            Self::Other => "a value of another kind",
        }
    }
}

/// Returns the value in a row of an array.
pub(super) fn cell(array: &dyn Array, row: usize) -> Cell<'_> {
    if array.is_null(row) {
        return Cell::Null;
    }
    macro_rules! number {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row)
        };
    }
    match array.data_type() {
        DataType::Boolean => Cell::Whole(array.as_boolean().value(row).into()),
        DataType::Int8 => Cell::Whole(number!(Int8Type).into()),
        DataType::Int16 => Cell::Whole(number!(Int16Type).into()),
        DataType::Int32 => Cell::Whole(number!(Int32Type).into()),
        DataType::Int64 => Cell::Whole(number!(Int64Type)),
        DataType::UInt8 => Cell::Whole(number!(UInt8Type).into()),
        DataType::UInt16 => Cell::Whole(number!(UInt16Type).into()),
        DataType::UInt32 => Cell::Whole(number!(UInt32Type).into()),
        DataType::UInt64 => {
            let number = number!(UInt64Type);
            i64::try_from(number).map_or(Cell::Number(number as f64), Cell::Whole)
        }
        DataType::Float16 => Cell::Number(number!(Float16Type).to_f64()),
        DataType::Float32 => Cell::Number(number!(Float32Type).into()),
        DataType::Float64 => Cell::Number(number!(Float64Type)),
        DataType::Utf8 => Cell::Text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Cell::Text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Cell::Text(array.as_string_view().value(row)),
        DataType::Binary => Cell::Bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Cell::Bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Cell::Bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => Cell::Bytes(array.as_fixed_size_binary().value(row)),
        DataType::List(_) => Cell::List(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Cell::List(array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(_, _) => Cell::List(array.as_fixed_size_list().value(row)),
        DataType::Dictionary(_, _) => {
            let coded = array.as_any_dictionary();
            match cell(coded.keys(), row) {
                Cell::Whole(key) => cell(coded.values(), key as usize),
                _ => Cell::Null,
            }
        }
        _ => Cell::Other,
    }
}

/// Formats a date or a time: `2024-01-31`, `2024-01-31T18:30:00.5`, with `Z` if the column has a time
/// zone (its numbers are in UTC).
pub(super) fn moment(array: &dyn Array, row: usize) -> Option<String> {
    macro_rules! number {
        ($type:ty) => {
            i128::from(array.as_primitive::<$type>().value(row))
        };
    }
    let nanoseconds = match array.data_type() {
        DataType::Date32 => number!(Date32Type) * 86_400_000_000_000,
        DataType::Date64 => number!(Date64Type) * 1_000_000,
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => number!(TimestampSecondType) * 1_000_000_000,
            TimeUnit::Millisecond => number!(TimestampMillisecondType) * 1_000_000,
            TimeUnit::Microsecond => number!(TimestampMicrosecondType) * 1000,
            TimeUnit::Nanosecond => number!(TimestampNanosecondType),
        },
        _ => return None,
    };
    let moment = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok()?;
    let (year, month, day) = moment.to_calendar_date();
    let date = format!("{year:04}-{:02}-{day:02}", u8::from(month));
    let DataType::Timestamp(_, zone) = array.data_type() else {
        return Some(date);
    };
    let (hours, minutes, seconds, nanoseconds) = moment.to_hms_nano();
    let mut time = format!("{date}T{hours:02}:{minutes:02}:{seconds:02}");
    if nanoseconds > 0 {
        let digits = format!("{nanoseconds:09}");
        time = format!("{time}.{}", digits.trim_end_matches('0'));
    }
    if zone.is_some() {
        time.push('Z');
    }
    Some(time)
}
