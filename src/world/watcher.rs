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
    let tick = patience / 10;
    let mut last = Instant::now();
    while !watch.is_over_within(tick) {
        // Somebody had stopped this process: that nothing was heard meanwhile says nothing.
        if last.elapsed() > patience / 2 {
            watch.answered();
        }
        last = Instant::now();
        if watch.silence() > patience {
            let seconds = patience.as_secs_f64();
            let why = format!(
                "its store has not answered for {seconds} s: it hangs, or the network between is cut"
            );
            return watch.broken(with(server, &why));
        }
    }
}

pub(super) fn with(server: &Lost, why: &str) -> Lost {
    Lost {
        why: why.to_owned(),
        ..server.clone()
    }
}
