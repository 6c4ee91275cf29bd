//! Numbers that models, which compute in single precision, do not tell apart.

use tch::{Kind, Tensor};

use super::scaling::{Scaling, is_single};
use crate::DataError;

/// Samples that are looked at, the first ones: of rows in the order of time neighbours are the closest.
const ROWS: usize = 1 << 10;
/// Numbers of them, at most.
const NUMBERS: usize = 1 << 20;

/// A place of a sample at which values that differ become the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    /// Where it is in a row of all numbers of a sample.
    pub(super) place: usize,
    rows: usize,
    before: usize,
    after: usize,
}

impl Lost {
    /// What is said of it; `what` is the number that is meant, and `instead` how they stay different.
    pub(super) fn said(&self, what: &str, instead: &str) -> String {
        format!(
            "{what} has {} different values in {} samples, of which single precision, in which models compute, \
             leaves {}: {instead}",
            self.before, self.rows, self.after
        )
    }
}

/// The first place of samples, so many of which `get` gives, where more than a tenth of the different
/// values are lost to rounding once they are scaled; none also where one cannot be read, which is told when its
/// turn comes.
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

/// How many different numbers there are, before and after they were scaled.
fn distinct(mut numbers: Vec<(f64, f64)>) -> [usize; 2] {
    numbers.retain(|(number, _)| !number.is_nan());
    // Scaling does not change their order.
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
