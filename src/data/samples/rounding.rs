//! Finds numbers that become equal in single precision, in which models compute.

use tch::{Kind, Tensor};

use super::scaling::{Scaling, is_single};
use crate::DataError;

/// Number of samples checked, from the first: of rows in order of time, neighbours are the closest.
const ROWS: usize = 1 << 10;
/// Limit of numbers checked.
const NUMBERS: usize = 1 << 20;

/// A position in a sample where distinct values become equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    /// Index in the flattened sample.
    pub(super) place: usize,
    rows: usize,
    before: usize,
    after: usize,
}

impl Lost {
    /// Formats a note; `what` names the number, and `instead` the remedy.
    pub(super) fn said(&self, what: &str, instead: &str) -> String {
        format!(
            "{what} has {} different values in {} samples, of which single precision, in which models compute, \
             leaves {}: {instead}",
            self.before, self.rows, self.after
        )
    }
}

/// Returns the first position where more than a tenth of the distinct values are lost when scaled and
/// rounded; `get` returns samples. `None` also if a sample cannot be read, which is reported when it is
/// loaded.
pub(super) fn first(
    samples: usize,
    get: impl Fn(usize) -> Result<Tensor, DataError>,
    scaling: &Scaling,
) -> Option<Lost> {
    if samples == 0 || is_single(get(0).ok()?.kind()) {
        return None;
    }
    let flat = |x: &Tensor| Vec::<f64>::try_from(x.f_reshape([-1]).ok()?).ok();
    let mut columns: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut rows = samples.min(ROWS);
    let mut row = 0;
    while row < rows {
        let x = get(row).ok()?;
        let scaled = flat(&scaling.apply(&x, Kind::Float).ok()?)?;
        let both = flat(&x)?.into_iter().zip(scaled);
        columns.resize(both.len(), Vec::new());
        for (column, both) in columns.iter_mut().zip(both) {
            column.push(both);
        }
        rows = rows.min((NUMBERS / columns.len().max(1)).max(2));
        row += 1;
    }
    let mut places = columns.into_iter().enumerate();
    places.find_map(|(place, own)| {
        let [before, after] = distinct(own);
        (after * 10 < before * 9).then_some(Lost {
            place,
            rows,
            before,
            after,
        })
    })
}

/// Counts distinct numbers before and after scaling.
fn distinct(mut numbers: Vec<(f64, f64)>) -> [usize; 2] {
    numbers.retain(|(number, _)| !number.is_nan());
    // Scaling preserves their order.
    numbers.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let different = |of: fn(&(f64, f64)) -> f64| {
        let pairs = numbers.windows(2);
        let steps = pairs.filter(|two| of(&two[0]).total_cmp(&of(&two[1])).is_ne());
        usize::from(!numbers.is_empty()) + steps.count()
    };
    [different(|own| own.0), different(|own| own.1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(numbers: &[f64], scaling: &Scaling) -> Option<[usize; 2]> {
        let get = |row: usize| Ok(Tensor::from_slice(&[0.5, numbers[row]]));
        let lost = first(numbers.len(), get, scaling)?;
        assert_eq!((lost.place, lost.rows), (1, numbers.len()));
        Some([lost.before, lost.after])
    }

    #[test]
    fn values_that_rounding_makes_the_same_are_counted() {
        let times: Vec<f64> = (0..64).map(|n| f64::from(n) * 10.0 + 1.7e9).collect();
        assert_eq!(lost(&times, &Scaling::default()), Some([64, 6]));
        let small: Vec<f64> = (0..64).map(|n| f64::from(n) / 10.0).collect();
        assert_eq!(lost(&small, &Scaling::default()), None);
        assert_eq!(
            lost(&[0.3, 0.1 + 0.2, f64::NAN], &Scaling::default()),
            Some([2, 1])
        );
        let none = first(1, |_| Ok(Tensor::from_slice(&[1_i32])), &Scaling::default());
        assert_eq!(none, None);
    }
}
