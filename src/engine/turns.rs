//! Turns of devices that share too few cores.
//!
//! An operating system divides the cores among all runnable threads, a few milliseconds each in
//! turn: three stages on two cores all end late, and chance decides which of them the others wait
//! for. Here there are as many *core slots* as devices that may run at the same time. A device
//! holds one from the start to the end of an action (or of a round of an exchange, which counts as
//! an action here). A free slot goes to the most urgent device among those whose next action has
//! all its inputs (list scheduling by critical path).
//!
//! A device that ends an action announces its sends and releases its slot under the same lock. So a
//! device can be granted a slot while its thread still sleeps: if it had to wake up and ask first,
//! a less urgent device would take the slot.

use super::program::{Program, SlotAddress};
use super::sync::{Condvar, Mutex, MutexGuard, wait};
use gpipe_partitioner::DeviceId;
use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

/// Devices that share too few cores to run all at the same time.
#[derive(Clone, Debug)]
#[doc(alias = "oversubscription")]
pub struct Sharing {
    /// The devices.
    pub devices: Vec<DeviceId>,
    /// Number of devices that may run an action at the same time; 0 counts as 1. Each of them holds
    /// a *core slot*, numbered from 0.
    pub max_concurrent: usize,
    /// Binds threads to the cores of the slots.
    pub affinity: Arc<dyn Affinity>,
}

/// Binds threads to cores.
///
/// A core slot belongs to one device at a time, so each running device can have a core of its own.
/// Binding affects only speed: an implementation may do nothing.
#[doc(alias = "sched_setaffinity")]
pub trait Affinity: fmt::Debug + Send + Sync {
    /// Number of the calling thread, for [`pin`](Self::pin).
    fn current(&self) -> u64;

    /// Binds `thread` to the core of `slot`, or to no particular core for `None`, as at the end of
    /// a step.
    ///
    /// Called, by any thread of the engine, when a device gets a slot other than its last one: it
    /// should not block.
    fn pin(&self, thread: u64, slot: Option<usize>);
}

/// Leaves all threads to the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpinned;

impl Affinity for Unpinned {
    fn current(&self) -> u64 {
        0
    }

    fn pin(&self, _thread: u64, _slot: Option<usize>) {}
}

/// Grants the core slots.
pub(super) struct Turns {
    state: Mutex<State>,
    /// By device; only the device's own thread waits on it.
    granted: Vec<Condvar>,
    /// By device: whether it takes turns.
    shares: Vec<bool>,
    affinity: Arc<dyn Affinity>,
}

struct State {
    /// The program of the current step.
    program: Option<Arc<Program>>,
    /// Free core slots, the next to be granted last.
    free: Vec<usize>,
    /// By device.
    waiters: Vec<Waiter>,
}

/// A device that takes turns.
#[derive(Clone, Default)]
struct Waiter {
    status: Status,
    /// Index of the next action in the device's list.
    next: usize,
    /// For each of its actions, the number of values from other devices that are not sent yet.
    remote_inputs: Vec<usize>,
    /// The core slot that its thread is pinned to.
    pinned: Option<usize>,
    /// Thread of the device, known from its first turn on.
    thread: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Status {
    /// Not in the step, or not taking turns.
    #[default]
    Absent,
    /// Between two actions.
    Waiting,
    /// Holds this core slot; the device's thread may not know yet.
    Running(usize),
}

impl Turns {
    pub(super) fn new(devices: usize, sharing: &Sharing) -> Self {
        let shares = (0..devices).map(|device| sharing.devices.contains(&DeviceId(device)));
        Self {
            state: Mutex::new(State {
                program: None,
                free: (0..sharing.max_concurrent.max(1)).rev().collect(),
                waiters: vec![Waiter::default(); devices],
            }),
            granted: (0..devices).map(|_| Condvar::new()).collect(),
            shares: shares.collect(),
            affinity: Arc::clone(&sharing.affinity),
        }
    }

    /// Starts a step: no device runs an action yet.
    pub(super) fn start(&self, program: &Arc<Program>) {
        let mut state = self.state.lock();
        for (device, waiter) in state.waiters.iter_mut().enumerate() {
            let ops = &program.device(DeviceId(device)).ops;
            waiter.remote_inputs.clear();
            waiter
                .remote_inputs
                .extend(ops.iter().map(|op| op.remote_inputs));
            waiter.next = 0;
            waiter.status = if self.shares[device] && !ops.is_empty() {
                Status::Waiting
            } else {
                Status::Absent
            };
        }
        state.program = Some(Arc::clone(program));
        self.grant(&mut state);
    }

    /// Waits, on the device's thread, for a core slot for the next action of `device`. A device
    /// that has left the step goes on without one: it reads the stop notice before the next action.
    pub(super) fn take(&self, device: DeviceId) {
        let index = device.index();
        if !self.shares[index] {
            return;
        }
        let mut state = self.wait(index, self.state.lock());
        let waiter = &mut state.waiters[index];
        if waiter.thread.is_none() {
            waiter.thread = Some(self.affinity.current());
            self.pin(waiter);
        }
    }

    /// Ends an action of `device`, which is about to send values to `sent`; sending cannot fail.
    /// The core slot goes to the most urgent device, which may be the same one.
    pub(super) fn finish(&self, device: DeviceId, sent: impl Iterator<Item = SlotAddress>) {
        let mut state = self.state.lock();
        for address in sent {
            state.arrives(address.device, address.op);
        }
        let waiter = &mut state.waiters[device.index()];
        if let Status::Running(slot) = waiter.status {
            waiter.next += 1;
            waiter.status = if waiter.next < waiter.remote_inputs.len() {
                Status::Waiting
            } else {
                Status::Absent
            };
            state.free.push(slot);
        }
        self.grant(&mut state);
    }

    /// Notes a value of another process that is about to be put into the inbox of `device`, for its
    /// action `op`.
    pub(super) fn arrive(&self, device: DeviceId, op: usize) {
        let mut state = self.state.lock();
        state.arrives(device, op);
        self.grant(&mut state);
    }

    /// Takes `device` out of the step. Called by its own thread, or by the caller if that thread is
    /// gone or stalled. The thread may run on any core afterwards.
    pub(super) fn leave(&self, device: DeviceId) {
        let mut state = self.state.lock();
        let waiter = &mut state.waiters[device.index()];
        if let (Some(_), Some(thread)) = (waiter.pinned.take(), waiter.thread) {
            self.affinity.pin(thread, None);
        }
        if let Status::Running(slot) = std::mem::take(&mut waiter.status) {
            state.free.push(slot);
            self.grant(&mut state);
        }
        // The thread may not have known yet that it had a slot.
        self.granted[device.index()].notify_one();
    }

    /// Grants the free core slots to the most urgent devices.
    fn grant(&self, state: &mut State) {
        while !state.free.is_empty() {
            let Some(device) = state.most_urgent() else {
                return;
            };
            let before = state.waiters[device].pinned;
            // Prefers the device's previous slot, whose caches are warm.
            let same = state.free.iter().position(|slot| Some(*slot) == before);
            let last = state.free.len() - 1;
            let slot = state.free.swap_remove(same.unwrap_or(last));
            let waiter = &mut state.waiters[device];
            waiter.status = Status::Running(slot);
            // Before the device wakes up: another thread may be running on its last core.
            self.pin(waiter);
            self.granted[device].notify_one();
        }
    }

    fn pin(&self, waiter: &mut Waiter) {
        if let (Status::Running(slot), Some(thread)) = (waiter.status, waiter.thread)
            && waiter.pinned != Some(slot)
        {
            waiter.pinned = Some(slot);
            self.affinity.pin(thread, Some(slot));
        }
    }

    fn wait<'a>(&self, device: usize, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.waiters[device].status == Status::Waiting {
            state = wait(&self.granted[device], state);
        }
        state
    }
}

impl State {
    /// Counts one missing value less for an action. Devices of other processes have no counts.
    fn arrives(&mut self, device: DeviceId, op: usize) {
        let counts = &mut self.waiters[device.index()].remote_inputs;
        if let Some(left) = counts.get_mut(op) {
            *left = left.saturating_sub(1);
        }
    }

    /// The most urgent device among those whose next action has its inputs from other devices;
    /// among equals, the lowest number.
    fn most_urgent(&self) -> Option<usize> {
        let program = self.program.as_ref()?;
        let ready = self.waiters.iter().enumerate().filter(|(_, waiter)| {
            waiter.status == Status::Waiting && waiter.remote_inputs.get(waiter.next) == Some(&0)
        });
        let urgency = |device: usize, waiter: &Waiter| {
            let ops = &program.device(DeviceId(device)).ops;
            ops.get(waiter.next).map_or(0, |op| op.urgency)
        };
        ready
            .max_by_key(|(device, waiter)| (urgency(*device, waiter), Reverse(*device)))
            .map(|(device, _)| device)
    }
}
