//! Measures the time per batch.

use gpipe_partitioner::Micros;

/// Warm-up batches that are not counted, and the limit in seconds for all of them: threads start, files
/// enter the page cache, memory is allocated.
const WARM_UP: u32 = 8;
const WARM_UP_SECONDS: f64 = 1.0;
/// Counted batches, and the limit in seconds for all of them.
const COUNTED: u32 = 64;
const COUNTED_SECONDS: f64 = 1.0;
/// Upper bound of batches taken.
pub(super) const BATCHES: usize = (WARM_UP + COUNTED) as usize;

/// Returns the mean time between batches of a warm `feed`; `now` returns the time in seconds. With too
/// few batches to warm up, all of them count.
pub(super) fn each<T>(
    mut feed: impl Iterator<Item = anyhow::Result<T>>,
    now: impl Fn() -> f64,
) -> anyhow::Result<Micros> {
    let warm_up = taken(&mut feed, &now, (WARM_UP, WARM_UP_SECONDS))?;
    let counted = taken(&mut feed, &now, (COUNTED, COUNTED_SECONDS))?;
    let (batches, seconds) = if counted.0 > 0 { counted } else { warm_up };
    Ok(Micros::new(seconds * 1e6 / f64::from(batches.max(1)))?)
}

/// Takes up to this many batches, starting none after the time limit; returns their number and
/// duration.
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

    /// Returns the measured time for batches with these durations in milliseconds.
    fn told(times: &[u32]) -> f64 {
        let clock = Cell::new(0.0);
        let feed = times.iter().map(|time| {
            clock.set(clock.get() + f64::from(*time) / 1e3);
            Ok(())
        });
        each(feed, || clock.get()).unwrap().get() / 1e3
    }

    /// Once, the second batch of a cold loader counted for nearly the whole time.
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
        // All batches, as there are few.
        assert!((told(&[20, 10]) - 15.0).abs() < 1e-6);
    }

    #[test]
    fn a_batch_that_fails_is_an_error() {
        let feed = [Ok(()), Err(anyhow::anyhow!("torn"))].into_iter();
        assert!(each(feed, || 0.0).is_err());
    }
}
