//! How long a batch takes to come.

use gpipe_partitioner::Micros;

/// Batches that are let pass before any counts, as long as they take no longer than so many
/// seconds together: threads start, files come into the page cache, memory is asked for.
const WARM_UP: u32 = 8;
const WARM_UP_SECONDS: f64 = 1.0;
/// Batches that count, and the seconds after which no more do.
const COUNTED: u32 = 64;
const COUNTED_SECONDS: f64 = 1.0;
/// How many batches are taken at most.
pub(super) const BATCHES: usize = (WARM_UP + COUNTED) as usize;

/// The mean time between batches of `feed` once it is warm; `now` is the time in seconds. Where
/// there are too few batches to count any, that of those that there are.
pub(super) fn each<T>(
    mut feed: impl Iterator<Item = anyhow::Result<T>>,
    now: impl Fn() -> f64,
) -> anyhow::Result<Micros> {
    let warm_up = taken(&mut feed, &now, (WARM_UP, WARM_UP_SECONDS))?;
    let counted = taken(&mut feed, &now, (COUNTED, COUNTED_SECONDS))?;
    let (batches, seconds) = if counted.0 > 0 { counted } else { warm_up };
    Ok(Micros::new(seconds * 1e6 / f64::from(batches.max(1)))?)
}

/// Takes so many batches, or those that have begun within so many seconds; how many, and how long
/// they took.
fn taken<T>(
    feed: &mut impl Iterator<Item = anyhow::Result<T>>,
    now: &impl Fn() -> f64,
    (most, within): (u32, f64),
) -> anyhow::Result<(u32, f64)> {
    let (start, mut batches) = (now(), 0);
    while batches < most && now() - start < within {
        let Some(batch) = feed.next() else {
            break;
        };
        batch?;
        batches += 1;
    }
    Ok((batches, now() - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// What is told of batches that take these milliseconds.
    fn told(times: &[u32]) -> f64 {
        let clock = Cell::new(0.0);
        let feed = times.iter().map(|time| {
            clock.set(clock.get() + f64::from(*time) / 1e3);
            Ok(())
        });
        each(feed, || clock.get()).unwrap().get() / 1e3
    }

    /// The second batch of a cold loader counted, and was nearly all that did.
    #[test]
    fn cold_batches_do_not_count() {
        let cold = [900, 800, 10, 10, 10, 10];
        assert!((told(&cold) - 10.0).abs() < 1e-6, "{}", told(&cold));
        let mut long = vec![90; 8];
        long.extend([5; 64]);
        assert!((told(&long) - 5.0).abs() < 1e-6, "{}", told(&long));
    }

    #[test]
    fn what_is_slow_throughout_is_told_so() {
        assert!((told(&[3000, 3000, 3000]) - 3000.0).abs() < 1e-6);
        // All that there are.
        assert!((told(&[20, 10]) - 15.0).abs() < 1e-6);
    }

    #[test]
    fn a_batch_that_fails_is_an_error() {
        let feed = [Ok(()), Err(anyhow::anyhow!("torn"))].into_iter();
        assert!(each(feed, || 0.0).is_err());
    }
}
