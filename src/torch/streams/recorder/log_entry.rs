//! Entries of a record, and the error of a check.

use std::thread::ThreadId;

use crate::streams::ids::Stream;

/// One block of memory that has crossed a stage's border.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Buffer(pub(super) u64);

/// Executor of a piece of work: a stream, or a thread of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Worker {
    Stream(Stream),
    Host(ThreadId),
}

#[derive(Debug, Clone)]
pub(super) enum LogEntry {
    /// An action.
    Work {
        on: Worker,
        what: String,
        reads: Vec<Buffer>,
    },
    /// Memory of the stream that its last work wrote.
    Made {
        buffer: Buffer,
        stream: Stream,
    },
    /// A copy into new memory, or into a known block; the side without a stream is the host.
    Copy {
        from: Option<Buffer>,
        to: Buffer,
        reads: Option<Stream>,
        writes: Option<Stream>,
    },
    Record {
        event: u64,
        stream: Stream,
    },
    Wait {
        stream: Stream,
        event: u64,
    },
    /// The host waits.
    Finish {
        thread: ThreadId,
        event: u64,
    },
    /// A note to the allocator (`record_stream`).
    UsedBy {
        buffer: Buffer,
        stream: Stream,
    },
    Freed {
        buffer: Buffer,
    },
}

impl LogEntry {
    /// The accelerator on which memory is allocated.
    pub(super) fn makes_on(&self) -> Option<usize> {
        match self {
            Self::Made { stream, .. } => Some(stream.device),
            Self::Copy { writes, .. } => writes.map(|stream| stream.device),
            _ => None,
        }
    }

    /// The streams that work is submitted to.
    pub(super) fn streams(&self) -> [Option<Stream>; 2] {
        match self {
            Self::Work {
                on: Worker::Stream(stream),
                ..
            }
            | Self::Made { stream, .. }
            | Self::Record { stream, .. }
            | Self::Wait { stream, .. }
            | Self::UsedBy { stream, .. } => [Some(*stream), None],
            Self::Copy { reads, writes, .. } => [*reads, *writes],
            Self::Work { .. } | Self::Finish { .. } | Self::Freed { .. } => [None, None],
        }
    }
}

/// Memory that is used out of order.
#[doc(alias = "data race")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Disorder {
    pub(super) what: String,
}

impl Disorder {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}
