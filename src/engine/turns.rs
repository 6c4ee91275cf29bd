//! Turns of devices that share too few cores.
//!
//! An operating system divides the cores among all threads that could run, a few
//! milliseconds each in turn: three stages on two cores all end late, and which one the
//! others wait for is left to chance. Here as many work as have cores, from the beginning
//! of an action to its end, and of those that wait the most urgent goes next.

use super::sync::{Condvar, Mutex, MutexGuard, wait};
use gpipe_partitioner::DeviceId;

/// Hands out the right to work.
pub(super) struct Turns {
    state: Mutex<State>,
    /// By device, for which waits nobody else.
    granted: Vec<Condvar>,
}

struct State {
    /// Rights that nobody has.
    free: usize,
    /// By device.
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
enum Line {
    /// The device takes no part, or wants nothing.
    Away,
    /// It waits, so urgently.
    Waits(u32),
    /// It has the right and may not know yet.
    Granted,
}

impl Turns {
    /// At most `at_once` of `devices` devices work at the same time; one at least.
    pub(super) fn new(devices: usize, at_once: usize) -> Self {
        Self {
            state: Mutex::new(State {
                free: at_once.max(1),
                lines: vec![Line::Away; devices],
            }),
            granted: (0..devices).map(|_| Condvar::new()).collect(),
        }
    }

    /// Waits for the right to work, which `device` does not have.
    pub(super) fn take(&self, device: DeviceId, urgency: u32) {
        let mut state = self.state.lock();
        if state.free > 0 {
            // Nobody waits while a right is free.
            state.free -= 1;
            return;
        }
        state.lines[device.index()] = Line::Waits(urgency);
        self.wait(device, state);
    }

    /// Keeps the right unless another one that waits is more urgent.
    pub(super) fn keep(&self, device: DeviceId, urgency: u32) {
        let mut state = self.state.lock();
        state.lines[device.index()] = Line::Waits(urgency);
        let next = state.next();
        match next {
            Some(next) if next != device.index() => {
                self.grant(&mut state, next);
                self.wait(device, state);
            }
            _ => state.lines[device.index()] = Line::Away,
        }
    }

    /// Gives the right to whoever waits for it most urgently.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        match state.next() {
            Some(next) => self.grant(&mut state, next),
            None => state.free += 1,
        }
    }

    fn grant(&self, state: &mut State, device: usize) {
        state.lines[device] = Line::Granted;
        self.granted[device].notify_one();
    }

    fn wait(&self, device: DeviceId, mut state: MutexGuard<'_, State>) {
        while !matches!(state.lines[device.index()], Line::Granted) {
            state = wait(&self.granted[device.index()], state);
        }
        state.lines[device.index()] = Line::Away;
    }
}

impl State {
    /// The most urgent of those that wait, of equal ones the one with the lower number.
    fn next(&self) -> Option<usize> {
        let urgency = |line: &Line| match line {
            Line::Waits(urgency) => Some(*urgency),
            Line::Away | Line::Granted => None,
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
            State { free: 0, lines }.next()
        };
        assert_eq!(next(&[Waits(3), Granted, Waits(5), Waits(5)]), Some(2));
        assert_eq!(next(&[Waits(0), Away]), Some(0));
        assert_eq!(next(&[Away, Granted]), None);
    }
}
