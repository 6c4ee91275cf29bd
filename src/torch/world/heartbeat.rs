//! The thread that sends this process's heartbeat, checks that of the next rank and whether
//! processes of this host have ended, and reports to the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::Places;
use super::keys;
use super::lost::{End, Lost};
use super::watch::{Call, Orders, Watch};
use super::watcher::{BEGINNING, SOON, silent, with};
use crate::{Store, TorchError};

/// State of the heartbeat thread.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) store: Store,
    pub(super) places: Arc<Places>,
    /// The process that serves the store, to blame when the store is gone.
    pub(super) server: Lost,
    pub(super) patience: Duration,
}

/// The heartbeat count of the next rank, and since when it has not changed.
#[derive(Debug)]
struct Pulse {
    number: i64,
    since: Instant,
    looked: Instant,
    /// Call of this process at the last check.
    call: Option<Call>,
    /// State of its comparison with the next rank.
    known: Known,
}

/// State of the comparison of a long call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The store has its name.
    Said,
    /// The next rank is in the same call.
    Same,
}

impl Beat {
    /// Runs until the world has ended, or the process leaves it.
    pub(super) fn run(&self, watch: &Watch) {
        if let Err(error) = self.until_the_end(watch) {
            watch.broken(with(&self.server, &keys::said(&error)));
        }
    }

    fn until_the_end(&self, watch: &Watch) -> Result<(), TorchError> {
        let often = self.often();
        let now = Instant::now();
        let mut pulse = Pulse {
            number: 0,
            since: now,
            looked: now,
            call: None,
            known: Known::Nothing,
        };
        loop {
            let patience = self.look(watch, &mut pulse)?;
            self.look_beside(watch)?;
            self.compare_calls(watch, &mut pulse)?;
            // At the latest when the patience ends.
            let left = (patience + SOON).saturating_sub(pulse.since.elapsed());
            let orders = watch.orders(left.min(often));
            self.obey(watch, &orders)?;
            if orders.close {
                return self.store.set(&keys::farewell(self.places.rank), b"");
            }
        }
    }

    /// Returns the interval between heartbeats: longer with many processes, as one store answers
    /// all of them.
    fn often(&self) -> Duration {
        let by_size = Duration::from_millis(self.size() as u64);
        let often = by_size.clamp(Duration::from_millis(100), Duration::from_millis(500));
        often.min(self.patience / 10)
    }

    /// Increments this process's count, and checks that of the next rank. *Returns* how long that
    /// rank may be silent.
    fn look(&self, watch: &Watch, pulse: &mut Pulse) -> Result<Duration, TorchError> {
        self.store.add(&keys::beat(self.places.rank), 1)?;
        let next = self.next();
        let number = self.store.add(&keys::beat(next), 0)?;
        watch.answered();
        let now = Instant::now();
        // After being stopped for a while, this process knows nothing of the time between.
        let was_stopped = now - pulse.looked > self.patience / 2;
        if number != pulse.number || was_stopped {
            pulse.since = now;
        }
        (pulse.number, pulse.looked) = (number, now);
        // Until its first heartbeat the next rank is still starting.
        let patience = match number {
            0 => self.patience.max(BEGINNING),
            _ => self.patience,
        };
        if now - pulse.since > patience {
            let seconds = patience.as_secs_f64();
            let why = format!(
                "no sign of life for {seconds} s: it is stopped, hangs, or its host is cut off"
            );
            let gone = self.places.gone(next, String::new());
            self.say(watch, watch.generation(), &silent(&gone, &why))?;
            pulse.since = now;
        }
        Ok(patience)
    }

    /// Reports ended processes of this host. A process that waits for their message notices at
    /// once; one that waits for the store ([control](super::control)) would notice only by their
    /// silence.
    fn look_beside(&self, watch: &Watch) -> Result<(), TorchError> {
        let Some(rank) = watch.ended() else {
            return Ok(());
        };
        let gone = self.places.gone(rank, "its process has ended".to_owned());
        self.say(watch, watch.generation(), &gone)
    }

    fn size(&self) -> usize {
        self.places.hosts.len()
    }

    fn next(&self) -> usize {
        (self.places.rank + 1) % self.size()
    }

    /// Publishes the name of a call that lasts: not all processes may be in it, and then it never
    /// ends. The previous rank compares it.
    fn compare_calls(&self, watch: &Watch, pulse: &mut Pulse) -> Result<(), TorchError> {
        let Some(call) = watch.call() else {
            return Ok(());
        };
        if pulse.call.as_ref() != Some(&call) {
            (pulse.call, pulse.known) = (Some(call), Known::Nothing);
            return Ok(());
        }
        if pulse.known == Known::Nothing {
            self.store
                .set(&keys::call(self.places.rank), &written(&call))?;
            pulse.known = Known::Said;
        }
        let (rank, next) = (self.places.rank, self.next());
        let key = keys::call(next);
        if pulse.known == Known::Same || !self.store.has(std::slice::from_ref(&key))? {
            return Ok(());
        }
        let theirs = self.store.get(&key)?;
        let Some(other) = name_of(&call, &theirs) else {
            return Ok(());
        };
        if other == &*call.name {
            pulse.known = Known::Same;
            return Ok(());
        }
        let lost = Lost {
            gone: false,
            at: call.at,
            ..self
                .places
                .gone(rank, other_call((rank, &call.name), (next, other)))
        };
        self.say(watch, call.generation, &lost)
    }

    fn obey(&self, watch: &Watch, orders: &Orders) -> Result<(), TorchError> {
        let generation = orders.generation;
        if let Some(lost) = &orders.abort {
            self.say(watch, generation, lost)?;
        } else if orders.leave {
            let done = self.store.add(&keys::done(generation), 1)?;
            if done == self.size() as i64 {
                let key = keys::end(generation);
                let end = self.store.set_first(&key, &End::Left.written())?;
                watch.end(generation, End::read(&end));
            }
        }
        Ok(())
    }

    /// Sets the end of the generation, unless it has one. A loss after a failure ends the next
    /// generation.
    fn say(&self, watch: &Watch, generation: u64, lost: &Lost) -> Result<(), TorchError> {
        let own = End::Lost(lost.clone()).written();
        for generation in generation.. {
            let end = End::read(&self.store.set_first(&keys::end(generation), &own)?);
            let is_final = end.is_final();
            watch.end(generation, end);
            if is_final || !lost.gone {
                break;
            }
        }
        Ok(())
    }
}

/// Formats a call for the store: generation and number, a space, the name.
fn written(call: &Call) -> Vec<u8> {
    format!("{} {}", place(call), call.name).into_bytes()
}

/// Returns the name of the same call as written by another rank; `None` if that rank is in another
/// call.
fn name_of<'a>(call: &Call, written: &'a [u8]) -> Option<&'a str> {
    let (at, name) = std::str::from_utf8(written).ok()?.split_once(' ')?;
    (at == place(call)).then_some(name)
}

fn place(call: &Call) -> String {
    format!("{}/{}", call.generation, call.number)
}

/// Message for two ranks that do not make the same call.
pub(super) fn other_call((rank, own): (usize, &str), (other, theirs): (usize, &str)) -> String {
    format!(
        "rank {other} calls {theirs} where rank {rank} calls {own}: all processes of a pipeline make \
         the same calls, in the same order, with batches of the same size and the same settings"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_the_same_call() {
        let call = |number, name: &str| Call {
            generation: 3,
            number,
            at: 0,
            name: name.into(),
        };
        let (own, other) = (call(7, "zero_grad"), call(7, "a step of 8 samples"));
        assert_eq!(name_of(&own, &written(&other)), Some("a step of 8 samples"));
        assert_eq!(name_of(&own, &written(&call(6, "a step"))), None);
        assert_eq!(name_of(&own, b"\xff"), None);
    }
}
