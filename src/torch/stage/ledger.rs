//! What the activations of a stage take, action by action.
//!
//! Measured is what the stage's own computations allocate (on a CUDA device: all
//! that its stages allocate), from the beginning of the step on, without gradients
//! of parameters: these are there all the time. A tensor that a stage sends is its
//! own until the receiver is done with it. That is never longer than until the
//! micro-batch's backward here.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gpipe_partitioner::{ActionKind, Bytes, StageMemory};
use tch::{Device, Tensor};

use super::TorchStage;
use crate::torch::error::TorchError;
use crate::torch::memory::{self, Account, Scope};
use crate::torch::sequential::bytes as bytes_of;

/// Where the bytes of a device's stages are counted, shared by these stages.
#[derive(Debug, Clone)]
pub(crate) struct Books {
    meter: Arc<Mutex<Meter>>,
    /// On a CUDA device none: its allocator does not know stages.
    account: Option<Account>,
    /// What stages of the CPU keep elsewhere; that of CUDA devices is in memory that
    /// their allocator has nothing to do with.
    elsewhere: Option<Account>,
}

/// A step's bytes of activations on a stage or device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// The most at any time, scratch memory of kernels included.
    pub(crate) peak: Bytes,
    /// The most between two actions.
    pub(crate) held: Bytes,
    /// When the step was over.
    pub(crate) left: Bytes,
    /// The most at any time, with all that is there between steps.
    pub(crate) total: Bytes,
}

/// What a step used on a stage and its device, and what a micro-batch keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    /// None where the device's allocator does not tell its stages apart.
    pub(crate) stage: Option<Used>,
    pub(crate) device: Used,
    pub(crate) micro_batch: StageMemory,
}

/// The books of one stage.
#[derive(Debug)]
pub(crate) struct Ledger {
    device: Arc<Mutex<Meter>>,
    stage: Option<(Account, Meter)>,
    /// Bytes that the present forward has sent to the host, and the most that one has.
    leaving: u64,
    offloaded: u64,
    /// The stage's gradients of parameters as of now.
    gradients: i64,
    /// By kind of action, the most that one left more than it found.
    growth: [Option<i64>; ActionKind::ALL.len()],
}

/// An action that is being measured.
#[derive(Debug)]
pub(crate) struct Measured {
    _scope: Option<Scope>,
    level: i64,
}

impl TorchStage {
    /// Runs an action and measures it, where that is asked for.
    pub(super) fn measured<T>(
        &mut self,
        kind: ActionKind,
        run: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let action = self.ledger.as_mut().map(Ledger::open).transpose()?;
        let result = run(self)?;
        if let (Some(ledger), Some(action)) = (&mut self.ledger, action) {
            let places = self.parameters.iter().chain(&self.replicas);
            let grads = places.map(|(_, parameter)| parameter.grad());
            let gradients = grads.filter(Tensor::defined).map(|grad| bytes_of(&grad));
            ledger.close(kind, action, gradients.sum::<u64>() as i64)?;
        }
        self.streams.end_action()?;
        if let Some(ledger) = &mut self.ledger {
            ledger.settle()?;
        }
        Ok(result)
    }

    /// What the step that just ended used; `None` where nobody measures.
    pub(crate) fn memory(&mut self) -> anyhow::Result<Option<Page>> {
        let page = self.ledger.as_mut().map(Ledger::page).transpose();
        Ok(page?)
    }
}

impl Books {
    /// # Errors
    /// The process has a CPU allocator of its own.
    pub(crate) fn new(device: Device) -> Result<Self, TorchError> {
        let account = match device {
            Device::Cpu => Some(Account::new()?),
            _ => None,
        };
        let gauge = match &account {
            Some(account) => Gauge::Account(account.clone()),
            None => Gauge::Device(device),
        };
        let meter = Arc::new(Mutex::new(Meter::new(gauge)));
        let elsewhere = account.as_ref().map(|_| Account::new()).transpose()?;
        Ok(Self {
            meter,
            account,
            elsewhere,
        })
    }

    /// Who is charged with what the device's stages keep on the host.
    pub(crate) fn elsewhere(&self) -> Option<Account> {
        self.elsewhere.clone()
    }

    pub(crate) fn ledger(&self) -> Result<Ledger, TorchError> {
        let stage = match &self.account {
            Some(whole) => {
                let account = Account::part_of(whole)?;
                let meter = Meter::new(Gauge::Account(account.clone()));
                Some((account, meter))
            }
            None => None,
        };
        Ok(Ledger {
            device: Arc::clone(&self.meter),
            stage,
            leaving: 0,
            offloaded: 0,
            gradients: 0,
            growth: [None; ActionKind::ALL.len()],
        })
    }
}

impl Ledger {
    /// What this thread allocates while the result lives is the stage's, step or not.
    pub(super) fn charge(&self) -> Option<Scope> {
        self.stage.as_ref().map(|(account, _)| account.enter())
    }

    /// So many bytes leave for the host. What a stage of the CPU was sent is on the
    /// sender's account.
    pub(super) fn leaves(&mut self, bytes: u64, foreign: bool) {
        if !(foreign && self.stage.is_some()) {
            self.leaving += bytes;
        }
    }

    /// A step begins; the stage has no gradients of it yet.
    pub(super) fn begin(&mut self) -> Result<(), TorchError> {
        self.gradients = 0;
        self.growth = [None; ActionKind::ALL.len()];
        (self.leaving, self.offloaded) = (0, 0);
        self.meters(Meter::begin)?;
        Ok(())
    }

    /// What this thread allocates while the result lives is the stage's.
    pub(super) fn open(&mut self) -> Result<Measured, TorchError> {
        let level = self.meters(Meter::open)?;
        Ok(Measured {
            _scope: self.charge(),
            level,
        })
    }

    /// The action is done; `gradients` are the bytes of this step's gradients of
    /// the stage's parameters.
    pub(super) fn close(
        &mut self,
        kind: ActionKind,
        action: Measured,
        gradients: i64,
    ) -> Result<(), TorchError> {
        let before = action.level;
        drop(action);
        let more = gradients - self.gradients;
        self.gradients = gradients;
        let level = self.meters(|meter| meter.close(more))?;
        let growth = &mut self.growth[kind as usize];
        *growth = (*growth).max(Some(level - before));
        self.offloaded = self.offloaded.max(std::mem::take(&mut self.leaving));
        Ok(())
    }

    /// What has left is let go of, as far as it is after the action.
    pub(super) fn settle(&mut self) -> Result<(), TorchError> {
        self.meters(Meter::settle)?;
        Ok(())
    }

    /// What the step that just ended used.
    pub(super) fn page(&mut self) -> Result<Page, TorchError> {
        let device = locked(&self.device).used()?;
        let stage = self.stage.as_ref().map(|(_, meter)| meter.used());
        Ok(Page {
            stage: stage.transpose()?,
            device,
            micro_batch: self.micro_batch(),
        })
    }

    /// As the simulation wants to know it.
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

    /// Does the same with the meters of the device and the stage; gives what the
    /// finer one said.
    fn meters(
        &mut self,
        mut each: impl FnMut(&mut Meter) -> Result<i64, TorchError>,
    ) -> Result<i64, TorchError> {
        let device = each(&mut locked(&self.device))?;
        match &mut self.stage {
            Some((_, meter)) => each(meter),
            None => Ok(device),
        }
    }
}

/// Follows one count of bytes through a step.
#[derive(Debug)]
struct Meter {
    gauge: Gauge,
    /// The count at the beginning of the step.
    begin: i64,
    /// Gradients of parameters made since.
    gradients: i64,
    peak: i64,
    held: i64,
    /// The most at any time, from nothing.
    total: i64,
}

impl Meter {
    fn new(gauge: Gauge) -> Self {
        Self {
            gauge,
            begin: 0,
            gradients: 0,
            peak: 0,
            held: 0,
            total: 0,
        }
    }

    fn begin(&mut self) -> Result<i64, TorchError> {
        self.begin = self.gauge.read()?.0;
        (self.gradients, self.peak, self.held) = (0, 0, 0);
        self.total = self.begin;
        Ok(0)
    }

    fn open(&mut self) -> Result<i64, TorchError> {
        self.gauge.reset()?;
        self.level()
    }

    /// The action made so many more bytes of gradients; while it ran, they were
    /// part of what it used.
    fn close(&mut self, gradients: i64) -> Result<i64, TorchError> {
        let (_, peak) = self.gauge.read()?;
        self.peak = self.peak.max(peak - self.begin - self.gradients);
        self.total = self.total.max(peak);
        self.gradients += gradients;
        self.level()
    }

    /// Between two actions.
    fn settle(&mut self) -> Result<i64, TorchError> {
        let level = self.level()?;
        self.held = self.held.max(level);
        Ok(level)
    }

    fn level(&self) -> Result<i64, TorchError> {
        Ok(self.gauge.read()?.0 - self.begin - self.gradients)
    }

    fn used(&self) -> Result<Used, TorchError> {
        Ok(Used {
            peak: bytes(self.peak),
            held: bytes(self.held),
            left: bytes(self.level()?),
            total: bytes(self.total),
        })
    }
}

/// Who counts.
enum Gauge {
    Account(Account),
    Device(Device),
}

impl Gauge {
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

    fn reset(&self) -> Result<(), TorchError> {
        match self {
            Self::Account(account) => account.reset_peak(),
            Self::Device(device) => memory::reset_device_peak(*device)?,
        }
        Ok(())
    }
}

impl fmt::Debug for Gauge {
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

/// A stage that panicked has left numbers that the next step sets anew.
fn locked(meter: &Mutex<Meter>) -> std::sync::MutexGuard<'_, Meter> {
    meter.lock().unwrap_or_else(PoisonError::into_inner)
}
