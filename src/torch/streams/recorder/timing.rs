//! Simulates a record with a made-up duration for every piece of work.
//!
//! The host submits operations one after the other, each a moment after the previous one. Work
//! begins when it has been submitted, the previous work in its stream is over, and the events that
//! its stream waits for have happened. The allocator is the greediest one that the rules allow: an
//! allocation in a stream gets the block that was freed there last, as soon as the streams recorded
//! for it have finished.

use std::collections::HashMap;

use super::log_entry::{Buffer, Disorder, LogEntry, Worker};
use crate::rng;
use crate::streams::ids::Stream;

/// A place in memory, which one block after the other has.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    /// When the last reader or writer of any block in it is done.
    used_until: u64,
    /// When the allocator may hand it out again.
    free_from: u64,
}

#[derive(Debug, Default)]
struct MemoryBlock {
    owner: Option<Stream>,
    room: usize,
    /// When its values are ready.
    written: u64,
    told: Vec<Stream>,
}

struct Clockwork {
    seed: u64,
    /// The host's time.
    now: u64,
    /// When each stream finishes its current work.
    streams: HashMap<Stream, u64>,
    events: HashMap<u64, u64>,
    rooms: Vec<Room>,
    free: HashMap<Stream, Vec<usize>>,
    blocks: HashMap<Buffer, MemoryBlock>,
}

pub(super) fn play(entries: &[LogEntry], seed: u64) -> Result<(), Disorder> {
    let mut clockwork = Clockwork {
        seed,
        now: 0,
        streams: HashMap::new(),
        events: HashMap::new(),
        rooms: Vec::new(),
        free: HashMap::new(),
        blocks: HashMap::new(),
    };
    entries.iter().try_for_each(|entry| clockwork.apply(entry))
}

impl Clockwork {
    /// Mostly short, now and then very long.
    fn random(&mut self, most: u64) -> u64 {
        self.seed = rng::mix(self.seed, 1);
        let draw = self.seed >> 1;
        let scale = if draw.trailing_zeros() >= 3 {
            most
        } else {
            most / 16 + 1
        };
        (draw >> 8) % scale + 1
    }

    fn apply(&mut self, entry: &LogEntry) -> Result<(), Disorder> {
        self.now += self.random(20);
        match entry {
            LogEntry::Work { on, what, reads } => self.work(*on, what, reads)?,
            LogEntry::Made { buffer, stream } => {
                // Its memory has been taken by now, for the last kernel of the work.
                let end = self.through(*stream).max(self.now);
                self.streams.insert(*stream, end);
                self.take(*buffer, Some(*stream), end, end)?;
            }
            LogEntry::Copy {
                from,
                to,
                reads,
                writes,
            } => self.copy(*from, *to, *reads, *writes)?,
            LogEntry::Record { event, stream } => {
                let end = self.through(*stream);
                self.events.insert(*event, end);
            }
            LogEntry::Wait { stream, event } => {
                let end = self.events.get(event).copied().unwrap_or(u64::MAX);
                let through = self.through(*stream);
                self.streams.insert(*stream, through.max(end));
            }
            LogEntry::Finish { event, .. } => {
                let end = self.events.get(event).copied().unwrap_or(u64::MAX);
                self.now = self.now.max(end);
            }
            LogEntry::UsedBy { buffer, stream } => {
                self.blocks.entry(*buffer).or_default().told.push(*stream);
            }
            LogEntry::Freed { buffer } => self.free(*buffer),
        }
        Ok(())
    }

    fn through(&self, stream: Stream) -> u64 {
        self.streams.get(&stream).copied().unwrap_or(0)
    }

    fn work(&mut self, on: Worker, what: &str, reads: &[Buffer]) -> Result<(), Disorder> {
        let length = self.random(400);
        let begin = match on {
            Worker::Host(_) => self.now,
            Worker::Stream(stream) => self.now.max(self.through(stream)),
        };
        let end = begin + length;
        for buffer in reads {
            self.read(*buffer, begin, end, what)?;
        }
        match on {
            Worker::Host(_) => self.now = end,
            Worker::Stream(stream) => {
                self.streams.insert(stream, end);
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: Buffer, begin: u64, end: u64, what: &str) -> Result<(), Disorder> {
        let Some(block) = self.blocks.get(&buffer) else {
            return Ok(());
        };
        if begin < block.written {
            return Err(Disorder::new(format!(
                "{what} reads block {} at {begin}, which is written at {}",
                buffer.0, block.written
            )));
        }
        let room = &mut self.rooms[block.room];
        room.used_until = room.used_until.max(end);
        Ok(())
    }

    fn copy(
        &mut self,
        from: Option<Buffer>,
        to: Buffer,
        reads: Option<Stream>,
        writes: Option<Stream>,
    ) -> Result<(), Disorder> {
        let length = self.random(400);
        let streams = [reads, writes].into_iter().flatten();
        let behind = streams.map(|stream| self.through(stream)).max();
        let begin = self.now.max(behind.unwrap_or(0));
        let end = begin + length;
        if let Some(from) = from {
            self.read(from, begin, end, "a copy")?;
        }
        for stream in [reads, writes].into_iter().flatten() {
            self.streams.insert(stream, end);
        }
        match self.blocks.get(&to) {
            Some(_) => self.overwrite(to, begin, end),
            None => self.take(to, writes, begin, end),
        }
    }

    /// Overwrites a block.
    fn overwrite(&mut self, buffer: Buffer, begin: u64, end: u64) -> Result<(), Disorder> {
        let Some(block) = self.blocks.get_mut(&buffer) else {
            return Ok(());
        };
        block.written = end;
        let room = &mut self.rooms[block.room];
        if begin < room.used_until {
            return Err(Disorder::new(format!(
                "block {} is overwritten from {begin} on, but used until {}",
                buffer.0, room.used_until
            )));
        }
        room.used_until = end;
        Ok(())
    }

    /// Memory for a block of this stream, written from `begin` to `end`.
    fn take(
        &mut self,
        buffer: Buffer,
        owner: Option<Stream>,
        begin: u64,
        end: u64,
    ) -> Result<(), Disorder> {
        let room = self.room(owner);
        let used_until = self.rooms[room].used_until;
        if begin < used_until {
            return Err(Disorder::new(format!(
                "block {} is written from {begin} on in memory that is used until {used_until}",
                buffer.0
            )));
        }
        self.rooms[room].used_until = end;
        let block = MemoryBlock {
            owner,
            room,
            written: end,
            told: Vec::new(),
        };
        self.blocks.insert(buffer, block);
        Ok(())
    }

    fn room(&mut self, owner: Option<Stream>) -> usize {
        let (now, rooms) = (self.now, &self.rooms);
        if let Some(free) = owner.and_then(|owner| self.free.get_mut(&owner))
            && let Some(place) = free.iter().rposition(|room| rooms[*room].free_from <= now)
        {
            return free.remove(place);
        }
        self.rooms.push(Room::default());
        self.rooms.len() - 1
    }

    fn free(&mut self, buffer: Buffer) {
        let Some(block) = self.blocks.remove(&buffer) else {
            return;
        };
        let Some(owner) = block.owner else {
            return;
        };
        // Current work of the streams recorded for the block.
        let told = block.told.iter().filter(|stream| **stream != owner);
        let through = told.map(|stream| self.through(*stream)).max();
        self.rooms[block.room].free_from = through.unwrap_or(0);
        self.free.entry(owner).or_default().push(block.room);
    }
}
