//! Entries of tar files: ustar, with the long names of GNU and pax.

use std::path::Path;

use crate::DataError;
use crate::disk_file::DiskFile;
use crate::magic::{self, Magic};

const BLOCK: u64 = 512;
/// Limit of the length of names and attributes.
const LONGEST: u64 = 1 << 16;

/// A file in a tar archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// Attributes that precede a file.
#[derive(Default)]
struct Ahead {
    name: Option<String>,
    bytes: Option<u64>,
}

/// Passes each file to `show`, in order; folders and links are skipped.
///
/// # Errors
/// The file cannot be read, is not a tar file, is compressed, or ends within an entry; the error gives
/// the offset.
pub(super) fn entries(
    file: &DiskFile,
    mut show: impl FnMut(Entry) -> Result<(), DataError>,
) -> Result<(), DataError> {
    magic::refuse_other(file.path(), &[Magic::Tar])?;
    let (mut at, mut ahead) = (0, Ahead::default());
    let mut header = [0; BLOCK as usize];
    while at < file.len() {
        if file.len() - at < BLOCK {
            return Err(cut(file.path(), at));
        }
        file.read(&mut header, at)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let own = Header::read(&header).map_err(|what| {
            let what = match at {
                0 => "this is no tar file: its first 512 bytes are no header",
                _ => what,
            };
            DataError::bad(file.path(), at, what)
        })?;
        let start = at + BLOCK;
        let bytes = match own.kind {
            // The pax attributes of the next file.
            b'0' | 0 => ahead.bytes.unwrap_or(own.bytes),
            _ => own.bytes,
        };
        let next = bytes
            .checked_next_multiple_of(BLOCK)
            .and_then(|bytes| start.checked_add(bytes));
        let next = next.filter(|_| bytes <= file.len() - start);
        let next = next.ok_or_else(|| cut(file.path(), at))?;
        match own.kind {
            b'0' | 0 => {
                let name = std::mem::take(&mut ahead).name.unwrap_or(own.name);
                show(Entry { name, start, bytes })?;
            }
            b'L' => ahead.name = Some(text(&attributes(file, at, bytes)?)),
            b'x' => ahead.read(&attributes(file, at, bytes)?),
            // Global attributes are not needed.
            b'g' | b'K' => {}
            _ => ahead = Ahead::default(),
        }
        at = next;
    }
    Ok(())
}

fn cut(path: &Path, at: u64) -> DataError {
    DataError::bad(
        path,
        at,
        "the file ends inside of the entry that begins here: was it copied whole?",
    )
}

fn attributes(file: &DiskFile, at: u64, bytes: u64) -> Result<Vec<u8>, DataError> {
    if bytes > LONGEST {
        let what = format!("a name or attributes of {bytes} bytes are too long");
        return Err(DataError::bad(file.path(), at, what));
    }
    let mut all = vec![0; bytes as usize];
    file.read(&mut all, at + BLOCK)?;
    Ok(all)
}

impl Ahead {
    /// Reads lines of `LENGTH KEY=VALUE`, where the length is that of the whole line.
    fn read(&mut self, mut attributes: &[u8]) {
        while let Some(space) = attributes.iter().position(|byte| *byte == b' ') {
            let length = std::str::from_utf8(&attributes[..space]).ok();
            let length = length.and_then(|own| own.parse::<usize>().ok());
            let Some(length) = length.filter(|own| *own > space && *own <= attributes.len()) else {
                return;
            };
            let line = &attributes[space + 1..length.max(space + 1)];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            if let Some(name) = line.strip_prefix(b"path=") {
                self.name = Some(text(name));
            } else if let Some(size) = line.strip_prefix(b"size=") {
                self.bytes = text(size).parse().ok();
            }
            attributes = &attributes[length..];
        }
    }
}

/// Returns the bytes before the first zero as text.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

struct Header {
    name: String,
    bytes: u64,
    kind: u8,
}

impl Header {
    fn read(block: &[u8; BLOCK as usize]) -> Result<Self, &'static str> {
        // The sum of all bytes, with spaces in place of the sum itself.
        let sum = |range: std::ops::Range<usize>| {
            block[range].iter().map(|own| u64::from(*own)).sum::<u64>()
        };
        let wanted = sum(0..148) + 8 * u64::from(b' ') + sum(156..512);
        if number(&block[148..156]) != Some(wanted) {
            return Err("the checksum of this entry's header is wrong");
        }
        let bytes = number(&block[124..136]).ok_or("this entry's header tells no size")?;
        let mut name = text(&block[..100]);
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            name = format!("{}/{name}", text(&block[345..500]));
        }
        let kind = block[156];
        Ok(Self { name, bytes, kind })
    }
}

/// Parses a number in octal digits, or in binary after a set first bit, as GNU writes it.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        let (zeros, last) = field[1..].split_at(field.len() - 9);
        let value = u64::from_be_bytes(last.try_into().ok()?);
        return zeros.iter().all(|byte| *byte == 0).then_some(value);
    }
    let digits = text(field);
    u64::from_str_radix(digits.trim(), 8).ok()
}
