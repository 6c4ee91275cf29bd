//! The messages between the caller and the workers.

use super::device_stages::DeviceStages;
use super::event::Events;
use super::failure::StageError;
use super::program::{Exit, Program};
use super::stage::{Observer, Stage};
use gpipe_partitioner::{DeviceId, StageId};
use std::sync::Arc;
use std::time::Instant;

/// Message to a worker.
pub(super) enum Message<S: Stage> {
    /// A value for a slot of the current step, or of the next one, whose command has not yet
    /// arrived.
    Value { slot: usize, value: S::Value },
    /// A peer failed: leave the step.
    Stop,
    /// A command of the caller.
    Command(Command<S>),
}

/// Command of the caller to a worker. All but `Exit` are answered with one report, and the next
/// command is sent only after it.
pub(super) enum Command<S: Stage> {
    /// Run the device's part of a step.
    Step(StepCommand<S>),
    /// The step failed on some device and all workers have left it: undo it.
    Abort,
    /// Run this with the device's stages.
    Job(Job<S>),
    /// Drop the stages and end.
    Exit,
}

pub(super) type Job<S> = Box<dyn FnOnce(&mut DeviceStages<S>) + Send>;

pub(super) struct StepCommand<S: Stage> {
    pub(super) program: Arc<Program>,
    pub(super) settings: Arc<S::Step>,
    /// Time 0 of the log.
    pub(super) epoch: Instant,
}

/// Answer of a worker to the caller.
pub(super) struct Report<V> {
    pub(super) device: DeviceId,
    pub(super) reply: Reply<V>,
}

pub(super) enum Reply<V> {
    /// The stages are built: their numbers, and the observers of those that have one.
    Built(Vec<StageId>, Vec<(StageId, Observer)>),
    /// The stages could not be built, and the thread ends.
    NotBuilt(anyhow::Error),
    /// The device's actions of the step are done.
    Finished(StepRecord<V>),
    /// The step failed on this device, and every peer has a stop notice.
    Failed(StageError),
    /// A peer failed, and the worker has left the step.
    Stopped,
    /// The failed step is undone; these aborts failed.
    Aborted(Vec<StageError>),
    /// The job is done.
    JobDone,
    /// The thread ends without having been told to.
    Lost,
}

/// Result of a step on a worker.
pub(super) struct StepRecord<V> {
    pub(super) exits: Vec<(Exit, V)>,
    pub(super) events: Events,
}
