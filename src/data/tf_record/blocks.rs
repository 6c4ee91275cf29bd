//! Reads files in large blocks while these pay off.
//!
//! A system call for a record of 300 bytes takes longer than its checksum and its decoding together.
//! Records read in order, or shuffled within a window, are close together, so a block read for one of
//! them also has the next ones. Records from all over a large file are not: reading blocks for them
//! would read a thousand times too much. The access pattern decides: a block costs what it saves for
//! [`WORTH`] records, and blocks are read only while they pay for themselves.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

/// Bytes per block.
const BLOCK: u64 = 1 << 18;
/// Number of cached blocks: a window of 4 MiB, shared by all workers.
const KEPT: usize = 16;
/// Larger records are read directly.
pub(super) const LARGE: u64 = 1 << 15;
/// Approximate number of records read directly in the time of reading a block.
const WORTH: i64 = 64;
/// Credit for a record found in a block, in units of a record read directly. The latter also earn
/// credit for new attempts, so that a shuffle that becomes local is noticed.
const HIT: i64 = 64;
const COST: i64 = WORTH * HIT;
/// Number of blocks that may be read in vain.
const TRIES: i64 = 64;

type Bytes = Arc<Vec<u8>>;

/// A block of a file, by the numbers of the file and the block.
#[derive(Debug, Clone)]
struct Block {
    file: usize,
    number: u64,
    bytes: Bytes,
}

/// The most recently used blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    recent: Mutex<VecDeque<Block>>,
    /// Memory of old blocks.
    unused: Mutex<Vec<Vec<u8>>>,
    credit: AtomicI64,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            recent: Mutex::default(),
            unused: Mutex::default(),
            credit: AtomicI64::new(TRIES * COST),
        }
    }
}

/// Blocks held by a reader, and its credit since it began.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    blocks: &'a Blocks,
    own: Vec<Block>,
    earned: i64,
    /// A record that spans two blocks.
    joined: Vec<u8>,
}

impl Blocks {
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            blocks: self,
            own: Vec::new(),
            earned: 0,
            joined: Vec::new(),
        }
    }

    /// Returns a cached block, or reads it if that pays off; `None` if the file is shorter than
    /// expected, which reading the record will report.
    fn block(&self, (file, open): (usize, &File), number: u64, size: u64) -> Option<Block> {
        let is_it = |own: &Block| (own.file, own.number) == (file, number);
        {
            let mut recent = self.recent.lock();
            if let Some(place) = recent.iter().position(is_it) {
                let found = recent.remove(place)?;
                recent.push_front(found.clone());
                return Some(found);
            }
        }
        if self.credit.load(Ordering::Relaxed) < COST {
            return None;
        }
        self.credit.fetch_sub(COST, Ordering::Relaxed);
        let start = number * BLOCK;
        let length = BLOCK.min(size.checked_sub(start)?) as usize;
        let mut bytes = self.memory();
        bytes.resize(length, 0);
        if open.read_exact_at(&mut bytes, start).is_err() {
            self.unused.lock().push(bytes);
            return None;
        }
        let bytes = Arc::new(bytes);
        let read = Block {
            file,
            number,
            bytes,
        };
        let mut recent = self.recent.lock();
        recent.push_front(read.clone());
        let kept = KEPT.min(recent.len());
        let old = recent.split_off(kept).into_iter();
        let old = old.filter_map(|own| Arc::into_inner(own.bytes));
        self.unused.lock().extend(old);
        Some(read)
    }

    /// Returns memory for a block, reusing that of an unused one. If each worker allocated its own
    /// blocks and others freed them, the heap of each worker's thread would grow to the size of all
    /// blocks.
    fn memory(&self) -> Vec<u8> {
        let unused = self.unused.lock().pop();
        unused.unwrap_or_else(|| Vec::with_capacity(BLOCK as usize))
    }
}

impl Reader<'_> {
    /// Returns the bytes of a range of a file of this size, at most [`LARGE`], if blocks have them.
    pub(super) fn bytes(
        &mut self,
        file: (usize, &File),
        range: &Range<u64>,
        size: u64,
    ) -> Option<&[u8]> {
        let (first, last) = (range.start / BLOCK, (range.end - 1) / BLOCK);
        let from = (range.start % BLOCK) as usize;
        let length = (range.end - range.start) as usize;
        let Some(place) = self.place(file, first, size) else {
            self.earned += 1;
            return None;
        };
        if first == last {
            self.earned += HIT;
            return self.own[place].bytes.get(from..from + length);
        }
        let head = Arc::clone(&self.own[place].bytes);
        let tail = self.place(file, last, size)?;
        let head = head.get(from..)?;
        self.joined.clear();
        self.joined.extend_from_slice(head);
        let tail = self.own[tail].bytes.get(..length - head.len())?;
        self.joined.extend_from_slice(tail);
        self.earned += HIT;
        Some(&self.joined)
    }

    /// Returns the index of a block among those held.
    fn place(&mut self, file: (usize, &File), number: u64, size: u64) -> Option<usize> {
        let is_it = |own: &Block| (own.file, own.number) == (file.0, number);
        if let Some(place) = self.own.iter().rposition(is_it) {
            return Some(place);
        }
        let block = self.blocks.block(file, number, size)?;
        if self.own.len() == KEPT {
            self.own.remove(0);
        }
        self.own.push(block);
        Some(self.own.len() - 1)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let credit = &self.blocks.credit;
        // Concurrent updates may be lost: the credit is an estimate.
        let now = credit.load(Ordering::Relaxed).saturating_add(self.earned);
        credit.store(now.min(TRIES * COST), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: usize) -> (tempfile::TempDir, File, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let all: Vec<u8> = (0..bytes).map(|place| (place * 7 % 251) as u8).collect();
        std::fs::write(&path, &all).unwrap();
        (folder, File::open(&path).unwrap(), all)
    }

    #[test]
    fn what_blocks_give_is_what_the_file_has() {
        let size = 2 * BLOCK + 1000;
        let (_folder, open, all) = file(size as usize);
        let blocks = Blocks::default();
        let mut reader = blocks.reader();
        let edges = [
            0,
            1,
            BLOCK - 100,
            BLOCK - 1,
            BLOCK,
            2 * BLOCK - 7,
            size - 300,
        ];
        for start in edges {
            for length in [1, 7, 101, 300] {
                let range = start..(start + length).min(size);
                let wanted = &all[range.start as usize..range.end as usize];
                assert_eq!(
                    reader.bytes((0, &open), &range, size),
                    Some(wanted),
                    "{range:?}"
                );
            }
        }
        drop(reader);
        assert_eq!(blocks.recent.lock().len(), 3, "each was read once");
        // Another file, at the same positions.
        let (_folder, other, all) = file(10);
        let range = 3..10;
        let mut reader = blocks.reader();
        assert_eq!(reader.bytes((1, &other), &range, 10), Some(&all[3..10]));
    }

    /// Reuses unused blocks, while another reader holds its own.
    #[test]
    fn the_memory_of_old_blocks_is_used_again() {
        let size = (2 * KEPT as u64 + 3) * BLOCK + 1000;
        let (_folder, open, all) = file(size as usize);
        let blocks = Blocks::default();
        let mut holds = blocks.reader();
        let held = 100..300;
        holds.bytes((0, &open), &held, size).unwrap();
        let mut places = std::collections::BTreeSet::new();
        for start in (0..size).step_by(BLOCK as usize / 2) {
            let range = start..(start + 300).min(size);
            let wanted = &all[range.start as usize..range.end as usize];
            let mut reader = blocks.reader();
            assert_eq!(reader.bytes((0, &open), &range, size), Some(wanted));
            places.extend(reader.own.iter().map(|own| own.bytes.as_ptr()));
        }
        // The cached ones, one being read, and the one held.
        assert!(places.len() <= KEPT + 2, "{} places", places.len());
        assert_eq!(holds.bytes((0, &open), &held, size), Some(&all[100..300]));
    }

    #[test]
    fn blocks_are_read_while_they_pay_for_themselves() {
        let size = 400 * BLOCK;
        let folder = tempfile::tempdir().unwrap();
        let open = File::create_new(folder.path().join("file")).unwrap();
        open.set_len(size).unwrap();
        let open = {
            drop(open);
            File::open(folder.path().join("file")).unwrap()
        };
        let blocks = Blocks::default();
        let record = |number: u64| number * 300..number * 300 + 300;
        // From all over the file: block reads stop soon.
        let read = (0..400).filter(|number| {
            let start = number * BLOCK;
            let mut reader = blocks.reader();
            reader
                .bytes((0, &open), &(start..start + 300), size)
                .is_some()
        });
        let read = read.count() as i64;
        assert!((TRIES..TRIES + 4).contains(&read), "{read} blocks");
        // In order: after a new attempt, all come from blocks.
        let had = (0..40_000).filter(|number| {
            let mut reader = blocks.reader();
            reader.bytes((0, &open), &record(*number), size).is_some()
        });
        let had = had.count();
        assert!(had > 30_000, "{had} of 40000");
        assert!(blocks.recent.lock().len() <= KEPT);
    }

    #[test]
    fn a_file_that_was_cut_off_has_no_block() {
        let (folder, open, _) = file(1000);
        let path = folder.path().join("file");
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(10)
            .unwrap();
        let blocks = Blocks::default();
        assert_eq!(blocks.reader().bytes((0, &open), &(0..5), 1000), None);
    }
}
