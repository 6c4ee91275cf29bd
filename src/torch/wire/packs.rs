//! Grouping of a value's memories into messages.
//!
//! A message costs as much as about ten kilobytes, and a stage's gradients can be hundreds of
//! tensors of that size. So a small value shares one message with its header, and the small
//! memories of a larger value are grouped. Both ends derive the grouping from the header.

use super::header::{FIRST, Header};

/// Largest memory to be grouped with others: copying it twice is cheaper than a message.
const SMALL: u64 = 32 << 10;

/// Most bytes of a group.
const TOGETHER: u64 = 1 << 20;

impl Header {
    /// Returns whether some of the values go from GPU to GPU.
    pub(crate) fn is_by_gpu(&self) -> bool {
        self.memories.iter().any(|memory| memory.by_gpu)
    }

    /// Returns whether all data is in the first message.
    pub(crate) fn is_inline(&self) -> bool {
        let bytes = self.memories.iter().map(|memory| memory.bytes);
        let all = bytes.fold(self.written() as u64, u64::saturating_add);
        !self.is_by_gpu() && all <= FIRST as u64
    }

    /// Returns the memories of each message after the header, if not all data is in the first one:
    /// the non-empty memories on the host.
    pub(crate) fn packs(&self) -> Vec<Vec<usize>> {
        let mut packs: Vec<Vec<usize>> = Vec::new();
        // The current message of small memories, and its bytes.
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

    /// Returns how many messages after the first one a receiver that expects the same value again
    /// receives ahead: those of values that only go through host memory.
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
