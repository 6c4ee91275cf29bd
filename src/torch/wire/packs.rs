//! Which memories of a value travel together.
//!
//! A message costs what some ten kilobytes do, and a stage's gradients can be hundreds of tensors
//! of that size. So a value that is small as a whole is in one message with its header, and of a
//! larger one the small memories go together. Both ends read that off the header.

use super::header::{FIRST, Header};

/// Memories of no more bytes go together with others: what it takes to copy them twice is less than
/// what a message takes.
const SMALL: u64 = 32 << 10;

/// Those that go together have no more bytes than this.
const TOGETHER: u64 = 1 << 20;

impl Header {
    /// Whether some of the values go from GPU to GPU.
    pub(crate) fn is_by_gpu(&self) -> bool {
        self.memories.iter().any(|memory| memory.by_gpu)
    }

    /// Whether all is in the first message.
    pub(crate) fn is_inline(&self) -> bool {
        let bytes = self.memories.iter().map(|memory| memory.bytes);
        let all = bytes.fold(self.written() as u64, u64::saturating_add);
        !self.is_by_gpu() && all <= FIRST as u64
    }

    /// By message behind the header, where not all is in the first one: the memories that it has, of
    /// those of the host's that are not empty.
    pub(crate) fn packs(&self) -> Vec<Vec<usize>> {
        let mut packs: Vec<Vec<usize>> = Vec::new();
        // The last message of small ones, and its bytes.
        let mut open: Option<(usize, u64)> = None;
        for (index, memory) in self.memories.iter().enumerate() {
            if memory.by_gpu || memory.bytes == 0 {
                continue;
            }
            match &mut open {
                Some((pack, bytes)) if memory.bytes <= SMALL.min(TOGETHER - *bytes) => {
                    packs[*pack].push(index);
                    *bytes += memory.bytes;
                }
                _ => {
                    if memory.bytes <= SMALL {
                        open = Some((packs.len(), memory.bytes));
                    }
                    packs.push(vec![index]);
                }
            }
        }
        packs
    }

    /// How many messages behind the first one somebody receives ahead who expects the same again:
    /// those of values that all go through the host's memory.
    pub(crate) fn received_ahead(&self) -> usize {
        if self.is_by_gpu() || self.is_inline() {
            0
        } else {
            self.packs().len()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{Layout, MemoryHeader};
    use super::*;

    fn packs(sizes: &[u64]) -> Vec<Vec<usize>> {
        let memory = |bytes: &u64| MemoryHeader {
            bytes: *bytes,
            layout: Layout::Whole,
            misalignment: 0,
            by_gpu: false,
        };
        let header = Header {
            memories: sizes.iter().map(memory).collect(),
            values: Vec::new(),
        };
        header.packs()
    }

    #[test]
    fn small_memories_go_together_and_large_ones_apart() {
        let none: [Vec<usize>; 0] = [];
        assert_eq!(packs(&[]), none);
        assert_eq!(packs(&[100, 4000]), [[0, 1]]);
        assert_eq!(packs(&[4096, 128, 4096, 128]), [vec![0, 1, 2, 3]]);
        let large = 4 << 20;
        assert_eq!(
            packs(&[large, 128, 0, large, 128]),
            [vec![0], vec![1, 4], vec![3]]
        );
        assert_eq!(packs(&[large]), [[0]]);
        assert_eq!(packs(&[SMALL + 1, SMALL + 1]), [[0], [1]]);
    }

    #[test]
    fn what_goes_together_has_a_limit() {
        let all = packs(&[SMALL; 70]);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [32, 32, 6]);
        assert_eq!(all.concat(), (0..70).collect::<Vec<_>>());
    }
}
