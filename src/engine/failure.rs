//! Errors of stages and of the engine, with the place of the failure.

use super::sync;
use super::task::Task;
use gpipe_partitioner::{ActionKind, DeviceId, MicroId, StageId};
use std::fmt;
use std::time::Duration;

/// Call of a stage during which it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// [`Stage::begin`](super::Stage::begin).
    Begin,
    /// [`Stage::run`](super::Stage::run), with an action of this kind.
    Action(ActionKind),
    /// Sending the output of an action of this kind to a device of another process.
    Send(ActionKind),
    /// [`Stage::exchange`](super::Stage::exchange), in this round.
    Exchange(usize),
    /// Sending the output of this round of an exchange to a device of another process.
    SendExchange(usize),
    /// [`Stage::end`](super::Stage::end).
    End,
    /// [`Stage::abort`](super::Stage::abort).
    Abort,
    /// A job of [`Engine::on_each`](super::Engine::on_each) or
    /// [`Engine::on_stage`](super::Engine::on_stage).
    Job,
}

impl Task {
    /// Returns the phase that a failure of this task is in.
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::Action(action) => Phase::Action(action.kind),
            Self::Exchange { round, .. } => Phase::Exchange(round),
        }
    }

    /// Returns the phase of a failure to send this task's outputs.
    pub(super) fn sending(self) -> Phase {
        match self {
            Self::Action(action) => Phase::Send(action.kind),
            Self::Exchange { round, .. } => Phase::SendExchange(round),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send(kind) => return write!(f, "sending after {}", Self::Action(*kind)),
            Self::Exchange(round) => return write!(f, "round {round} of the exchange"),
            Self::SendExchange(round) => {
                return write!(f, "sending after {}", Self::Exchange(*round));
            }
            Self::Begin => "begin of the step",
            Self::Action(ActionKind::Forward) => "forward",
            Self::Action(ActionKind::Backward) => "backward",
            Self::Action(ActionKind::BackwardInput) => "backward of the input",
            Self::Action(ActionKind::BackwardWeight) => "backward of the weights",
            Self::Action(ActionKind::Recompute) => "recompute",
            Self::End => "end of the step",
            Self::Abort => "abort of the step",
            Self::Job => "job",
        })
    }
}

/// `stage 1` or, where there are replicas, `stage 1 of replica 2`.
struct Named(StageId, Option<usize>);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage {}", self.0)?;
        match self.1 {
            Some(replica) => write!(f, " of replica {replica}"),
            None => Ok(()),
        }
    }
}

/// A stage returned an error or panicked.
///
/// Displays as ``stage 1, layer `block.3`, micro-batch 2, backward: {source:#}``, where there are
/// replicas as ``stage 1 of replica 2, …``: with all causes, so it has no
/// [`source`](std::error::Error::source) that would repeat them.
#[derive(Debug)]
pub struct StageError {
    /// The stage that failed.
    pub stage: StageId,
    /// The replica of the failed stage, where there are several.
    pub replica: Option<usize>,
    /// The layer that was running, if the stage knows it.
    pub layer: Option<String>,
    /// The micro-batch, if the failure belongs to one.
    pub micro: Option<MicroId>,
    /// The call that failed.
    pub action: Phase,
    /// The error itself; a [`Panicked`] for a panic.
    pub source: anyhow::Error,
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Named(self.stage, self.replica))?;
        if let Some(layer) = &self.layer {
            write!(f, ", layer `{layer}`")?;
        }
        if let Some(micro) = self.micro {
            write!(f, ", micro-batch {micro}")?;
        }
        write!(f, ", {}: {:#}", self.action, self.source)
    }
}

impl std::error::Error for StageError {}

/// A stage has not returned for longer than the caller's patience.
///
/// Displays as ``device 1, stage 1, layer `block.3`, micro-batch 2, forward: …``.
#[derive(Debug)]
#[doc(alias = "timeout")]
#[doc(alias = "hang")]
pub struct Stall {
    /// The device whose thread is in the stage's code.
    pub device: DeviceId,
    /// The stage: that of the action, otherwise the device's, if it has only one.
    pub stage: Option<StageId>,
    /// The replica of the device, where there are several.
    pub replica: Option<usize>,
    /// The layer that was running, if the stage has an [`observer`](super::Stage::observer).
    pub layer: Option<String>,
    /// The micro-batch, if an action was running.
    pub micro: Option<MicroId>,
    /// The call that has not returned.
    pub action: Phase,
    /// Lower bound of the time since the call began.
    pub patience: Duration,
    /// Earlier failure of another stage, if there was one.
    pub after: Option<Box<StageError>>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = &self.after {
            write!(f, "{first}; then ")?;
        }
        write!(f, "device {}", self.device)?;
        if let Some(stage) = self.stage {
            write!(f, ", {}", Named(stage, self.replica))?;
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

/// The message of a panic that was caught at the border of a stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {message}")]
pub struct Panicked {
    /// Message and place of the panic; `(no message)` for a payload that is no text.
    pub message: String,
}

/// Runs `f`, which is code of a stage or of the user; a panic becomes an error.
///
/// Unwind safety of `f` is asserted: after any failure the engine touches the stage again only
/// through [`Stage::abort`](super::Stage::abort), which has to repair the stage, and shows it to no
/// other thread.
pub(super) fn guarded<R>(f: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
    sync::caught(f).unwrap_or_else(|message| Err(Panicked { message }.into()))
}

/// Drops `value`, even if its `Drop` panics.
pub(super) fn discard<T>(value: T) {
    sync::survived(|| drop(value));
}

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A stage failed; the others were stopped and the step was undone.
    #[error(transparent)]
    Stage(StageError),
    /// A stage failed and then another one could not undo the step: the state of the latter may be
    /// corrupt.
    #[error("{first}; then {abort}")]
    Abort {
        /// The error that failed the step.
        first: StageError,
        /// The first stage, in stage order, whose `abort` panicked.
        abort: Box<StageError>,
    },
    /// A stage did not return in time ([`Engine::set_patience`](super::Engine::set_patience)).
    #[error("{0}")]
    Stalled(Box<Stall>),
    /// The stages of a device could not be built.
    #[error("building the stages of device {device}: {source:#}")]
    Build {
        /// The device, which is also the builder's place in the list.
        device: DeviceId,
        /// The builder's error; a [`Panicked`] for a panic.
        r#source: anyhow::Error,
    },
    /// The operating system could not create a thread.
    #[error("no thread for device {device}: {source}")]
    Thread {
        /// The device without a thread.
        device: DeviceId,
        /// The error of the operating system.
        r#source: std::io::Error,
    },
    /// The builders did not build stages 0, 1, 2, … once each, in each replica.
    #[error(
        "{} is built {times} times among {stages} stages: every stage from 0 on is built once",
        Named(*.stage, *.replica)
    )]
    Placement {
        /// The first stage that is missing or built twice.
        stage: StageId,
        /// The replica of that stage, where there are several.
        replica: Option<usize>,
        /// How often that stage was built.
        times: usize,
        /// How many stages were built in all, or in the replica.
        stages: usize,
    },
    /// The replicas have different numbers of devices.
    #[error("{devices} devices are not {replicas} replicas of a pipeline: each has as many")]
    Uneven {
        /// Devices in all.
        devices: usize,
        /// Replicas.
        replicas: usize,
    },
    /// An engine needs at least one device.
    #[error("an engine needs at least one device")]
    NoDevices,
    /// The program is for another number of devices.
    #[error("schedule `{schedule}` is for {wanted} devices, the engine has {present}")]
    Devices {
        /// The schedule's name.
        schedule: String,
        /// Devices of the schedule.
        wanted: usize,
        /// Devices of the engine.
        present: usize,
    },
    /// The program is for another number of replicas.
    #[error("schedule `{schedule}` is for {wanted} replicas, the engine has {present}")]
    Replicas {
        /// The schedule's name.
        schedule: String,
        /// Replicas of the program.
        wanted: usize,
        /// Replicas of the engine.
        present: usize,
    },
    /// The program places stages elsewhere than the engine.
    #[error(
        "schedule `{schedule}` has stages {wanted:?} on device {device}, the engine has {present:?} there"
    )]
    Stages {
        /// The schedule's name.
        schedule: String,
        /// The first device that differs.
        device: DeviceId,
        /// Its stages in the schedule.
        wanted: Vec<usize>,
        /// Its stages in the engine.
        present: Vec<usize>,
    },
    /// The values from the caller are not exactly one per edge from the caller and micro-batch.
    #[error(transparent)]
    Entry(#[from] super::entry::EntryError),
    /// There is no such stage.
    #[error("there is no stage {stage}: the engine has {stages}")]
    NoStage {
        /// The stage asked for.
        stage: StageId,
        /// Number of stages.
        stages: usize,
    },
    /// The replica has no such stage in this process.
    #[error("{} is not here: the engine has {replicas} replicas", Named(*.stage, Some(*.replica)))]
    NoCopy {
        /// The stage asked for.
        stage: StageId,
        /// The replica asked for.
        replica: usize,
        /// Number of replicas.
        replicas: usize,
    },
    /// The thread of a device ended unexpectedly; the engine can only be dropped.
    #[error("the thread of device {device} is gone")]
    WorkerLost {
        /// The device.
        device: DeviceId,
    },
    /// This process could not tell the others the result of the step, which was undone in all.
    #[error("{0}")]
    Untold(anyhow::Error),
    /// The step, or the building of stages, failed in another process; it was undone in all.
    #[error("rank {rank}: {why}")]
    Elsewhere {
        /// The lowest rank that failed.
        rank: usize,
        /// The error of that process.
        why: String,
    },
    /// Another process is lost, or this one told the others that it cannot go on; the engine
    /// can only be dropped.
    #[error(transparent)]
    Lost(#[from] super::carrier::Lost),
    /// An earlier call did not complete (because of [`EngineError::WorkerLost`], a panic in the
    /// calling thread, or a stall outside a step); the engine can only be dropped.
    #[error("the engine cannot be used again: an earlier call did not come to its end")]
    Broken,
}

impl EngineError {
    /// Returns the failure of a stage, if this is one.
    pub fn stage_error(&self) -> Option<&StageError> {
        match self {
            Self::Stage(error) | Self::Abort { first: error, .. } => Some(error),
            _ => None,
        }
    }
}
