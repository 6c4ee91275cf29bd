//! Decompressed sizes declared by the pages of a Parquet file, read before decompressing.
//!
//! A page of a few bytes may claim to decompress to two gigabytes, and a run of one value to have a
//! billion rows. The format's reader trusts both, so the headers are added up first. They use Thrift's
//! compact protocol; three numbers are read.

/// Declared contents of a column chunk's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Told {
    /// Decompressed bytes.
    pub(super) bytes: u64,
    /// Number of values, including nulls.
    pub(super) values: u64,
}

/// Adds up the headers of all pages of a column chunk; `None` if one is damaged, or if the chunk ends
/// within a page.
pub(super) fn told(chunk: &[u8]) -> Option<Told> {
    let (mut rest, mut all) = (Thrift(chunk), Told::default());
    while !rest.0.is_empty() {
        let page = rest.page()?;
        all.bytes = all.bytes.checked_add(page.becomes)?;
        all.values = all.values.checked_add(page.values)?;
        rest.take(page.bytes)?;
    }
    Some(all)
}

#[derive(Default)]
struct Page {
    bytes: usize,
    becomes: u64,
    values: u64,
}

/// Limit of nested structures in a page's header.
const DEEP: usize = 8;

/// Remaining bytes in Thrift's compact protocol.
struct Thrift<'a>(&'a [u8]);

/// Field types.
const I32: u8 = 5;
const STRUCT: u8 = 12;

impl Thrift<'_> {
    fn page(&mut self) -> Option<Page> {
        let mut page = Page::default();
        self.fields(&mut |own, field, kind| {
            match (field, kind) {
                (2, I32) => page.becomes = u64::try_from(own.integer()?).ok()?,
                (3, I32) => page.bytes = usize::try_from(own.integer()?).ok()?,
                // Data page, dictionary page, data page of version 2.
                (5 | 7 | 8, STRUCT) => own.fields(&mut |own, field, kind| match (field, kind) {
                    (1, I32) => {
                        page.values = u64::try_from(own.integer()?).ok()?;
                        Some(())
                    }
                    (_, kind) => own.skip(kind, DEEP),
                })?,
                (_, kind) => own.skip(kind, DEEP)?,
            }
            Some(())
        })?;
        Some(page)
    }

    /// Calls `each` with the number and type of each field of a structure to read the field.
    fn fields(&mut self, each: &mut dyn FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut field = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => self.integer()?,
                step => field.checked_add(step.into())?,
            };
            each(self, field, head & 0xf)?;
        }
    }

    fn skip(&mut self, kind: u8, deep: usize) -> Option<()> {
        let deep = deep.checked_sub(1)?;
        match kind {
            // A boolean field's type is its value.
            1 | 2 => Some(()),
            3 => self.take(1),
            4..=6 => self.integer().map(|_| ()),
            7 => self.take(8),
            8 => {
                let bytes = usize::try_from(self.number()?).ok()?;
                self.take(bytes)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.number()?,
                    few => few.into(),
                };
                (0..count).try_for_each(|_| match head & 0xf {
                    1 | 2 => self.take(1),
                    kind => self.skip(kind, deep),
                })
            }
            STRUCT => self.fields(&mut |own, _, kind| own.skip(kind, deep)),
            // Maps, which page headers do not have.
            _ => None,
        }
    }

    /// Reads a signed integer.
    fn integer(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Reads a varint: seven bits per byte, lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a data page: its type, decompressed size and bytes, and a structure with the number of
    /// values.
    fn page(becomes: i32, values: i32, bytes: &[u8]) -> Vec<u8> {
        let number = |number: i32| {
            let (mut rest, mut all) = (((number << 1) ^ (number >> 31)) as u32, Vec::new());
            while rest >= 0x80 {
                all.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            all.push(rest as u8);
            all
        };
        let length = number(bytes.len() as i32);
        [
            &[0x15][..],
            &number(0),
            &[0x15],
            &number(becomes),
            &[0x15],
            &length,
            // Field 5, a structure: the number of values, and an encoding.
            &[0x2c, 0x15],
            &number(values),
            &[0x15, 0, 0, 0],
            bytes,
        ]
        .concat()
    }

    #[test]
    fn pages_are_added_up_and_cut_ones_are_none() {
        let first = page(i32::MAX, 300, b"abc");
        let all = [first.clone(), page(5, 7, b"")].concat();
        let wanted = Told {
            bytes: i32::MAX as u64 + 5,
            values: 307,
        };
        assert_eq!(told(&all), Some(wanted));
        for end in 0..all.len() {
            let whole = end == 0 || end == first.len();
            assert_eq!(told(&all[..end]).is_some(), whole, "cut at {end}");
        }
        assert_eq!(told(&page(-1, 7, b"")), None);
        assert_eq!(told(&page(1, -7, b"")), None);
    }

    #[test]
    fn structures_without_end_are_refused() {
        // Nested structures of an unknown field.
        assert_eq!(told(&[0xac; 1 << 16]), None);
        // Nested lists.
        assert_eq!(told(&[0xa9; 1 << 16]), None);
    }
}
