//! A pass over all items before loading.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::{DataError, Source};
use gpipe_torch::caught;
use gpipe_torch::threads::side_by_side;

/// Items that a thread takes at a time.
const SPAN: usize = 256;
/// Sources of more items are regarded as endless.
const ENDLESS: usize = 1 << 48;

/// Returns the results of `look` for all items of the first epoch, in order, computed on all cores. For
/// an item that cannot be made, `look` gets `None`: a loader reports or skips the item later.
///
/// # Errors
/// The source is endless, or `look` fails or panics; the error names the item.
pub(super) fn walk<S: Source, R: Send>(
    source: &S,
    what: &str,
    look: impl Fn(Option<S::Item>) -> anyhow::Result<R> + Sync,
) -> Result<Vec<R>, DataError> {
    let len = source.len();
    if len > ENDLESS {
        return Err(DataError::Settings(format!(
            "{} has no end, and {what} goes over all items first: put it before what makes them so \
             many, or take a `range`",
            source.identity()
        )));
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let failed = AtomicBool::new(false);
    let spans = (0..len.div_ceil(SPAN)).map(|span| span * SPAN..len.min((span + 1) * SPAN));
    let seen = side_by_side(spans, cores, |span| {
        if failed.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let seen = of_span(source, &span.collect::<Vec<_>>(), &look);
        failed.fetch_or(seen.is_err(), Ordering::Relaxed);
        seen
    });
    let mut all = Vec::with_capacity(len);
    for seen in seen {
        all.append(&mut seen?);
    }
    Ok(all)
}

fn of_span<S: Source, R>(
    source: &S,
    span: &[usize],
    look: &impl Fn(Option<S::Item>) -> anyhow::Result<R>,
) -> Result<Vec<R>, DataError> {
    let mut seen = Vec::with_capacity(span.len());
    while seen.len() < span.len() {
        let before = seen.len();
        let mut wrong = None;
        let made = caught(|| {
            let _ = source.batch(0, &span[before..], &mut |item| {
                match caught(|| look(item.ok())) {
                    Ok(own) => seen.push(own),
                    Err(error) => wrong = Some(error),
                }
                if wrong.is_some() || seen.len() == span.len() {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            Ok(())
        });
        // Making the item panicked, or it was not made.
        let open = wrong.is_none() && seen.len() < span.len();
        if open && (made.is_err() || seen.len() == before) {
            match caught(|| look(None)) {
                Ok(own) => seen.push(own),
                Err(error) => wrong = Some(error),
            }
        }
        if let Some(error) = wrong {
            return Err(DataError::Item {
                place: source.place(0, span[seen.len()]),
                source: error,
            });
        }
    }
    Ok(seen)
}
