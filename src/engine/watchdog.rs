//! Detects a stage that does not return (a watchdog).
//!
//! A worker notes what it is about to do before it calls a stage, and that it is idle once the
//! stage has returned. The caller polls these notes while it waits for reports: a device whose note
//! has not changed for longer than the caller's patience is *stalled*. A thread cannot be taken out
//! of code that blocks it, but the caller learns where it blocks and need not wait for it.

use super::failure::{Phase, Stall};
use super::program::Program;
use super::task::Task;
use gpipe_partitioner::DeviceId;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Activity of a device's thread in its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// In no stage's code: the thread waits or sends values.
    Idle,
    Begin,
    /// The op at this index of its list.
    Op(usize),
    End,
    Abort,
    Job,
}

/// A device's note of what it is doing.
///
/// It publishes no data, so it is read and written relaxed. Each note has its own cache line, since
/// its worker writes it twice per action.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Note(AtomicU64);

/// The number of the first op; the numbers below are the other activities.
const FIRST_OP: u64 = 5;

impl Note {
    pub(super) fn write(&self, activity: Activity) {
        let number = match activity {
            Activity::Idle => 0,
            Activity::Begin => 1,
            Activity::End => 2,
            Activity::Abort => 3,
            Activity::Job => 4,
            Activity::Op(place) => FIRST_OP + place as u64,
        };
        self.0.store(number, Relaxed);
    }

    fn read(&self) -> Activity {
        match self.0.load(Relaxed) {
            0 => Activity::Idle,
            1 => Activity::Begin,
            2 => Activity::End,
            3 => Activity::Abort,
            4 => Activity::Job,
            number => Activity::Op((number - FIRST_OP) as usize),
        }
    }
}

/// Describes the stall of `device`, in a step of `program` or in another call.
pub(super) fn stall(
    device: DeviceId,
    activity: Activity,
    patience: Duration,
    program: Option<&Program>,
) -> Stall {
    let program = program.map(|program| program.device(device));
    let task = match (activity, program) {
        (Activity::Op(place), Some(program)) => program.ops.get(place).map(|op| op.task),
        _ => None,
    };
    let phase = match (activity, task) {
        (Activity::Begin, _) => Phase::Begin,
        (Activity::End, _) => Phase::End,
        (Activity::Abort, _) => Phase::Abort,
        (_, Some(task)) => task.phase(),
        (_, None) => Phase::Job,
    };
    Stall {
        device,
        stage: task.map(Task::stage),
        replica: None,
        layer: None,
        micro: task.and_then(Task::micro),
        action: phase,
        patience,
        after: None,
    }
}

/// Polls the devices' notes while the caller waits.
pub(super) struct Watchdog {
    patience: Duration,
    /// For each device its current activity, and the time when it was first seen.
    seen: Vec<(Activity, Instant)>,
}

impl Watchdog {
    pub(super) fn new(patience: Duration, devices: usize) -> Self {
        Self {
            patience,
            seen: vec![(Activity::Idle, Instant::now()); devices],
        }
    }

    /// Longest sleep of the caller between two polls: a stall is detected at most a quarter of the
    /// patience late.
    pub(super) fn pause(&self) -> Duration {
        self.patience / 4
    }

    /// Returns the stalled ones of these devices, with their activities.
    pub(super) fn look(
        &mut self,
        devices: &[DeviceId],
        notes: &[Note],
    ) -> Vec<(DeviceId, Activity)> {
        let now = Instant::now();
        let mut stalled = Vec::new();
        for ((device, note), seen) in devices.iter().zip(notes).zip(&mut self.seen) {
            let activity = note.read();
            if activity != seen.0 {
                *seen = (activity, now);
            }
            if activity != Activity::Idle && now - seen.1 >= self.patience {
                stalled.push((*device, activity));
            }
        }
        stalled
    }
}
