//! The memory of a stage's activations, action by action.
//!
//! The meter counts allocations by the stage's own computations (on a CUDA device: by all of its
//! stages) from the beginning of the step, without gradients of parameters, which are always there.
//! A tensor that a stage sends counts for it until the receiver is done with it, which is never
//! later than the micro-batch's backward here.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use gpipe_partitioner::{ActionKind, Bytes, StageMemory};
use serde::{Deserialize, Serialize};
use tch::Device;

use crate::error::TorchError;
use crate::memory::{self, Account, Scope};

/// Counts the bytes of a device's stages; shared by these stages.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMeter {
    counter: Arc<Mutex<Counter>>,
    /// On a CUDA device none: its allocator does not know stages.
    account: Option<Account>,
    /// Bytes offloaded by CPU stages; those of CUDA devices are in memory outside of their
    /// allocator.
    offloaded: Option<Account>,
}

/// A step's bytes of activations on a stage or device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryLevels {
    /// The most at any time, scratch memory of kernels included.
    pub(crate) peak: Bytes,
    /// The most between two actions.
    pub(crate) held: Bytes,
    /// After the step.
    pub(crate) left: Bytes,
    /// Highest use at any time, including everything that exists between steps.
    pub(crate) total: Bytes,
}

/// Memory used by a step on a stage and its device, and kept by a micro-batch.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StepMemory {
    /// `None` if the device's allocator does not distinguish its stages.
    pub(crate) stage: Option<MemoryLevels>,
    pub(crate) device: MemoryLevels,
    pub(crate) micro_batch: StageMemory,
}

/// Counts the bytes of one stage.
#[doc(alias = "max_memory_allocated")]
#[derive(Debug)]
pub(super) struct StageMeter {
    device: Arc<Mutex<Counter>>,
    stage: Option<(Account, Counter)>,
    offloading: OffloadMeter,
    /// The most bytes that a forward has sent to the host.
    offloaded: u64,
    /// The stage's gradients of parameters as of now.
    gradients: i64,
    /// Largest net growth in an action of each kind.
    growth: [Option<i64>; ActionKind::ALL.len()],
}

/// Counts the bytes that the present action has offloaded; shared with [`Offload`].
///
/// [`Offload`]: super::offload::Offload
#[derive(Debug, Clone, Default)]
pub(super) struct OffloadMeter {
    bytes: Rc<Cell<u64>>,
    /// Whether data from other stages is on their accounts.
    own_only: bool,
}

/// An action that is being measured.
#[derive(Debug)]
pub(super) struct MeasuredAction {
    _scope: Option<Scope>,
    level: i64,
}

impl DeviceMeter {
    /// # Errors
    /// The process has a custom CPU allocator.
    pub(crate) fn new(device: Device) -> Result<Self, TorchError> {
        let account = match device {
            Device::Cpu => Some(Account::new()?),
            _ => None,
        };
        let source = match &account {
            Some(account) => Source::Account(account.clone()),
            None => Source::Device(device),
        };
        let counter = Arc::new(Mutex::new(Counter::new(source)));
        let offloaded = account.as_ref().map(|_| Account::new()).transpose()?;
        Ok(Self {
            counter,
            account,
            offloaded,
        })
    }

    /// Returns the account of the memory that the device's stages keep on the host.
    pub(crate) fn offloaded(&self) -> Option<Account> {
        self.offloaded.clone()
    }

    /// Makes a meter for a stage of the device.
    pub(super) fn stage(&self) -> Result<StageMeter, TorchError> {
        let stage = match &self.account {
            Some(whole) => {
                let account = Account::part_of(whole)?;
                let counter = Counter::new(Source::Account(account.clone()));
                Some((account, counter))
            }
            None => None,
        };
        let own_only = stage.is_some();
        Ok(StageMeter {
            device: Arc::clone(&self.counter),
            stage,
            offloading: OffloadMeter {
                own_only,
                ..OffloadMeter::default()
            },
            offloaded: 0,
            gradients: 0,
            growth: [None; ActionKind::ALL.len()],
        })
    }
}

impl OffloadMeter {
    /// Counts a tensor that is offloaded. On the CPU, what another stage has sent (`foreign`)
    /// is on the sender's account.
    pub(super) fn leaves(&self, bytes: u64, foreign: bool) {
        if !(foreign && self.own_only) {
            self.bytes.set(self.bytes.get() + bytes);
        }
    }
}

impl StageMeter {
    /// Charges this thread's allocations to the stage while the result lives, in or outside of a
    /// step.
    pub(super) fn enter(&self) -> Option<Scope> {
        self.stage.as_ref().map(|(account, _)| account.enter())
    }

    /// Returns the counter of offloaded bytes.
    pub(super) fn offloading(&self) -> OffloadMeter {
        self.offloading.clone()
    }

    /// A step begins; the stage has no gradients of it yet.
    pub(super) fn begin_step(&mut self) -> Result<(), TorchError> {
        self.gradients = 0;
        self.growth = [None; ActionKind::ALL.len()];
        self.offloading.bytes.set(0);
        self.offloaded = 0;
        self.counters(Counter::begin_step)?;
        Ok(())
    }

    /// Charges this thread's allocations to the stage while the result lives.
    pub(super) fn begin_action(&mut self) -> Result<MeasuredAction, TorchError> {
        let level = self.counters(Counter::begin_action)?;
        Ok(MeasuredAction {
            _scope: self.enter(),
            level,
        })
    }

    /// The action is done; `gradients` are the bytes of this step's gradients of
    /// the stage's parameters.
    pub(super) fn end_action(
        &mut self,
        kind: ActionKind,
        action: MeasuredAction,
        gradients: u64,
    ) -> Result<(), TorchError> {
        let before = action.level;
        drop(action);
        let more = gradients as i64 - self.gradients;
        self.gradients = gradients as i64;
        let level = self.counters(|counter| counter.end_action(more))?;
        let growth = &mut self.growth[kind as usize];
        *growth = (*growth).max(Some(level - before));
        self.offloaded = self.offloaded.max(self.offloading.bytes.take());
        Ok(())
    }

    /// Counts after an action, when the memory of offloaded tensors has been released.
    pub(super) fn between_actions(&mut self) -> Result<(), TorchError> {
        self.counters(Counter::between_actions)?;
        Ok(())
    }

    /// Returns the memory used by the step that just ended.
    pub(super) fn step_memory(&self) -> Result<StepMemory, TorchError> {
        let device = locked(&self.device).levels()?;
        let stage = self.stage.as_ref().map(|(_, counter)| counter.levels());
        Ok(StepMemory {
            stage: stage.transpose()?,
            device,
            micro_batch: self.micro_batch(),
        })
    }

    /// Converts to the simulation's form.
    fn micro_batch(&self) -> StageMemory {
        let growth = |kind: ActionKind| self.growth[kind as usize];
        let activation = growth(ActionKind::Forward).unwrap_or(0);
        let recomputed = growth(ActionKind::Recompute).unwrap_or(0);
        let kept = growth(ActionKind::BackwardInput).map(|more| activation + recomputed + more);
        StageMemory {
            activation: bytes(activation),
            offloaded: Bytes(self.offloaded),
            recomputed: bytes(recomputed),
            kept_for_weight: kept.map(bytes),
            ..StageMemory::default()
        }
    }

    /// Does the same with the counters of the device and the stage; returns the result of the finer
    /// one.
    fn counters(
        &mut self,
        mut each: impl FnMut(&mut Counter) -> Result<i64, TorchError>,
    ) -> Result<i64, TorchError> {
        let device = each(&mut locked(&self.device))?;
        match &mut self.stage {
            Some((_, counter)) => each(counter),
            None => Ok(device),
        }
    }
}

/// Follows one count of bytes through a step.
#[derive(Debug)]
struct Counter {
    source: Source,
    /// The count at the beginning of the step.
    begin: i64,
    /// Gradients of parameters made since.
    gradients: i64,
    peak: i64,
    held: i64,
    /// The most at any time, from nothing.
    total: i64,
}

impl Counter {
    fn new(source: Source) -> Self {
        Self {
            source,
            begin: 0,
            gradients: 0,
            peak: 0,
            held: 0,
            total: 0,
        }
    }

    fn begin_step(&mut self) -> Result<i64, TorchError> {
        self.begin = self.source.read()?.0;
        (self.gradients, self.peak, self.held) = (0, 0, 0);
        self.total = self.begin;
        Ok(0)
    }

    fn begin_action(&mut self) -> Result<i64, TorchError> {
        self.source.reset_peak()?;
        self.level()
    }

    /// Ends an action that made so many bytes of gradients; while it ran, they were part of its
    /// use.
    fn end_action(&mut self, gradients: i64) -> Result<i64, TorchError> {
        let (_, peak) = self.source.read()?;
        self.peak = self.peak.max(peak - self.begin - self.gradients);
        self.total = self.total.max(peak);
        self.gradients += gradients;
        self.level()
    }

    fn between_actions(&mut self) -> Result<i64, TorchError> {
        let level = self.level()?;
        self.held = self.held.max(level);
        Ok(level)
    }

    fn level(&self) -> Result<i64, TorchError> {
        Ok(self.source.read()?.0 - self.begin - self.gradients)
    }

    fn levels(&self) -> Result<MemoryLevels, TorchError> {
        Ok(MemoryLevels {
            peak: bytes(self.peak),
            held: bytes(self.held),
            left: bytes(self.level()?),
            total: bytes(self.total),
        })
    }
}

/// Source of a count of bytes.
enum Source {
    Account(Account),
    Device(Device),
}

impl Source {
    /// Bytes now, and at most since the last reset.
    fn read(&self) -> Result<(i64, i64), TorchError> {
        let (current, peak) = match self {
            Self::Account(account) => (account.current(), account.peak()),
            Self::Device(device) => {
                let memory = memory::of_device(*device)?;
                (memory.current, memory.peak)
            }
        };
        Ok((current as i64, peak as i64))
    }

    fn reset_peak(&self) -> Result<(), TorchError> {
        match self {
            Self::Account(account) => account.reset_peak(),
            Self::Device(device) => memory::reset_device_peak(*device)?,
        }
        Ok(())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(_) => f.write_str("Account"),
            Self::Device(device) => write!(f, "{device:?}"),
        }
    }
}

/// Other threads free what this stage has sent, which may take a level below zero.
fn bytes(count: i64) -> Bytes {
    Bytes(u64::try_from(count).unwrap_or(0))
}

/// A stage that panicked has left numbers that the next step resets.
fn locked(counter: &Mutex<Counter>) -> std::sync::MutexGuard<'_, Counter> {
    counter.lock().unwrap_or_else(PoisonError::into_inner)
}
