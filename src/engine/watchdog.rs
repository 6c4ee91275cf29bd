//! Notices a stage that does not come back.
//!
//! A worker writes down what it is about to do before it calls a stage, and that it
//! does nothing once the stage has returned. The caller, who waits for reports, looks at these
//! notes now and then: a device that has been doing one and the same thing for longer than the
//! caller has patience is *stalled*. Nobody can take a thread out of the code that
//! blocks it; but the caller can be told where that is, and need not wait for it.

use super::failure::{Phase, StageError};
use super::program::Program;
use gpipe_partitioner::{DeviceId, MicroId, StageId};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What a device's thread does with its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It is in no stage's code: it waits, or passes values on.
    Nothing,
    Begin,
    /// The op at this place of its list.
    Op(usize),
    End,
    Abort,
    Job,
}

/// A device's note of what it does.
///
/// It tells the caller where a thread is and publishes no data, so it is read and written
/// relaxed. Each has a line of the cache of its own, since its worker writes it twice an action.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Note(AtomicU64);

/// The number of the first op; those below are the other things there are to do.
const FIRST_OP: u64 = 5;

impl Note {
    pub(super) fn write(&self, doing: Doing) {
        let number = match doing {
            Doing::Nothing => 0,
            Doing::Begin => 1,
            Doing::End => 2,
            Doing::Abort => 3,
            Doing::Job => 4,
            Doing::Op(place) => FIRST_OP + place as u64,
        };
        self.0.store(number, Relaxed);
    }

    fn read(&self) -> Doing {
        match self.0.load(Relaxed) {
            0 => Doing::Nothing,
            1 => Doing::Begin,
            2 => Doing::End,
            3 => Doing::Abort,
            4 => Doing::Job,
            number => Doing::Op((number - FIRST_OP) as usize),
        }
    }
}

/// A stage has not come back for longer than the caller has patience.
///
/// Displays as ``device 1, stage 1, layer `block.3`, micro-batch 2, forward: …``.
#[derive(Debug)]
pub struct Stall {
    /// The device whose thread is in the stage's code.
    pub device: DeviceId,
    /// The stage: that of the action, otherwise the device's if it has only one.
    pub stage: Option<StageId>,
    /// The layer that was being run, where the stage tells.
    pub layer: Option<String>,
    /// The micro-batch, where an action was being run.
    pub micro: Option<MicroId>,
    /// What the stage is doing.
    pub action: Phase,
    /// For how long, at least, it had been doing that.
    pub patience: Duration,
    /// What had failed before on another stage, if anything had.
    pub after: Option<Box<StageError>>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = &self.after {
            write!(f, "{first}; then ")?;
        }
        write!(f, "device {}", self.device)?;
        if let Some(stage) = self.stage {
            write!(f, ", stage {stage}")?;
        }
        if let Some(layer) = &self.layer {
            write!(f, ", layer `{layer}`")?;
        }
        if let Some(micro) = self.micro {
            write!(f, ", micro-batch {micro}")?;
        }
        write!(
            f,
            ", {}: it has not come back for {:?}, which is the patience that was set: it waits for \
             something, or needs more time than that",
            self.action, self.patience
        )
    }
}

impl Stall {
    /// What `device` does of `program`, where it is a step that it works at.
    pub(super) fn new(
        device: DeviceId,
        doing: Doing,
        patience: Duration,
        program: Option<&Program>,
    ) -> Self {
        let program = program.map(|program| program.device(device));
        let action = match (doing, program) {
            (Doing::Op(place), Some(program)) => program.ops.get(place).map(|op| op.action),
            _ => None,
        };
        let phase = match (doing, action) {
            (Doing::Begin, _) => Phase::Begin,
            (Doing::End, _) => Phase::End,
            (Doing::Abort, _) => Phase::Abort,
            (_, Some(action)) => Phase::Action(action.kind),
            (_, None) => Phase::Job,
        };
        Self {
            device,
            stage: action.map(|action| action.stage),
            layer: None,
            micro: action.map(|action| action.micro),
            action: phase,
            patience,
            after: None,
        }
    }
}

/// Looks at the devices' notes while the caller waits.
pub(super) struct Watchdog {
    patience: Duration,
    /// By device: what it did when it was seen doing something else than before, and when
    /// that was.
    seen: Vec<(Doing, Instant)>,
}

impl Watchdog {
    pub(super) fn new(patience: Duration, devices: usize) -> Self {
        Self {
            patience,
            seen: vec![(Doing::Nothing, Instant::now()); devices],
        }
    }

    /// How long the caller may sleep between two looks: a stall is noticed a quarter of
    /// the patience late at most.
    pub(super) fn pause(&self) -> Duration {
        self.patience / 4
    }

    /// The devices that have been doing one thing for too long, and what.
    pub(super) fn look(&mut self, notes: &[Note]) -> Vec<(DeviceId, Doing)> {
        let now = Instant::now();
        let mut stalled = Vec::new();
        for (device, (note, seen)) in notes.iter().zip(&mut self.seen).enumerate() {
            let doing = note.read();
            if doing != seen.0 {
                *seen = (doing, now);
            }
            if doing != Doing::Nothing && now - seen.1 >= self.patience {
                stalled.push((DeviceId(device), doing));
            }
        }
        stalled
    }
}
