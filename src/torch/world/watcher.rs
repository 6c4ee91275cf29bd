//! The thread that waits in the store for the end of a generation, and the clock that ends one if
//! the store does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keys;
use super::lost::{End, Lost};
use super::watch::Watch;
use crate::Store;

/// Longer than any run.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// Least time between the meeting of all and the first heartbeat of a process: its connections are
/// made then, which takes a while if many processes start on few cores.
pub(super) const BEGINNING: Duration = Duration::from_secs(10);

/// Slack added to a deadline before it is checked.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// Waits for the end of each generation in turn, including those that this process has not begun,
/// in which another one may be lost.
pub(super) fn watch(watch: &Arc<Watch>, store: &Store, server: &Lost) {
    for generation in watch.generation().. {
        let end = loop {
            match end_of(store, generation) {
                Ok(Some(end)) => break end,
                Ok(None) => {}
                Err(why) => return watch.broken(with(server, &why)),
            }
        };
        let is_final = end.is_final();
        watch.end(generation, end);
        if is_final || watch.is_closing() {
            return;
        }
    }
}

fn end_of(store: &Store, generation: u64) -> Result<Option<End>, String> {
    let key = keys::end(generation);
    let said = |error: crate::TorchError| keys::said(&error);
    if !store
        .wait(std::slice::from_ref(&key), FOREVER)
        .map_err(said)?
    {
        return Ok(None);
    }
    Ok(Some(End::read(&store.get(&key).map_err(said)?)))
}

/// Ends the generation if the store has been silent for longer than the patience: a thread that
/// asks it would wait for the answer.
pub(super) fn clock(watch: &Watch, server: &Lost, patience: Duration) {
    // The thread that asks the store has to start first.
    let patience_now = || {
        if watch.has_answered() {
            patience
        } else {
            patience.max(BEGINNING)
        }
    };
    let tick = patience / 10;
    let mut last = Instant::now();
    // At the latest when the patience ends.
    let left = || (patience_now() + SOON).saturating_sub(watch.silence());
    while !watch.is_over_within(left().min(tick)) {
        // This process was stopped: the silence meanwhile means nothing.
        if last.elapsed() > patience / 2 {
            watch.listen_again();
        }
        last = Instant::now();
        let patience = patience_now();
        if watch.silence() > patience {
            let seconds = patience.as_secs_f64();
            let why = format!(
                "its store has not answered for {seconds} s: it hangs, or the network between is cut"
            );
            return watch.broken(silent(server, &why));
        }
    }
}

/// Marks a loss that only silence suggests.
pub(super) fn silent(who: &Lost, why: &str) -> Lost {
    Lost {
        silent: true,
        ..with(who, why)
    }
}

pub(super) fn with(server: &Lost, why: &str) -> Lost {
    Lost {
        why: why.to_owned(),
        ..server.clone()
    }
}
