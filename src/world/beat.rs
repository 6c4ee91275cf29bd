//! The thread that gives this process's signs of life, looks for those of the next rank, and
//! says to the store what is to be said.

use std::time::{Duration, Instant};

use super::keys;
use super::lost::{End, Lost};
use super::watch::{Orders, Watch};
use super::watcher::with;
use crate::torch::{Store, TorchError};

/// A process has at least so long between the meeting of all and its first sign of life: its
/// connections are made then, which takes a while where many processes begin on few cores.
const BEGINNING: Duration = Duration::from_secs(10);

/// What the thread needs to know.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) store: Store,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The next rank, as it is called when it is silent.
    pub(super) next: Lost,
    /// The one who serves the store, as it is called when the store is gone.
    pub(super) server: Lost,
    pub(super) patience: Duration,
}

/// The number of the next rank, and since when it has been the same.
#[derive(Debug)]
struct Pulse {
    number: i64,
    since: Instant,
    looked: Instant,
}

impl Beat {
    /// Until the world has ended, or the process leaves it.
    pub(super) fn run(&self, watch: &Watch) {
        if let Err(error) = self.until_the_end(watch) {
            watch.broken(with(&self.server, &keys::said(&error)));
        }
    }

    fn until_the_end(&self, watch: &Watch) -> Result<(), TorchError> {
        let often = (self.patience / 10).min(Duration::from_millis(500));
        let now = Instant::now();
        let mut pulse = Pulse {
            number: 0,
            since: now,
            looked: now,
        };
        loop {
            self.look(watch, &mut pulse)?;
            let orders = watch.orders(often);
            self.obey(watch, &orders)?;
            if orders.close {
                return self.store.set(&keys::farewell(self.rank), b"");
            }
        }
    }

    /// Counts up the own number, and looks at the other one.
    fn look(&self, watch: &Watch, pulse: &mut Pulse) -> Result<(), TorchError> {
        self.store.add(&keys::beat(self.rank), 1)?;
        let next = (self.rank + 1) % self.size;
        let number = self.store.add(&keys::beat(next), 0)?;
        watch.answered();
        let now = Instant::now();
        // Who was stopped for a while knows nothing of the time between.
        let was_stopped = now - pulse.looked > self.patience / 2;
        if number != pulse.number || was_stopped {
            pulse.since = now;
        }
        (pulse.number, pulse.looked) = (number, now);
        // Until its first sign the next rank is still about to begin.
        let patience = match number {
            0 => self.patience.max(BEGINNING),
            _ => self.patience,
        };
        if now - pulse.since > patience {
            let seconds = patience.as_secs_f64();
            let why = format!(
                "no sign of life for {seconds} s: it is stopped, hangs, or its host is cut off"
            );
            self.say(watch, watch.generation(), &with(&self.next, &why))?;
            pulse.since = now;
        }
        Ok(())
    }

    fn obey(&self, watch: &Watch, orders: &Orders) -> Result<(), TorchError> {
        let generation = orders.generation;
        if let Some(lost) = &orders.abort {
            self.say(watch, generation, lost)?;
        } else if orders.leave {
            let done = self.store.add(&keys::done(generation), 1)?;
            if done == self.size as i64 {
                let key = keys::end(generation);
                let end = self.store.set_first(&key, &End::Left.written())?;
                watch.end(generation, End::read(&end));
            }
        }
        Ok(())
    }

    /// Sets the end of the generation, unless it has one. A loss that comes after a failure is
    /// the end of the next generation.
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
