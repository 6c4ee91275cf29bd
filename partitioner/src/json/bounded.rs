//! Bounded values of a file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::rule::shorten;
use crate::units::{Bytes, Micros};

/// A whole number in `MIN..=MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number as an index or a length.
    pub(crate) const fn size(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bounds<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Bounds<MIN, MAX> {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
                if (MIN..=MAX).contains(&value) {
                    return Ok(value);
                }
                Err(must_be(&self, value))
            }
        }
        from.deserialize_any(Bounds::<MIN, MAX>).map(Self)
    }
}

/// A number in `0..=MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<const MAX: u64>(f64);

impl<const MAX: u64> Number<MAX> {
    pub(crate) const fn get(self) -> f64 {
        self.0
    }

    pub(crate) fn micros(self) -> Micros {
        // In range, so nothing is clamped.
        Micros::saturating(self.0)
    }
}

impl<'de, const MAX: u64> Deserialize<'de> for Number<MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        within(from, 0.0, MAX as f64).map(Self)
    }
}

/// A finite number in `min..=max`.
pub(crate) fn within<'de, D: Deserializer<'de>>(
    from: D,
    min: f64,
    max: f64,
) -> Result<f64, D::Error> {
    struct Bounds(f64, f64);
    impl Visitor<'_> for Bounds {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a number from {} to {}", self.0, self.1)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
            self.visit_f64(value as f64)
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
            self.visit_f64(value as f64)
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
            if (self.0..=self.1).contains(&value) {
                return Ok(value);
            }
            if value.abs() >= 1e15 {
                return Err(must_be(&self, format_args!("{value:e}")));
            }
            Err(must_be(&self, value))
        }
    }
    from.deserialize_any(Bounds(min, max))
}

/// A text of at most `MAX` bytes.
#[derive(Clone, Debug)]
pub(crate) struct Text<const MAX: usize>(pub(crate) String);

impl<'de, const MAX: usize> Deserialize<'de> for Text<MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Length<const MAX: usize>;
        impl<const MAX: usize> Visitor<'_> for Length<MAX> {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a text of at most {MAX} bytes")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
                if text.len() <= MAX {
                    return Ok(text.to_owned());
                }
                Err(must_be(
                    &self,
                    format_args!("the text \"{}\"", shorten(text)),
                ))
            }
        }
        from.deserialize_any(Length::<MAX>).map(Self)
    }
}

/// A list of `MIN..=MAX` entries.
#[derive(Clone, Debug)]
pub(crate) struct List<T, const MIN: usize, const MAX: usize>(pub(crate) Vec<T>);

impl<T, const MIN: usize, const MAX: usize> List<T, MIN, MAX> {
    /// Converts each entry.
    pub(crate) fn map<U>(self, into: impl FnMut(T) -> U) -> Vec<U> {
        self.0.into_iter().map(into).collect()
    }
}

impl<'de, T: Deserialize<'de>, const MIN: usize, const MAX: usize> Deserialize<'de>
    for List<T, MIN, MAX>
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Length<T, const MIN: usize, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MIN: usize, const MAX: usize> Visitor<'de>
            for Length<T, MIN, MAX>
        {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of {MIN} to {MAX} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    // Before an endless list exhausts the memory.
                    if entries.len() == MAX {
                        return Err(A::Error::custom(format_args!(
                            "must have from {MIN} to {MAX} entries, has more"
                        )));
                    }
                    entries.push(entry);
                }
                if entries.len() < MIN {
                    return Err(A::Error::custom(format_args!(
                        "must have from {MIN} to {MAX} entries, has {}",
                        entries.len()
                    )));
                }
                Ok(entries)
            }
        }
        let entries = from.deserialize_any(Length::<T, MIN, MAX>(PhantomData));
        entries.map(Self)
    }
}

/// The fields of `T`; derived code alone would accept a list as well.
#[derive(Clone, Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }
        from.deserialize_any(Fields(PhantomData)).map(Self)
    }
}

fn must_be<E: Error>(expected: &dyn serde::de::Expected, found: impl fmt::Display) -> E {
    E::custom(format_args!("must be {expected}, is {found}"))
}
