//! Where a loader stands, and what comes next.

use serde::{Deserialize, Serialize};

/// More than any loader comes to: one that gives a thousand million items a second has not
/// in a hundred days.
const MOST: u64 = 1 << 53;

/// Up to where items were consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) epoch: u64,
    /// Items of the epoch, bad ones counted.
    #[serde(rename = "position")]
    pub(super) items: usize,
    /// Bad ones among them.
    pub(super) skipped: u64,
}

impl Position {
    pub(super) const START: Self = Self {
        epoch: 0,
        items: 0,
        skipped: 0,
    };

    /// Whether a loader of so many items an epoch can stand there: what was read may be
    /// anything.
    pub(super) fn is_one_of(self, len: usize) -> bool {
        self.items <= len
            && [self.epoch, self.items as u64, self.skipped]
                .iter()
                .all(|n| *n < MOST)
    }

    /// The end of an epoch is the start of the next.
    pub(super) fn normal(self, len: usize) -> Self {
        if self.items < len {
            return self;
        }
        Self {
            epoch: self.epoch + 1,
            ..Self::START
        }
    }
}

/// What is saved of a loader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The data that the position is one in.
    pub(super) data: String,
    #[serde(flatten)]
    pub(super) position: Position,
}

/// Items of one epoch in a row: what a worker makes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) epoch: u64,
    pub(super) first: usize,
    pub(super) count: usize,
    /// Whether the epoch ends with them.
    pub(super) ends: bool,
}

/// Spans up to the end of the last epoch.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) epoch: u64,
    pub(super) next: usize,
    /// Items of an epoch.
    pub(super) len: usize,
    /// Items of a span.
    pub(super) size: usize,
    /// None: without end.
    pub(super) epochs: Option<u64>,
}

impl Iterator for Spans {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.len == 0 || self.epochs.is_some_and(|epochs| self.epoch >= epochs) {
            return None;
        }
        let count = self.size.min(self.len - self.next);
        let (epoch, first) = (self.epoch, self.next);
        self.next += count;
        let ends = self.next == self.len;
        if ends {
            self.epoch += 1;
            self.next = 0;
        }
        Some(Span {
            epoch,
            first,
            count,
            ends,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_each_epoch_and_end_with_it() {
        let spans = Spans {
            epoch: 1,
            next: 2,
            len: 5,
            size: 2,
            epochs: Some(3),
        };
        let spans: Vec<_> = spans
            .map(|span| (span.epoch, span.first, span.count, span.ends))
            .collect();
        let second = [(1, 2, 2, false), (1, 4, 1, true)];
        let third = [(2, 0, 2, false), (2, 2, 2, false), (2, 4, 1, true)];
        assert_eq!(spans, [&second[..], &third].concat());
    }
}
