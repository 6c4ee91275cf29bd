//! A device backend without devices: records the operations for devices, and checks them.

mod captures;
mod failures;
mod log_entry;
mod memory;
mod order;
mod timing;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use gpipe_partitioner::{Action, ActionKind, StageId};
use parking_lot::Mutex;
use tch::Tensor;

use super::capture_lock::CaptureLocks;
use super::ids::{DEFAULT, MemorySpace, Stream};
use crate::error::TorchError;
use crate::ffi::{self, Watcher};
use log_entry::{Buffer, LogEntry, Worker};
use memory::Live;

pub use log_entry::Disorder;
pub use order::Summary;

/// Stands in for the accelerators of a pipeline and records their operations: work, copies, events,
/// waits, and when memory was freed.
///
/// Stages compute on the CPU, with the same numbers. The record can be checked for every
/// order that the events allow ([`Recorder::check`]), and played with made-up times
/// ([`Recorder::play`]): does each copy wait for the work that makes its value, each stage
/// for the copy, and is no memory reused before its last reader is done?
///
/// ```
/// # use gpipe::{Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}, torch::streams::Recorder};
/// # let model = Sequential::new()
/// #     .layer("hidden", |p| nn::linear(p, 8, 4, Default::default()))
/// #     .layer("head", |p| nn::linear(p, 4, 2, Default::default()));
/// # let x = Tensor::ones([4, 8], (Kind::Float, Device::Cpu));
/// # let y = Tensor::zeros([4], (Kind::Int64, Device::Cpu));
/// let recorder = Recorder::new(&[Some(0), Some(1)]);
/// let mut pipe = Pipeline::builder(model)
///     .devices(&[Device::Cpu, Device::Cpu])
///     .record_streams(&recorder)
///     .micro_batches(2)
///     .build()?;
/// pipe.train_step(&x, &y, |out: &Tensor, y: &Tensor| out.cross_entropy_for_logits(y))?;
/// let summary = recorder.check()?;
/// assert!(summary.copies > 0 && summary.waits > 0);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Recorder {
    places: Arc<[MemorySpace]>,
    log: Arc<Log>,
}

/// Record of operations.
#[derive(Debug, Default)]
struct Log {
    state: Mutex<State>,
    capture_locks: CaptureLocks,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<LogEntry>,
    streams: i64,
    events: u64,
    buffers: u64,
    /// Current streams of threads that have entered one.
    current: HashMap<(ThreadId, usize), Stream>,
    /// Live memory, by address.
    live: BTreeMap<usize, Live>,
    /// Buffers that a stage received for a micro-batch and may read again.
    kept: HashMap<(StageId, usize), Vec<Buffer>>,
    captures: captures::Captures,
    failures: failures::Failures,
}

impl Recorder {
    /// For each entry of the pipeline's list of devices, the number of the accelerator
    /// that it stands for; none for the host itself.
    pub fn new(places: &[Option<usize>]) -> Self {
        let place =
            |place: &Option<usize>| place.map_or(MemorySpace::Host, MemorySpace::Accelerator);
        Self {
            places: places.iter().map(place).collect(),
            log: Arc::default(),
        }
    }

    /// The number of recorded entries.
    pub fn len(&self) -> usize {
        self.log.state.lock().entries.len()
    }

    /// Returns whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of streams that were created; a CUDA device has 32 for the whole process.
    pub fn streams(&self) -> usize {
        usize::try_from(self.log.state.lock().streams).unwrap_or(0)
    }

    /// Checks the record for every order that streams and events allow.
    ///
    /// # Errors
    /// The first use of memory that no event puts in order, in words.
    pub fn check(&self) -> Result<Summary, Disorder> {
        let state = self.log.state.lock();
        state.captures.check()?;
        order::check(&state.entries)
    }

    /// Gives every piece of work a length from a made-up clock, lets a caching allocator
    /// give memory out again as soon as it may, and watches who reads what when.
    ///
    /// # Errors
    /// The first reader that comes too early or too late, in words.
    pub fn play(&self, seed: u64) -> Result<(), Disorder> {
        timing::play(&self.log.state.lock().entries, seed)
    }

    /// A copy of the record without one of the entries that keep order (a wait, or a note to
    /// the allocator): number `index` of them. None if there are fewer.
    pub fn without(&self, index: usize) -> Option<Self> {
        let mut entries = self.log.state.lock().entries.clone();
        let keeps = |(_, entry): &(usize, &LogEntry)| {
            matches!(
                entry,
                LogEntry::Wait { .. } | LogEntry::Finish { .. } | LogEntry::UsedBy { .. }
            )
        };
        let (place, _) = entries.iter().enumerate().filter(keeps).nth(index)?;
        entries.remove(place);
        let state = State {
            entries,
            ..State::default()
        };
        Some(Self {
            places: Arc::clone(&self.places),
            log: Arc::new(Log {
                state: Mutex::new(state),
                capture_locks: CaptureLocks::default(),
            }),
        })
    }

    pub(crate) fn places(&self) -> &[MemorySpace] {
        &self.places
    }

    pub(super) fn capture_locks(&self) -> &CaptureLocks {
        &self.log.capture_locks
    }

    pub(super) fn new_stream(&self) -> i64 {
        let mut state = self.log.state.lock();
        state.streams += 1;
        state.streams
    }

    pub(super) fn current(&self, device: usize) -> Stream {
        self.log.state.lock().current(device)
    }

    pub(super) fn enter(&self, stream: Stream) -> Stream {
        let mut state = self.log.state.lock();
        let before = state.current(stream.device);
        state
            .current
            .insert((thread::current().id(), stream.device), stream);
        before
    }

    pub(super) fn record(&self, stream: Stream) -> u64 {
        let mut state = self.log.state.lock();
        state.captures.interrupted("an event", Some(stream.device));
        state.events += 1;
        let event = state.events;
        state.entries.push(LogEntry::Record { event, stream });
        event
    }

    pub(super) fn wait(&self, stream: Stream, event: u64) {
        let mut state = self.log.state.lock();
        state.captures.interrupted("a wait", Some(stream.device));
        state.entries.push(LogEntry::Wait { stream, event });
    }

    pub(super) fn finish(&self, event: u64) {
        let thread = thread::current().id();
        let mut state = self.log.state.lock();
        state.captures.interrupted("a wait of the host", None);
        state.entries.push(LogEntry::Finish { thread, event });
    }

    pub(super) fn used_by(&self, tensor: &Tensor, stream: Stream) {
        let address = address(tensor);
        let mut state = self.log.state.lock();
        let what = "a note to the allocator";
        state.captures.interrupted(what, Some(stream.device));
        if let Some(buffer) = state.buffer(address) {
            state.entries.push(LogEntry::UsedBy { buffer, stream });
        }
    }

    pub(super) fn works<'a>(
        &self,
        action: Action,
        place: MemorySpace,
        reads: impl Iterator<Item = &'a Tensor>,
    ) {
        let addresses: Vec<usize> = reads.map(address).collect();
        let mut state = self.log.state.lock();
        // It may read inputs of the same micro-batch again.
        let key = (action.stage, action.micro.index());
        let mut reads = state.kept.remove(&key).unwrap_or_default();
        reads.retain(|buffer| state.live.values().any(|live| live.buffer == *buffer));
        reads.extend(state.buffers_at(&addresses));
        if !matches!(
            action.kind,
            ActionKind::Backward | ActionKind::BackwardWeight
        ) {
            state.kept.insert(key, reads.clone());
        }
        let (on, what) = (state.worker(place), action.to_string());
        state.entries.push(LogEntry::Work { on, what, reads });
    }

    pub(super) fn reads<'a>(
        &self,
        who: &str,
        place: MemorySpace,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) {
        let addresses: Vec<usize> = tensors.map(address).collect();
        let mut state = self.log.state.lock();
        let reads = state.buffers_at(&addresses);
        let (on, what) = (state.worker(place), who.to_owned());
        state.entries.push(LogEntry::Work { on, what, reads });
    }

    pub(super) fn made(&self, tensor: &Tensor, device: usize) -> Result<Tensor, TorchError> {
        let stream = self.current(device);
        self.watched(tensor, |buffer| LogEntry::Made { buffer, stream })
    }

    /// Registers memory as [`made`](Self::made) that others may have handles to already; known
    /// memory is left alone.
    pub(super) fn kept(&self, tensor: &Tensor, device: usize) -> Result<(), TorchError> {
        let stream = self.current(device);
        let begin = address(tensor);
        let bytes = crate::tensor_bytes(tensor) as usize;
        let buffer = {
            let mut state = self.log.state.lock();
            if bytes == 0 || state.buffer(begin).is_some() {
                return Ok(());
            }
            state.buffers += 1;
            let buffer = Buffer(state.buffers);
            state.entries.push(LogEntry::Made { buffer, stream });
            let live = Live {
                end: begin + bytes,
                buffer,
                device: Some(device),
            };
            state.live.insert(begin, live);
            buffer
        };
        ffi::watch(tensor, &self.log, buffer.0)
    }

    pub(super) fn copy(
        &self,
        tensor: &Tensor,
        from: MemorySpace,
        to: MemorySpace,
    ) -> Result<Tensor, TorchError> {
        let source = {
            let state = self.log.state.lock();
            state.buffer(address(tensor))
        };
        let (reads, writes) = (self.stream(from), self.stream(to));
        self.watched(tensor, |buffer| LogEntry::Copy {
            from: source,
            to: buffer,
            reads,
            writes,
        })
    }

    /// Records a copy into memory that is allocated already.
    pub(super) fn copies_into(
        &self,
        to: &Tensor,
        tensor: &Tensor,
        (from, into): (MemorySpace, MemorySpace),
    ) {
        let (reads, writes) = (self.stream(from), self.stream(into));
        let mut state = self.log.state.lock();
        for stream in [reads, writes].into_iter().flatten() {
            state.captures.interrupted("a copy", Some(stream.device));
        }
        let from = state.buffer(address(tensor));
        if let Some(to) = state.buffer(address(to)) {
            state.entries.push(LogEntry::Copy {
                from,
                to,
                reads,
                writes,
            });
        }
    }

    /// The calling thread's current stream in a memory space.
    fn stream(&self, place: MemorySpace) -> Option<Stream> {
        match place {
            MemorySpace::Host => None,
            MemorySpace::Accelerator(device) => Some(self.current(device)),
        }
    }

    /// A copy that is recorded now, and again when its memory is freed.
    fn watched(
        &self,
        tensor: &Tensor,
        entry: impl FnOnce(Buffer) -> LogEntry,
    ) -> Result<Tensor, TorchError> {
        let (buffer, device) = {
            let mut state = self.log.state.lock();
            state.buffers += 1;
            let buffer = Buffer(state.buffers);
            let entry = entry(buffer);
            let device = entry.makes_on();
            for stream in entry.streams().into_iter().flatten() {
                state.captures.interrupted("a copy", Some(stream.device));
            }
            state.entries.push(entry);
            (buffer, device)
        };
        let copy = ffi::watched_copy(tensor, &self.log, buffer.0)?;
        let begin = address(&copy);
        let bytes = crate::tensor_bytes(&copy) as usize;
        if bytes > 0 {
            let live = Live {
                end: begin + bytes,
                buffer,
                device,
            };
            self.log.state.lock().live.insert(begin, live);
        }
        Ok(copy)
    }
}

impl Watcher for Log {
    fn freed(&self, number: u64) {
        let buffer = Buffer(number);
        let mut state = self.state.lock();
        state.live.retain(|_, live| live.buffer != buffer);
        state.entries.push(LogEntry::Freed { buffer });
    }
}

impl State {
    fn current(&self, device: usize) -> Stream {
        let key = (thread::current().id(), device);
        let default = Stream {
            device,
            id: DEFAULT,
        };
        self.current.get(&key).copied().unwrap_or(default)
    }

    fn worker(&self, place: MemorySpace) -> Worker {
        match place {
            MemorySpace::Host => Worker::Host(thread::current().id()),
            MemorySpace::Accelerator(device) => Worker::Stream(self.current(device)),
        }
    }
}

fn address(tensor: &Tensor) -> usize {
    if tensor.numel() == 0 {
        return 0;
    }
    tensor.data_ptr() as usize
}
