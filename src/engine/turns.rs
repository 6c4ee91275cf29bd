//! Turns of devices that share too few cores.
//!
//! An operating system divides the cores among all threads that could run, a few
//! milliseconds each in turn: three stages on two cores all end late, and which one the
//! others wait for is left to chance. Here there are as many *places* as devices that may
//! work at the same time. A device has one from the beginning of an action to its end, and
//! of those whose next action has all it needs the most urgent gets it next.
//!
//! Whoever ends an action says what it sends, and gives its place on in the same moment.
//! A device can so be given a place while its thread still sleeps: were it to wake up
//! and to ask first, a less urgent one would be there before it, and which one would be
//! left to chance again.

use super::program::{Place as Slot, Program};
use super::sync::{Condvar, Mutex, MutexGuard, wait};
use gpipe_partitioner::DeviceId;
use std::cmp::Reverse;
use std::sync::Arc;

/// Hands out the places to work at.
pub(super) struct Turns {
    state: Mutex<State>,
    /// By device, for which waits nobody else.
    granted: Vec<Condvar>,
    /// By device: whether it takes part.
    shares: Vec<bool>,
    thread: fn() -> u64,
    settle: fn(u64, Option<usize>),
}

struct State {
    /// What the present step runs.
    program: Option<Arc<Program>>,
    /// Places that nobody has, the next one last.
    free: Vec<usize>,
    /// By device.
    lines: Vec<Line>,
}

#[derive(Clone, Default)]
struct Line {
    stand: Stand,
    /// Place of its next action in its list.
    next: usize,
    /// For each of its actions, the values from other devices that are not sent yet.
    awaits: Vec<usize>,
    /// Where its thread is bound to.
    bound: Option<usize>,
    /// Its thread, once it has told.
    thread: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// Not in the step, or never taking part.
    #[default]
    Away,
    /// Between two actions.
    Waits,
    /// It has this place and may not know yet.
    At(usize),
}

impl Turns {
    /// At most `at_once` of the devices that share work at the same time; one at least.
    pub(super) fn new(
        shares: Vec<bool>,
        at_once: usize,
        thread: fn() -> u64,
        settle: fn(u64, Option<usize>),
    ) -> Self {
        let devices = shares.len();
        Self {
            state: Mutex::new(State {
                program: None,
                free: (0..at_once.max(1)).rev().collect(),
                lines: vec![Line::default(); devices],
            }),
            granted: (0..devices).map(|_| Condvar::new()).collect(),
            shares,
            thread,
            settle,
        }
    }

    /// A step begins, in which nobody is yet.
    pub(super) fn start(&self, program: &Arc<Program>) {
        let mut state = self.state.lock();
        for (device, line) in state.lines.iter_mut().enumerate() {
            let ops = &program.device(DeviceId(device)).ops;
            line.awaits.clear();
            line.awaits.extend(ops.iter().map(|op| op.awaits));
            line.next = 0;
            line.stand = if self.shares[device] && !ops.is_empty() {
                Stand::Waits
            } else {
                Stand::Away
            };
        }
        state.program = Some(Arc::clone(program));
        self.give(&mut state);
    }

    /// Waits for a place for the next action of `device`, on the device's thread. One that is
    /// out of the step goes on without: it will hear of it before the action after.
    pub(super) fn take(&self, device: DeviceId) {
        let index = device.index();
        if !self.shares[index] {
            return;
        }
        let mut state = self.wait(index, self.state.lock());
        let line = &mut state.lines[index];
        if line.thread.is_none() {
            line.thread = Some((self.thread)());
            self.bind(line);
        }
    }

    /// `device` has ended its action, and what goes to the slots `sent` is as good as
    /// there: its place goes to whoever needs it most, which may be itself.
    pub(super) fn finish(&self, device: DeviceId, sent: impl Iterator<Item = Slot>) {
        let mut state = self.state.lock();
        for slot in sent {
            let awaits = &mut state.lines[slot.device.index()].awaits;
            if let Some(left) = awaits.get_mut(slot.op) {
                *left = left.saturating_sub(1);
            }
        }
        let line = &mut state.lines[device.index()];
        if let Stand::At(place) = line.stand {
            line.next += 1;
            line.stand = if line.next < line.awaits.len() {
                Stand::Waits
            } else {
                Stand::Away
            };
            state.free.push(place);
        }
        self.give(&mut state);
    }

    /// `device` is out of the step, on its own thread, or with that gone or stalled. What
    /// comes next may run anywhere.
    pub(super) fn leave(&self, device: DeviceId) {
        let mut state = self.state.lock();
        let line = &mut state.lines[device.index()];
        if let (Some(_), Some(thread)) = (line.bound.take(), line.thread) {
            (self.settle)(thread, None);
        }
        if let Stand::At(place) = std::mem::take(&mut line.stand) {
            state.free.push(place);
            self.give(&mut state);
        }
        // Its thread may not have known yet that it had a place.
        self.granted[device.index()].notify_one();
    }

    /// Gives the free places to the most urgent ones.
    fn give(&self, state: &mut State) {
        while !state.free.is_empty() {
            let Some(device) = state.next() else {
                return;
            };
            let before = state.lines[device].bound;
            // The one it had before is as good as any, and better for its caches.
            let same = state.free.iter().position(|place| Some(*place) == before);
            let last = state.free.len() - 1;
            let place = state.free.swap_remove(same.unwrap_or(last));
            let line = &mut state.lines[device];
            line.stand = Stand::At(place);
            // Before it wakes up: at its old place another one may be at work.
            self.bind(line);
            self.granted[device].notify_one();
        }
    }

    fn bind(&self, line: &mut Line) {
        if let (Stand::At(place), Some(thread)) = (line.stand, line.thread)
            && line.bound != Some(place)
        {
            line.bound = Some(place);
            (self.settle)(thread, Some(place));
        }
    }

    fn wait<'a>(&self, device: usize, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.lines[device].stand == Stand::Waits {
            state = wait(&self.granted[device], state);
        }
        state
    }
}

impl State {
    /// The most urgent of those that could work, of equal ones the one with the lower
    /// number.
    fn next(&self) -> Option<usize> {
        let program = self.program.as_ref()?;
        let could = self.lines.iter().enumerate().filter(|(_, line)| {
            line.stand == Stand::Waits && line.awaits.get(line.next) == Some(&0)
        });
        let urgency = |device: usize, line: &Line| {
            let ops = &program.device(DeviceId(device)).ops;
            ops.get(line.next).map_or(0, |op| op.urgency)
        };
        could
            .max_by_key(|(device, line)| (urgency(*device, line), Reverse(*device)))
            .map(|(device, _)| device)
    }
}
