//! The zip archive of an exported program: uncompressed entries, read in place.
//!
//! `torch.export.save` compresses nothing, so an entry is a range of the file and cannot be larger:
//! whatever the directory claims, no more is allocated.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::error::{ExportedReason, Result, damaged};
use super::other_kinds;

/// Limit of the directory's size: a hundred bytes per entry, and one entry per weight.
const MAX_DIRECTORY: u64 = 256 << 20;
/// Bytes read at a time of an entry read in pieces.
pub(super) const PIECE: u64 = 256 << 10;
const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_64: [u8; 4] = *b"PK\x06\x07";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

/// Source of the bytes.
#[derive(Debug, Clone)]
pub(super) enum Source {
    File(Arc<File>, u64),
    Bytes(Arc<[u8]>),
}

/// The entries of an archive, by name without their common folder.
#[derive(Debug, Clone)]
pub(super) struct Archive {
    source: Source,
    entries: Arc<HashMap<String, Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    local: u64,
    size: u64,
    crc: u32,
    name_length: u16,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = gpipe_partitioner::files::open(path)?;
        let length = file.metadata()?.len();
        Ok(Self::File(Arc::new(file), length))
    }

    fn len(&self) -> u64 {
        match self {
            Self::File(_, length) => *length,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Checks that a range is within the source; `what` names it for errors.
    fn check(&self, what: &str, from: u64, count: u64) -> Result<()> {
        let end = from.checked_add(count).filter(|end| *end <= self.len());
        if end.is_some() {
            return Ok(());
        }
        let why = format!("{count} bytes from {from} on are past the file's end");
        Err(damaged(what, why))
    }

    /// Reads a range; `what` names it for errors.
    fn read(&self, what: &str, from: u64, count: u64) -> Result<Vec<u8>> {
        self.check(what, from, count)?;
        let mut bytes = vec![0; count as usize];
        self.fill(what, from, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` from a position on.
    fn fill(&self, what: &str, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(what, from, bytes.len() as u64)?;
        match self {
            Self::File(file, _) => file.read_exact_at(bytes, from)?,
            Self::Bytes(all) => bytes.copy_from_slice(&all[from as usize..][..bytes.len()]),
        }
        Ok(())
    }
}

/// Numbers of a header in order, 0 beyond its end.
struct Header<'a>(&'a [u8]);

impl Header<'_> {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let own = self.0.get(at..at + bytes).unwrap_or_default();
        own.iter()
            .rev()
            .fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
    }
}

impl Archive {
    pub(super) fn new(source: Source) -> Result<Self> {
        let (start, size) = directory(&source)?;
        if size > MAX_DIRECTORY {
            return Err(wrong(format!("has {size} bytes")));
        }
        let bytes = source.read("the archive's directory", start, size)?;
        let mut all = HashMap::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (name, entry, length) = central(rest)?;
            rest = &rest[length..];
            if all.insert(name.clone(), entry).is_some() {
                return Err(wrong(format!("has `{name}` twice")));
            }
        }
        let root = all.keys().find_map(|name| {
            let root = name.strip_suffix("archive_format")?;
            (root.ends_with('/') && root.matches('/').count() == 1).then(|| root.to_owned())
        });
        let names = || all.keys().map(String::as_str);
        let root = root.ok_or_else(|| other_kinds::of_entries(names()))?;
        let within =
            |(name, entry): (String, Entry)| Some((name.strip_prefix(&root)?.into(), entry));
        Ok(Self {
            entries: Arc::new(all.into_iter().filter_map(within).collect()),
            source,
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns the size of an entry.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        Some(self.entries.get(name)?.size)
    }

    /// Returns a checksum of the contents, from the directory.
    pub(super) fn fingerprint(&self) -> u32 {
        let entries: BTreeMap<_, _> = self.entries.iter().collect();
        let mut sum = crc32fast::Hasher::new();
        for (name, entry) in entries {
            sum.update(name.as_bytes());
            sum.update(&entry.size.to_le_bytes());
            sum.update(&entry.crc.to_le_bytes());
        }
        sum.finalize()
    }

    /// Returns the names with a prefix.
    pub(super) fn names(&self, prefix: &str) -> Vec<&str> {
        let names = self.entries.keys().map(String::as_str);
        let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort_unstable();
        names
    }

    /// Reads an entry and verifies its checksum.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let (start, entry) = self.place(name)?;
        let bytes = self.source.read(name, start, entry.size)?;
        entry.check(name, crc32fast::hash(&bytes))?;
        Ok(bytes)
    }

    /// Reads an entry in pieces: `each` gets a piece's offset, a multiple of [`PIECE`], and its bytes.
    /// The checksum is verified after the last one.
    pub(super) fn read_in_pieces(
        &self,
        name: &str,
        mut each: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (start, entry) = self.place(name)?;
        self.source.check(name, start, entry.size)?;
        let mut piece = vec![0; PIECE.min(entry.size) as usize];
        let mut sum = crc32fast::Hasher::new();
        let mut at = 0;
        while at < entry.size {
            let count = PIECE.min(entry.size - at) as usize;
            let piece = &mut piece[..count];
            self.source.fill(name, start + at, piece)?;
            sum.update(piece);
            each(at, piece)?;
            at += count as u64;
        }
        Ok(entry.check(name, sum.finalize())?)
    }

    /// Returns the offset of an entry's bytes.
    fn place(&self, name: &str) -> Result<(u64, Entry)> {
        let entry = self.entries.get(name);
        let entry = *entry.ok_or_else(|| damaged(name, "the archive does not have it"))?;
        let local = self.source.read(name, entry.local, 30)?;
        let header = Header(&local);
        if local[..4] != LOCAL || header.number(26, 2) != u64::from(entry.name_length) {
            return Err(damaged(name, "is not where the archive's directory says"));
        }
        let start = (entry.local + 30)
            .checked_add(header.number(26, 2) + header.number(28, 2))
            .ok_or_else(|| damaged(name, "is past the file's end"))?;
        Ok((start, entry))
    }
}

impl Entry {
    fn check(&self, name: &str, sum: u32) -> Result<()> {
        if sum == self.crc {
            return Ok(());
        }
        let why = "its bytes do not have the checksum that was written";
        Err(damaged(name, why))
    }
}

fn wrong(why: impl Into<String>) -> ExportedReason {
    damaged("the archive's directory", why)
}

/// Returns the offset and size of the directory.
fn directory(source: &Source) -> Result<(u64, u64)> {
    // The end has 22 bytes and a comment of up to 65,535.
    let tail = source.len().min(22 + 65_535);
    let at = source.len() - tail;
    let bytes = source.read("the archive's end", at, tail)?;
    let end = (bytes.windows(4)).rposition(|window| window == END);
    let Some(end) = end else {
        let first = source.read("the file's beginning", 0, source.len().min(9))?;
        return Err(other_kinds::of_bytes(&first));
    };
    let header = Header(&bytes[end..]);
    if header.0.len() < 22 {
        return Err(wrong("is cut off"));
    }
    let plain = (header.number(16, 4), header.number(12, 4));
    let end = at + end as u64;
    let Some(locator) = end.checked_sub(20) else {
        return Ok(plain);
    };
    let locator = source.read("the archive's end", locator, 20)?;
    if locator[..4] != LOCATOR_64 {
        return Ok(plain);
    }
    let at = Header(&locator).number(8, 8);
    let large = source.read("the archive's end", at, 56)?;
    if large[..4] != END_64 {
        return Err(wrong("is not where the archive's end says"));
    }
    let header = Header(&large);
    Ok((header.number(48, 8), header.number(40, 8)))
}

/// Parses the first entry of the directory: its name, and the length of its record.
fn central(bytes: &[u8]) -> Result<(String, Entry, usize)> {
    let header = Header(bytes);
    if bytes.len() < 46 || bytes[..4] != CENTRAL {
        return Err(wrong("is damaged"));
    }
    let number = |at, bytes| header.number(at, bytes);
    let (name, extra) = (number(28, 2) as usize, number(30, 2) as usize);
    let length = 46 + name + extra + number(32, 2) as usize;
    if bytes.len() < length {
        return Err(wrong("is cut off"));
    }
    let own_name = std::str::from_utf8(&bytes[46..46 + name]);
    let own_name = own_name.map_err(|_| wrong("has a name that is not UTF-8"))?;
    let mut sizes = [number(24, 4), number(20, 4), number(42, 4)];
    large(&bytes[46 + name..46 + name + extra], &mut sizes);
    let [size, stored, local] = sizes;
    if number(10, 2) != 0 || size != stored || number(8, 2) & 1 != 0 {
        if other_kinds::is_of_script(own_name) {
            return Err(other_kinds::of_entries(std::iter::once(own_name)));
        }
        return Err(damaged(
            own_name,
            "is compressed or encrypted, which torch.export.save does not do",
        ));
    }
    let entry = Entry {
        local,
        size,
        crc: number(16, 4) as u32,
        name_length: number(28, 2) as u16,
    };
    Ok((own_name.to_owned(), entry, length))
}

/// Reads the sizes that exceed 32 bits from the extra field.
fn large(mut extra: &[u8], sizes: &mut [u64; 3]) {
    while extra.len() >= 4 {
        let header = Header(extra);
        let (tag, length) = (header.number(0, 2), header.number(2, 2) as usize);
        let Some(body) = extra.get(4..4 + length) else {
            return;
        };
        if tag == 1 {
            let mut at = 0;
            for size in sizes
                .iter_mut()
                .filter(|size| **size == u64::from(u32::MAX))
            {
                *size = Header(body).number(at, 8);
                at += 8;
            }
        }
        extra = &extra[4 + length..];
    }
}
