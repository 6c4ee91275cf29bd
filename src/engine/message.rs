//! What the caller and the workers say to each other.

use super::crew::Crew;
use super::event::Event;
use super::failure::StageError;
use super::mailbox::Mailbox;
use super::program::{Exit, Program};
use super::stage::{Observer, Stage};
use super::turns::Turns;
use super::watchdog::Note;
use gpipe_partitioner::{DeviceId, StageId};
use std::sync::Arc;
use std::time::Instant;

/// What arrives in a worker's inbox.
pub(super) enum Message<S: Stage> {
    /// A value for a slot of the present step, or of one that the worker has not
    /// heard of yet.
    Value { slot: usize, value: S::Value },
    /// A peer failed: leave the step.
    Stop,
    /// The caller wants something.
    Order(Order<S>),
}

/// What the caller wants of a worker. All but `Exit` are answered with one report,
/// and the next one is sent only after that.
pub(super) enum Order<S: Stage> {
    /// Run the device's part of a step.
    Step(StepOrder<S>),
    /// The step failed somewhere and everybody has left it: undo it.
    Abort,
    /// Run this with the device's stages.
    Job(Job<S>),
    /// Drop the stages and end.
    Exit,
}

pub(super) type Job<S> = Box<dyn FnOnce(&mut Crew<S>) + Send>;

pub(super) struct StepOrder<S: Stage> {
    pub(super) program: Arc<Program>,
    pub(super) settings: Arc<S::Step>,
    /// What the log counts from.
    pub(super) epoch: Instant,
}

/// What a worker answers to the caller.
pub(super) struct Report<V> {
    pub(super) device: DeviceId,
    pub(super) news: News<V>,
}

pub(super) enum News<V> {
    /// The stages are built: these, and what tells where some of them are.
    Built(Vec<StageId>, Vec<(StageId, Observer)>),
    /// They are not, and the thread ends.
    NotBuilt(anyhow::Error),
    /// Every action of the step is done here.
    Finished(Record<V>),
    /// The step failed here, and every peer has been told.
    Failed(StageError),
    /// A peer failed: the step was left.
    Stopped,
    /// The failed step is undone, with these failures on the way.
    Aborted(Vec<StageError>),
    /// The job is done.
    JobDone,
    /// The thread ends though nobody asked it to.
    Lost,
}

/// What a worker brings home from a step.
pub(super) struct Record<V> {
    pub(super) exits: Vec<(Exit, V)>,
    pub(super) events: Vec<Event>,
}

/// Devices that share cores which do not suffice for all of them at the same time.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// These devices.
    pub devices: Vec<DeviceId>,
    /// How many of them may work at the same time; 0 counts as 1.
    pub at_once: usize,
    /// The number by which `settle` knows the thread that calls this.
    pub thread: fn() -> u64,
    /// Called when a device's thread is to work at another place than before, by whichever
    /// thread gives it the place: a number below `at_once`, or none from the end of a step
    /// on. Whoever has a place has it alone, so that a core may go with it.
    pub settle: fn(u64, Option<usize>),
}

impl Sharing {
    fn turns(&self, devices: usize) -> Turns {
        let shares = (0..devices).map(|device| self.devices.contains(&DeviceId(device)));
        Turns::new(shares.collect(), self.at_once, self.thread, self.settle)
    }
}

/// What the threads of an engine share: a mailbox per worker, one for the caller, and the
/// workers' notes.
pub(super) struct Lines<S: Stage> {
    pub(super) inboxes: Vec<Mailbox<Message<S>>>,
    pub(super) reports: Mailbox<Report<S::Value>>,
    /// By device.
    pub(super) notes: Vec<Note>,
    /// Where devices share too few cores.
    pub(super) turns: Option<Turns>,
}

impl<S: Stage> Lines<S> {
    pub(super) fn new(devices: usize, sharing: Option<&Sharing>) -> Self {
        let inboxes = (0..devices).map(|_| Mailbox::new()).collect();
        Self {
            inboxes,
            reports: Mailbox::new(),
            notes: (0..devices).map(|_| Note::default()).collect(),
            turns: sharing.map(|sharing| sharing.turns(devices)),
        }
    }

    pub(super) fn inbox(&self, device: DeviceId) -> &Mailbox<Message<S>> {
        &self.inboxes[device.index()]
    }

    pub(super) fn report(&self, device: DeviceId, news: News<S::Value>) {
        self.reports.post(Report { device, news });
    }

    /// Tells every worker but `failed` to leave the step.
    pub(super) fn stop_all_but(&self, failed: DeviceId) {
        for (device, inbox) in self.inboxes.iter().enumerate() {
            if device != failed.index() {
                inbox.post(Message::Stop);
            }
        }
    }

    /// Tells every worker to leave the step.
    pub(super) fn stop_all(&self) {
        self.inboxes
            .iter()
            .for_each(|inbox| inbox.post(Message::Stop));
    }
}
