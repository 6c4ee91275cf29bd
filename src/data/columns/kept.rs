//! A cache of recently decoded units, shared by all workers.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::unit::Unit;
use crate::DataError;

/// Approximate limit of cached bytes; two units are kept regardless of size.
const BYTES: u64 = 1 << 28;

/// A unit, its error, or `None` before decoding.
type Slot = Arc<Mutex<Option<Result<Unit, String>>>>;

/// A unit with its index and size.
#[derive(Debug)]
struct Entry {
    unit: usize,
    slot: Slot,
    bytes: u64,
}

/// The most recently used units. The first thread to request a unit decodes it, and others wait.
#[derive(Debug, Default)]
pub(super) struct Kept {
    recent: Mutex<VecDeque<Entry>>,
}

impl Kept {
    /// Returns a unit, decoded by `decode` unless it is cached. If another thread is decoding it, the
    /// next unit is decoded meanwhile, as sequential reads need it soon.
    ///
    /// # Errors
    /// The file cannot be read, or the unit is damaged.
    pub(super) fn get(
        &self,
        unit: usize,
        units: usize,
        decode: impl Fn(usize) -> Result<Result<Unit, String>, DataError>,
    ) -> Result<Result<Unit, String>, DataError> {
        let slot = self.slot(unit);
        if let Some(mut own) = slot.try_lock() {
            return self.fill(unit, &mut own, &decode);
        }
        if unit + 1 < units {
            let next = self.slot(unit + 1);
            if let Some(mut next) = next.try_lock() {
                // An error is reported when that unit is requested.
                let _ = self.fill(unit + 1, &mut next, &decode);
            }
        }
        let mut own = slot.lock();
        self.fill(unit, &mut own, &decode)
    }

    fn fill(
        &self,
        unit: usize,
        slot: &mut Option<Result<Unit, String>>,
        decode: impl Fn(usize) -> Result<Result<Unit, String>, DataError>,
    ) -> Result<Result<Unit, String>, DataError> {
        if let Some(there) = slot {
            return Ok(there.clone());
        }
        let decoded = decode(unit)?;
        *slot = Some(decoded.clone());
        self.shrink(unit, decoded.as_ref().map_or(0, |own| own.bytes));
        Ok(decoded)
    }

    fn slot(&self, unit: usize) -> Slot {
        let mut recent = self.recent.lock();
        let place = recent.iter().position(|own| own.unit == unit);
        let entry = place.and_then(|place| recent.remove(place));
        let entry = entry.unwrap_or_else(|| Entry {
            unit,
            slot: Slot::default(),
            bytes: 0,
        });
        let slot = Arc::clone(&entry.slot);
        recent.push_front(entry);
        slot
    }

    /// Records a unit's size, and evicts the least recently used ones.
    fn shrink(&self, unit: usize, bytes: u64) {
        let mut recent = self.recent.lock();
        if let Some(own) = recent.iter_mut().find(|own| own.unit == unit) {
            own.bytes = bytes;
        }
        let mut all: u64 = recent.iter().map(|own| own.bytes).sum();
        while all > BYTES && recent.len() > 2 {
            all -= recent.pop_back().map_or(0, |own| own.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn unit(bytes: u64) -> Unit {
        Unit {
            batches: Arc::new([]),
            each: 1,
            bytes,
        }
    }

    #[test]
    fn units_are_decoded_once_while_they_fit() {
        let (kept, decoded) = (Kept::default(), Cell::new(0));
        let get = |number, bytes| {
            let own = kept.get(number, 9, |_| {
                decoded.set(decoded.get() + 1);
                Ok(Ok(unit(bytes)))
            });
            own.unwrap().unwrap();
            decoded.get()
        };
        let small = [0, 1, 0, 1, 2, 0].map(|number| get(number, 10));
        assert_eq!(small, [1, 2, 2, 2, 3, 3]);
        // Two units are kept regardless of size; others are evicted.
        let large = [3, 4, 3, 4, 0, 4, 3].map(|number| get(number, 1 << 30));
        assert_eq!(large, [4, 5, 5, 5, 6, 6, 7]);
        assert!(kept.recent.lock().len() <= 2);
    }

    /// Damage is permanent; a failed read may succeed later.
    #[test]
    fn damage_is_kept_and_a_failed_read_is_not() {
        let (kept, asked) = (Kept::default(), Cell::new(0));
        let decode = |unit: usize| {
            asked.set(asked.get() + 1);
            match unit {
                0 => Ok(Err("damaged".to_owned())),
                _ => Err(DataError::Settings("gone".to_owned())),
            }
        };
        for _ in 0..3 {
            assert_eq!(kept.get(0, 2, decode).unwrap().unwrap_err(), "damaged");
        }
        assert_eq!(asked.get(), 1);
        for _ in 0..3 {
            assert!(kept.get(1, 2, decode).is_err());
        }
        assert_eq!(asked.get(), 4);
    }
}
