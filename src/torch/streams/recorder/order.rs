//! Checks that uses of memory are ordered by events, however long each piece of work takes.
//!
//! Each piece of work in a stream gets a number, and each stream a *clock*: for every stream, the
//! last number that is certainly over before the next work. An event keeps its stream's clock, a
//! wait joins that to another stream's; clocks that the host has waited for join the clock of
//! everything that its thread submits later.

use std::collections::HashMap;
use std::thread::ThreadId;

use super::log_entry::{Buffer, Disorder, LogEntry, Worker};
use crate::streams::ids::{DEFAULT, Stream};

/// Numbers of checked operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Actions of stages.
    pub actions: usize,
    /// Copies from one place to another.
    pub copies: usize,
    /// Waits of streams.
    pub waits: usize,
    /// Waits of the host.
    pub host_waits: usize,
    /// Blocks of memory that were freed.
    pub freed: usize,
}

#[derive(Debug, Clone, Default)]
struct Clock(HashMap<Stream, u64>);

impl Clock {
    fn join(&mut self, other: &Self) {
        for (stream, number) in &other.0 {
            let own = self.0.entry(*stream).or_default();
            *own = (*own).max(*number);
        }
    }

    fn has_seen(&self, (stream, number): (Stream, u64)) -> bool {
        self.0.get(&stream).is_some_and(|seen| *seen >= number)
    }
}

/// The uses of a block of memory so far.
#[derive(Debug, Default)]
struct MemoryBlock {
    /// The stream that the memory belongs to; none for the host's.
    owner: Option<Stream>,
    written: Option<(Stream, u64)>,
    uses: Vec<(Stream, u64)>,
    told: Vec<Stream>,
    freed: bool,
}

#[derive(Default)]
struct Order {
    streams: HashMap<Stream, Clock>,
    hosts: HashMap<ThreadId, Clock>,
    /// Work that any thread of the host has waited for: values passed between threads in host
    /// memory are complete by then.
    host: Clock,
    events: HashMap<u64, Clock>,
    blocks: HashMap<Buffer, MemoryBlock>,
    /// Uses of freed memory, by stream: the next allocation in the stream may get that memory.
    pending: HashMap<Stream, Vec<Pending>>,
    summary: Summary,
}

/// A use that the allocator does not know of.
#[derive(Debug)]
struct Pending {
    buffer: Buffer,
    work: (Stream, u64),
}

pub(super) fn check(entries: &[LogEntry]) -> Result<Summary, Disorder> {
    let mut order = Order::default();
    entries.iter().try_for_each(|entry| order.apply(entry))?;
    Ok(order.summary)
}

impl Order {
    fn apply(&mut self, entry: &LogEntry) -> Result<(), Disorder> {
        match entry {
            LogEntry::Work { on, what, reads } => {
                self.summary.actions += 1;
                match on {
                    Worker::Stream(stream) => self.work(*stream, what, reads)?,
                    Worker::Host(thread) => self.host_work(*thread, what, reads)?,
                }
            }
            LogEntry::Made { buffer, stream } => {
                self.takes_memory(*stream)?;
                let number = self.clock(*stream).0.get(stream).copied();
                let block = self.blocks.entry(*buffer).or_default();
                block.owner = Some(*stream);
                block.written = number.map(|number| (*stream, number));
            }
            LogEntry::Copy {
                from,
                to,
                reads,
                writes,
            } => {
                self.summary.copies += 1;
                self.copy(*from, *to, *reads, *writes)?;
            }
            LogEntry::Record { event, stream } => {
                let clock = self.clock(*stream).clone();
                self.events.insert(*event, clock);
            }
            LogEntry::Wait { stream, event } => {
                self.summary.waits += 1;
                let seen = self.event(*event)?;
                self.clock(*stream).join(&seen);
            }
            LogEntry::Finish { thread, event } => {
                self.summary.host_waits += 1;
                let seen = self.event(*event)?;
                self.hosts.entry(*thread).or_default().join(&seen);
                self.host.join(&seen);
            }
            LogEntry::UsedBy { buffer, stream } => {
                self.blocks.entry(*buffer).or_default().told.push(*stream);
            }
            LogEntry::Freed { buffer } => {
                self.summary.freed += 1;
                self.free(*buffer)?;
            }
        }
        Ok(())
    }

    fn clock(&mut self, stream: Stream) -> &mut Clock {
        self.streams.entry(stream).or_default()
    }

    fn event(&self, event: u64) -> Result<Clock, Disorder> {
        let missing =
            || Disorder::new(format!("event {event} is waited for before it is recorded"));
        self.events.get(&event).cloned().ok_or_else(missing)
    }

    /// The next piece of work in a stream.
    fn next(&mut self, stream: Stream) -> (Stream, u64) {
        let number = self.clock(stream).0.entry(stream).or_default();
        *number += 1;
        (stream, *number)
    }

    fn work(&mut self, stream: Stream, what: &str, reads: &[Buffer]) -> Result<(), Disorder> {
        self.takes_memory(stream)?;
        for buffer in reads {
            self.read(*buffer, stream, what)?;
        }
        let work = self.next(stream);
        for buffer in reads {
            self.blocks.entry(*buffer).or_default().uses.push(work);
        }
        Ok(())
    }

    fn host_work(
        &mut self,
        thread: ThreadId,
        what: &str,
        reads: &[Buffer],
    ) -> Result<(), Disorder> {
        for buffer in reads {
            let Some(block) = self.blocks.get(buffer) else {
                continue;
            };
            let clock = self.hosts.entry(thread).or_default();
            if block
                .written
                .is_some_and(|written| !clock.has_seen(written))
            {
                return Err(Disorder::new(format!(
                    "{what} reads on the host what may not be there yet: nothing waits for the \
                     copy into block {}",
                    buffer.0
                )));
            }
        }
        Ok(())
    }

    /// A stream is about to read a block.
    fn read(&mut self, buffer: Buffer, stream: Stream, what: &str) -> Result<(), Disorder> {
        let clock = &*self.streams.entry(stream).or_default();
        let Some(block) = self.blocks.get(&buffer) else {
            return Ok(());
        };
        if block.freed {
            return Err(Disorder::new(format!(
                "{what} reads block {}, which is freed",
                buffer.0
            )));
        }
        let on_host = block.owner.is_none();
        let seen = |written| clock.has_seen(written) || (on_host && self.host.has_seen(written));
        if block.written.is_some_and(|written| !seen(written)) {
            return Err(Disorder::new(format!(
                "{what}, in stream {} of device {}, reads block {}, and nothing makes it wait \
                 for who writes that",
                stream.id, stream.device, buffer.0
            )));
        }
        Ok(())
    }

    /// Copies as libtorch does: in the source's stream, after the destination's work and before its
    /// next work.
    fn copy(
        &mut self,
        from: Option<Buffer>,
        to: Buffer,
        reads: Option<Stream>,
        writes: Option<Stream>,
    ) -> Result<(), Disorder> {
        let Some(on) = reads.or(writes) else {
            return Err(Disorder::new("a copy from the host to the host"));
        };
        if let Some(writes) = writes {
            let behind = self.clock(writes).clone();
            self.clock(on).join(&behind);
        }
        if let Some(from) = from {
            self.read(from, on, "a copy")?;
        }
        if let Some(writes) = writes {
            self.takes_memory(writes)?;
        }
        self.overwrite(to, on)?;
        let work = self.next(on);
        if let Some(writes) = writes {
            let behind = self.clock(on).clone();
            self.clock(writes).join(&behind);
        }
        if let Some(from) = from {
            self.blocks.entry(from).or_default().uses.push(work);
        }
        let new = !self.blocks.contains_key(&to);
        let block = self.blocks.entry(to).or_default();
        if new {
            block.owner = writes;
        }
        block.written = Some(work);
        block.uses.push(work);
        Ok(())
    }

    /// A stream is about to write into a block, which others may have used before.
    fn overwrite(&mut self, buffer: Buffer, on: Stream) -> Result<(), Disorder> {
        let clock = &*self.streams.entry(on).or_default();
        let Some(block) = self.blocks.get(&buffer) else {
            return Ok(());
        };
        let on_host = block.owner.is_none();
        let seen = |work| clock.has_seen(work) || (on_host && self.host.has_seen(work));
        if let Some((by, _)) = block.uses.iter().find(|work| !seen(**work)) {
            return Err(Disorder::new(format!(
                "a copy, in stream {} of device {}, overwrites block {}, and nothing makes it wait \
                 for stream {} of device {}, which uses that",
                on.id, on.device, buffer.0, by.id, by.device
            )));
        }
        Ok(())
    }

    /// The allocator may reuse the block for the next work in its own stream: all uses must be
    /// over by then, or the allocator must know of them. In a device's default stream the next
    /// work may be another thread's, at once.
    fn free(&mut self, buffer: Buffer) -> Result<(), Disorder> {
        let Some(block) = self.blocks.get_mut(&buffer) else {
            return Ok(());
        };
        block.freed = true;
        let Some(owner) = block.owner else {
            // libtorch's allocator of page-locked memory knows the copies itself.
            return Ok(());
        };
        let clock = self.streams.entry(owner).or_default();
        let told = |work: &(Stream, u64)| block.told.contains(&work.0) || clock.has_seen(*work);
        let untold = block.uses.iter().filter(|work| !told(work));
        let pending = untold.map(|work| Pending {
            buffer,
            work: *work,
        });
        self.pending.entry(owner).or_default().extend(pending);
        if owner.id == DEFAULT {
            return self.takes_memory(owner);
        }
        Ok(())
    }

    /// Memory of a stream is given out.
    fn takes_memory(&mut self, owner: Stream) -> Result<(), Disorder> {
        let clock = self.streams.entry(owner).or_default();
        let pending = self.pending.entry(owner).or_default();
        pending.retain(|use_| !clock.has_seen(use_.work));
        let Some(Pending { buffer, work }) = pending.first() else {
            return Ok(());
        };
        Err(Disorder::new(format!(
            "block {} of stream {} of device {} was freed and may be given out again while \
             stream {} of device {} is using it, and the allocator was not told",
            buffer.0, owner.id, owner.device, work.0.id, work.0.device
        )))
    }
}
