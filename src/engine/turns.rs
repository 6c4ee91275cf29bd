//! Turns of devices that share too few cores.
//!
//! An operating system divides the cores among all threads that could run, a few
//! milliseconds each in turn: three stages on two cores all end late, and which one the
//! others wait for is left to chance. Here there are as many *places* as devices that may
//! work at the same time. A device has one from the beginning of an action to its end, and
//! of those that wait the most urgent gets it next.

use super::sync::{Condvar, Mutex, MutexGuard, wait};
use gpipe_partitioner::DeviceId;

/// Hands out the places to work at.
pub(super) struct Turns {
    state: Mutex<State>,
    /// By device, for which waits nobody else.
    granted: Vec<Condvar>,
}

struct State {
    /// Places that nobody has, the next one last.
    free: Vec<usize>,
    /// By device.
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
enum Line {
    /// The device takes no part, or wants nothing.
    Away,
    /// It waits, so urgently.
    Waits(u32),
    /// It has this place and may not know yet.
    Granted(usize),
}

impl Turns {
    /// At most `at_once` of `devices` devices work at the same time; one at least.
    pub(super) fn new(devices: usize, at_once: usize) -> Self {
        Self {
            state: Mutex::new(State {
                free: (0..at_once.max(1)).rev().collect(),
                lines: vec![Line::Away; devices],
            }),
            granted: (0..devices).map(|_| Condvar::new()).collect(),
        }
    }

    /// Waits for a place; `device` has none. The one it had `before` is as good as any,
    /// and better for its caches.
    pub(super) fn take(&self, device: DeviceId, urgency: u32, before: Option<usize>) -> usize {
        let mut state = self.state.lock();
        // Nobody waits while a place is free.
        let same = state.free.iter().position(|place| Some(*place) == before);
        if let Some(same) = same {
            return state.free.swap_remove(same);
        }
        if let Some(place) = state.free.pop() {
            return place;
        }
        state.lines[device.index()] = Line::Waits(urgency);
        self.wait(device, state)
    }

    /// Keeps `place` unless another one that waits is more urgent; the place to go on at.
    pub(super) fn keep(&self, device: DeviceId, urgency: u32, place: usize) -> usize {
        let mut state = self.state.lock();
        state.lines[device.index()] = Line::Waits(urgency);
        match state.next() {
            Some(next) if next != device.index() => {
                self.grant(&mut state, next, place);
                self.wait(device, state)
            }
            _ => {
                state.lines[device.index()] = Line::Away;
                place
            }
        }
    }

    /// Gives `place` to whoever waits most urgently.
    pub(super) fn leave(&self, place: usize) {
        let mut state = self.state.lock();
        match state.next() {
            Some(next) => self.grant(&mut state, next, place),
            None => state.free.push(place),
        }
    }

    fn grant(&self, state: &mut State, device: usize, place: usize) {
        state.lines[device] = Line::Granted(place);
        self.granted[device].notify_one();
    }

    fn wait(&self, device: DeviceId, mut state: MutexGuard<'_, State>) -> usize {
        loop {
            if let Line::Granted(place) = state.lines[device.index()] {
                state.lines[device.index()] = Line::Away;
                return place;
            }
            state = wait(&self.granted[device.index()], state);
        }
    }
}

impl State {
    /// The most urgent of those that wait, of equal ones the one with the lower number.
    fn next(&self) -> Option<usize> {
        let urgency = |line: &Line| match line {
            Line::Waits(urgency) => Some(*urgency),
            Line::Away | Line::Granted(_) => None,
        };
        let waiting = self.lines.iter().enumerate();
        let waiting = waiting.filter_map(|(device, line)| Some((urgency(line)?, device)));
        let next = waiting.max_by_key(|(urgency, device)| (*urgency, std::cmp::Reverse(*device)));
        next.map(|(_, device)| device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_goes_next_and_of_equal_ones_the_first() {
        use Line::{Away, Granted, Waits};
        let next = |lines: &[Line]| {
            let lines = lines.to_vec();
            State {
                free: vec![],
                lines,
            }
            .next()
        };
        assert_eq!(next(&[Waits(3), Granted(0), Waits(5), Waits(5)]), Some(2));
        assert_eq!(next(&[Waits(0), Away]), Some(0));
        assert_eq!(next(&[Away, Granted(1)]), None);
    }
}
