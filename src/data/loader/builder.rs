//! Settings of loading, and the start of its threads.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::bounded;
use serde::Deserialize as _;
use serde::de::Error as _;
use serde_json::Value;
use tch::Device;

use super::assembly::Assembly;
use super::bringing::{Bring, Take, ends};
use super::how_many::HowMany;
use super::making::Making;
use super::pace::Pace;
use super::position::{Position, Spans, State};
use super::tuner::{Bounds, MOST_AHEAD, Tuner, Way};
use super::watching::{Facts, Seen};
use super::work::{Shared, Watch};
use super::{Loader, Waits};
use crate::diagnosis::ledger::DelayReader;
use crate::{DataError, OnDevice, Source};

/// Upper bound of items per task, where items are made one by one: few enough that workers finish a
/// batch together, many enough that handing over is cheap.
const SPAN: usize = 32;
/// Spans of a batch per worker.
const SPANS: usize = 4;
/// Defaults, and starting values, of workers and prefetched batches.
const WORKERS: usize = 1;
const AHEAD: usize = 2;
/// Byte limit of batches in flight if the free memory is unknown.
const MEMORY: u64 = 1 << 30;

/// A builder of a loader; [`Batches::load`] starts it.
pub struct Batches<S: Source, B> {
    source: S,
    making: Making<S, B>,
    size: usize,
    drop_last: bool,
    epochs: Option<u64>,
    workers: HowMany,
    ahead: HowMany,
    /// Byte limit of batches in flight if their number is tuned.
    memory: Option<u64>,
    allowed: u64,
    patience: Option<Duration>,
    from: Option<Value>,
    devices: Vec<Device>,
    ends: Option<(Bring<B>, Take<B>)>,
    /// Whether `to` was called before a function of batches.
    too_early: bool,
}

impl<S: Source, B> fmt::Debug for Batches<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("source", &self.source.identity())
            .field("size", &self.size)
            .field("epochs", &self.epochs)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

impl<S: Source, B: Send + 'static> Batches<S, B> {
    pub(crate) fn new(source: S, size: usize, making: Making<S, B>) -> Self {
        Self {
            source,
            making,
            size,
            drop_last: false,
            epochs: Some(1),
            workers: HowMany::Fixed(WORKERS),
            ahead: HowMany::Fixed(AHEAD),
            memory: None,
            allowed: 0,
            patience: None,
            from: None,
            devices: Vec::new(),
            ends: None,
            too_early: false,
        }
    }

    /// Applies a function to each batch on the workers, such as converting bytes to floats. It must be
    /// called before [`Batches::to`]; otherwise loading is refused.
    #[must_use]
    pub fn map<C, F>(self, function: F) -> Batches<S, C>
    where
        C: Send + 'static,
        F: Fn(B) -> anyhow::Result<C> + Send + Sync + 'static,
    {
        Batches {
            making: self.making.then(function),
            source: self.source,
            size: self.size,
            drop_last: self.drop_last,
            epochs: self.epochs,
            workers: self.workers,
            ahead: self.ahead,
            memory: self.memory,
            allowed: self.allowed,
            patience: self.patience,
            from: self.from,
            too_early: self.too_early || self.ends.is_some() || !self.devices.is_empty(),
            devices: Vec::new(),
            ends: None,
        }
    }

    /// Leaves out the last batch of an epoch if it is incomplete.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }

    /// Sets the number of epochs, 1 by default; those before a resumed position count.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Repeats epochs without end.
    #[must_use]
    pub fn endless(mut self) -> Self {
        self.epochs = None;
        self
    }

    /// Sets the number of worker threads, 1 by default, or [`HowMany::Auto`]. Batches do not depend on
    /// it.
    #[must_use]
    pub fn workers(mut self, workers: impl Into<HowMany>) -> Self {
        self.workers = workers.into();
        self
    }

    /// Sets the number of prefetched batches, 2 by default, or [`HowMany::Auto`].
    #[must_use]
    pub fn prefetch(mut self, batches: impl Into<HowMany>) -> Self {
        self.ahead = batches.into();
        self
    }

    /// Sets the byte limit of batches in flight if their number is tuned; by default an eighth of the
    /// free memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Skips up to this many bad items per epoch; none by default. [`Loader::skipped`] lists them.
    #[must_use]
    pub fn skip_bad(mut self, items: u64) -> Self {
        self.allowed = items;
        self
    }

    /// Gives [`DataError::Slow`] if no batch comes for so long; by default the loader waits forever.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Resumes from the [`Loader::state`] of another loader. Batch size, workers and prefetching may
    /// differ.
    #[must_use]
    pub fn resume(mut self, state: &Value) -> Self {
        self.from = Some(state.clone());
        self
    }

    /// Copies batches to a device ahead of their use; free on the CPU. On CUDA, copies use page-locked
    /// memory and their own stream, beside the device's work, and nobody waits: work on the current
    /// stream of the thread that takes a batch is ordered after its copy.
    #[must_use]
    pub fn to(mut self, device: Device) -> Self
    where
        B: OnDevice,
    {
        self.devices = vec![device];
        self.ends = match device {
            Device::Cuda(index) => Some(ends(index)),
            _ => None,
        };
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// There are no items, a number is 0, the position is of other data, or there is no such device or
    /// no thread.
    pub fn load(self) -> Result<Loader<B>, DataError> {
        self.check()?;
        gpipe_torch::prepare(&self.devices)?;
        // The workers' settings must not become the caller's defaults.
        gpipe_torch::intra_op_threads()?;
        let identity = self.source.identity();
        let len = self.source.len();
        let position = start(self.from.as_ref(), &identity, len)?;
        // Memory freed by items is reused by the next ones.
        gpipe_torch::keep_memory(&[Device::Cpu]);
        let most = self.workers.fixed().unwrap_or_else(most_workers);
        let span = self.size.div_ceil(SPANS * most).clamp(1, SPAN);
        // Enough for the batch being made, plus one for every worker.
        let spans = self.size.div_ceil(span).max(most) + most;
        let free = gpipe_torch::memory::room_on(Device::Cpu).ok();
        let free = free.map(|(free, _)| free.0);
        let tuner = self.tuner(free);
        let way = Way {
            workers: self.workers.fixed().unwrap_or(WORKERS),
            ahead: self.ahead.fixed().unwrap_or(AHEAD),
        };
        let (bring, take) = self.ends.unzip();
        let facts = Facts {
            size: self.size,
            again: (self.epochs != Some(1)).then_some(len),
            cores: gpipe_torch::cores(),
            free,
        };
        let pace = Pace::new(way.workers, way.ahead);
        let shared = Shared::new(self.source, self.making, most, pace)?;
        // One for each worker, and one ready when the first of them is taken.
        let (tasks, todo) = bounded(spans.max(most.saturating_add(1)));
        let (ready, batches) = bounded(self.ahead.fixed().unwrap_or(MOST_AHEAD));
        let mut loader = Loader {
            batches: Some(batches),
            threads: Vec::new(),
            watch: Arc::clone(&shared) as Arc<dyn Watch>,
            identity,
            position,
            patience: self.patience,
            hangs: false,
            skipped: Vec::new(),
            waits: Waits::default(),
            seen: Seen::default(),
            tuner,
            window: None,
            facts,
            take,
        };
        let assembly = Assembly {
            shared: Arc::clone(&shared),
            spans: Spans {
                epoch: position.epoch,
                next: position.items,
                len,
                batch: self.size,
                span,
                one_by_one: None,
                epochs: self.epochs,
            },
            tasks,
            bring,
            ready,
            size: self.size,
            drop_last: self.drop_last,
            allowed: self.allowed,
            spans_out: spans,
            waits_for_room: self.ahead == HowMany::Auto,
            position,
            gave: position.items > 0,
            batches: 0,
            delays: DelayReader::default(),
        };
        for worker in 0..most {
            let (shared, todo) = (Arc::clone(&shared), todo.clone());
            let name = format!("load-{worker}");
            let work = move || shared.work(worker, &todo);
            loader.threads.push(spawn(name, work)?);
        }
        let thread = spawn("batch".to_owned(), move || assembly.run())?;
        loader.threads.push(thread);
        Ok(loader)
    }

    /// Makes the tuner, if any number is to be tuned.
    fn tuner(&self, free: Option<u64>) -> Option<Tuner> {
        let bounds = Bounds {
            workers: (self.workers == HowMany::Auto).then(most_workers),
            ahead: self.ahead == HowMany::Auto,
            memory: self.memory.or(free.map(|free| free / 8)).unwrap_or(MEMORY),
        };
        let way = Way {
            workers: self.workers.fixed().unwrap_or(WORKERS),
            ahead: self.ahead.fixed().unwrap_or(AHEAD),
        };
        let any = bounds.workers.is_some() || bounds.ahead;
        any.then(|| Tuner::new(way, bounds))
    }

    fn check(&self) -> Result<(), DataError> {
        let wrong = |what: &str| Err(DataError::Settings(what.to_owned()));
        if self.size == 0 {
            return wrong("a batch of 0 items: it has at least 1");
        }
        if self.too_early {
            return wrong(
                "batches go to a device as the last thing: put `map` before `to`, since it runs on \
                 the workers",
            );
        }
        if self.workers == HowMany::Fixed(0) {
            return wrong("0 workers: at least 1 thread has to load");
        }
        if self.drop_last && self.source.len() < self.size {
            return wrong(&format!(
                "no whole batch: batches have {} items, an epoch has {}",
                self.size,
                self.source.len()
            ));
        }
        if self.source.is_empty() {
            return wrong(&format!(
                "there is nothing to load: {}",
                self.source.identity()
            ));
        }
        Ok(())
    }
}

/// Upper bound of workers tried: those that wait for a disk need no core.
fn most_workers() -> usize {
    (4 * gpipe_torch::cores()).clamp(4, 32)
}

/// Returns the start position.
fn start(saved: Option<&Value>, here: &str, len: usize) -> Result<Position, DataError> {
    let Some(saved) = saved else {
        return Ok(Position::START);
    };
    let state = State::deserialize(saved).map_err(DataError::State)?;
    if state.data != here {
        let (saved, here) = (state.data, here.to_owned());
        return Err(DataError::OtherData { saved, here });
    }
    let position = state.position;
    if !position.is_one_of(len) {
        let what = format!("{position:?} of {len} items cannot be");
        return Err(DataError::State(serde_json::Error::custom(what)));
    }
    Ok(position.normal(len))
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DataError> {
    let thread = thread::Builder::new().name(name).spawn(body);
    thread.map_err(DataError::Thread)
}
