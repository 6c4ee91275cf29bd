//! The thread that waits in the store for the end of a generation, and the clock that ends one
//! where the store does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keys;
use super::lost::{End, Lost};
use super::watch::Watch;
use crate::torch::Store;

/// Longer than any run.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// A process has at least so long between the meeting of all and its first sign of life: its
/// connections are made then, which takes a while where many processes begin on few cores.
pub(super) const BEGINNING: Duration = Duration::from_secs(10);

/// What is looked at when a time is over is looked at a little later.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// Waits for the end of each generation in turn: also of those that this process has not begun,
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
    let said = |error: crate::torch::TorchError| keys::said(&error);
    if !store
        .wait(std::slice::from_ref(&key), FOREVER)
        .map_err(said)?
    {
        return Ok(None);
    }
    Ok(Some(End::read(&store.get(&key).map_err(said)?)))
}

/// Ends the generation where the store has been silent for longer than the patience: a thread
/// that asks it would wait for the answer.
pub(super) fn clock(watch: &Watch, server: &Lost, patience: Duration) {
    // Who asks it has to begin first.
    let patience_now = || {
        if watch.has_answered() {
            patience
        } else {
            patience.max(BEGINNING)
        }
    };
    let tick = patience / 10;
    let mut last = Instant::now();
    // Not later than the patience ends.
    let left = || (patience_now() + SOON).saturating_sub(watch.silence());
    while !watch.is_over_within(left().min(tick)) {
        // Somebody had stopped this process: that nothing was heard meanwhile says nothing.
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

/// Who is named since nothing is heard.
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
