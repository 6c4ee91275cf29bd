//! Arrays of inputs and of targets: safetensors, NumPy's files, IDX.

use tch::{Kind, Tensor};

use super::found::{Found, Labels};
use super::scaling::Usual;
use super::{SampleOptions, labels};
use crate::{Array, DataError, Dataset, Idx, Source};

/// Number of targets examined at a time.
pub(super) const BLOCK: usize = 1 << 14;

/// An array with items of one shape.
pub(super) trait Numbers: Source<Item = Tensor> {
    fn shape(&self) -> &[i64];
    fn kind(&self) -> Kind;
    /// Returns consecutive items.
    fn block(&self, range: std::ops::Range<usize>) -> Result<Tensor, DataError>;
}

impl Numbers for Array {
    fn shape(&self) -> &[i64] {
        self.shape()
    }

    fn kind(&self) -> Kind {
        self.kind()
    }

    fn block(&self, range: std::ops::Range<usize>) -> Result<Tensor, DataError> {
        self.items(range)
    }
}

impl Numbers for Idx {
    fn shape(&self) -> &[i64] {
        self.shape()
    }

    fn kind(&self) -> Kind {
        self.kind()
    }

    fn block(&self, range: std::ops::Range<usize>) -> Result<Tensor, DataError> {
        let items = range.map(|index| self.get(0, index));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::f_stack(&items, 0)?)
    }
}

/// Makes samples of inputs and targets, and of a test part.
pub(super) fn found<A: Numbers>(
    [x, y]: [A; 2],
    test: Option<[A; 2]>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let (input, target) = (x.shape()[1..].to_vec(), y.shape()[1..].to_vec());
    if let Some([other, _]) = &test
        && other.shape()[1..] != input[..]
    {
        return Err(DataError::Settings(format!(
            "inputs have the shape {input:?}, but those of the test part {:?}",
            &other.shape()[1..]
        )));
    }
    let usual = match x.kind() {
        Kind::Uint8 if !options.integers => Usual::Bytes,
        _ => Usual::Plain,
    };
    let labels = if options.classes {
        let blocks = || {
            let all = std::iter::once(&y).chain(test.iter().map(|[_, y]| y));
            all.flat_map(|own| {
                let starts = (0..own.len()).step_by(BLOCK);
                starts.map(move |start| {
                    let targets = own.block(start..own.len().min(start + BLOCK))?;
                    Ok((targets, move |index| own.place(0, start + index)))
                })
            })
        };
        // A single label per sample is read quickly; the labels of all pixels are not.
        let range = match target.iter().product::<i64>() {
            1 => labels::check(options, blocks())?,
            _ => None,
        };
        let counted = labels::counted(options, blocks())?;
        let only = range.filter(|(least, largest)| least == largest);
        Labels::Counted(labels::Counted {
            only: counted.only.or(only.map(|(least, _)| least)),
            ..counted
        })
    } else {
        Labels::Numbers
    };
    // Bytes cannot hold the usual ignored number.
    let may_ignore = y.kind() != Kind::Uint8 || options.ignored >= 0;
    let pair = |[x, y]: [A; 2]| Dataset::new(x).zip(Dataset::new(y));
    let test = test.map(pair).transpose()?;
    Ok(Found {
        input,
        target,
        labels,
        usual,
        may_ignore,
        ..Found::new(pair([x, y])?, test)
    })
}
