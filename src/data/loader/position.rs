//! Positions of a loader, and the spans that follow.

use serde::{Deserialize, Serialize};

/// Upper bound of any position: at a billion items per second, it is not reached in a hundred days.
const MOST: u64 = 1 << 53;

/// The position after the consumed items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) epoch: u64,
    /// Items of the epoch, including bad ones.
    #[serde(rename = "position")]
    pub(super) items: usize,
    /// Bad items of the epoch.
    pub(super) skipped: u64,
}

impl Position {
    pub(super) const START: Self = Self {
        epoch: 0,
        items: 0,
        skipped: 0,
    };

    /// Whether a position is valid for so many items per epoch: a saved one may hold anything.
    pub(super) fn is_one_of(self, len: usize) -> bool {
        self.items <= len
            && [self.epoch, self.items as u64, self.skipped]
                .iter()
                .all(|n| *n < MOST)
    }

    /// The end of an epoch is normalised to the start of the next.
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

/// Saved state of a loader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// Identity of the data.
    pub(super) data: String,
    #[serde(flatten)]
    pub(super) position: Position,
}

/// Consecutive items of one epoch: a worker's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) epoch: u64,
    pub(super) first: usize,
    pub(super) count: usize,
    /// Whether the epoch ends with the span.
    pub(super) ends: bool,
    /// Whether the worker makes a batch, rather than items that the batching thread stacks.
    pub(super) whole: bool,
}

/// The remaining spans of all epochs.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) epoch: u64,
    pub(super) next: usize,
    /// Items per epoch.
    pub(super) len: usize,
    /// Items per batch, and per span...
    pub(super) batch: usize,
    /// ...except in an epoch made item by item, where spans have this many.
    pub(super) span: usize,
    pub(super) one_by_one: Option<u64>,
    /// `None` for no end.
    pub(super) epochs: Option<u64>,
}

impl Spans {
    /// Whether the next span is a batch.
    pub(super) fn is_whole(&self) -> bool {
        self.one_by_one != Some(self.epoch)
    }

    /// Returns to the beginning of a span, and continues item by item to the end of its epoch.
    pub(super) fn go_back(&mut self, to: Span) {
        (self.epoch, self.next) = (to.epoch, to.first);
        self.one_by_one = Some(to.epoch);
    }
}

impl Iterator for Spans {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.len == 0 || self.epochs.is_some_and(|epochs| self.epoch >= epochs) {
            return None;
        }
        let whole = self.is_whole();
        let size = if whole { self.batch } else { self.span };
        let count = size.min(self.len - self.next);
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
            whole,
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
            batch: 2,
            span: 1,
            one_by_one: None,
            epochs: Some(3),
        };
        let spans: Vec<_> = spans
            .map(|span| (span.epoch, span.first, span.count, span.ends))
            .collect();
        let second = [(1, 2, 2, false), (1, 4, 1, true)];
        let third = [(2, 0, 2, false), (2, 2, 2, false), (2, 4, 1, true)];
        assert_eq!(spans, [&second[..], &third].concat());
    }

    #[test]
    fn an_epoch_is_made_again_one_by_one_from_where_a_batch_began() {
        let mut spans = Spans {
            epoch: 0,
            next: 0,
            len: 5,
            batch: 2,
            span: 1,
            one_by_one: None,
            epochs: None,
        };
        let mut all = spans.by_ref().take(4);
        let second = all.nth(1).unwrap();
        assert_eq!(all.map(|span| span.epoch).collect::<Vec<_>>(), [0, 1]);
        spans.go_back(second);
        let rest = spans.take(4);
        let rest: Vec<_> = rest
            .map(|span| (span.epoch, span.first, span.whole))
            .collect();
        let one_by_one = [(0, 2, false), (0, 3, false), (0, 4, false)];
        assert_eq!(rest, [&one_by_one[..], &[(1, 0, true)]].concat());
    }
}
