//! Forms of tensors: element type, sizes and strides.

use tch::Kind;

use super::error::{Result, damaged, unsupported};
use super::schema::{SymInt, TensorMeta};

/// Element types: their numbers in PyTorch's files and in libtorch.
const KINDS: &[(u64, i64, Kind)] = &[
    (1, 0, Kind::Uint8),
    (2, 1, Kind::Int8),
    (3, 2, Kind::Int16),
    (4, 3, Kind::Int),
    (5, 4, Kind::Int64),
    (6, 5, Kind::Half),
    (7, 6, Kind::Float),
    (8, 7, Kind::Double),
    (10, 9, Kind::ComplexFloat),
    (11, 10, Kind::ComplexDouble),
    (12, 11, Kind::Bool),
    (13, 15, Kind::BFloat16),
];

/// Returns the type of a number in PyTorch's files.
pub(super) fn kind(number: u64) -> Option<Kind> {
    Some(KINDS.iter().find(|own| own.0 == number)?.2)
}

/// Returns libtorch's number of the type with this number in PyTorch's files.
pub(super) fn number_in_libtorch(number: u64) -> Option<i64> {
    Some(KINDS.iter().find(|own| own.0 == number)?.1)
}

/// Returns the element type of a tensor; `name` is for errors.
pub(super) fn kind_of(meta: &TensorMeta, name: &str) -> Result<Kind> {
    if meta.layout != 7 {
        return Err(unsupported(
            place(name),
            "is sparse: only strided tensors are taken",
        ));
    }
    kind(meta.dtype).ok_or_else(|| {
        let what = format!("has the type {}, which is not known", meta.dtype);
        unsupported(place(name), what)
    })
}

/// The form of a tensor with fixed sizes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Form {
    pub(super) kind: Kind,
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

impl Form {
    /// Reads the form of the tensor `name`.
    ///
    /// # Errors
    /// Sizes or strides are dynamic, or the type is unknown.
    pub(super) fn of(meta: &TensorMeta, name: &str) -> Result<Self> {
        let numbers = |all: &[SymInt]| all.iter().map(SymInt::fixed).collect::<Option<Vec<_>>>();
        let (Some(sizes), Some(strides)) = (numbers(&meta.sizes), numbers(&meta.strides)) else {
            return Err(unsupported(place(name), "has sizes that are not fixed"));
        };
        Ok(Self {
            kind: kind_of(meta, name)?,
            sizes,
            strides,
        })
    }

    /// Checks that the tensor `name` in the archive has this form, from the program: some kernels of
    /// libtorch do not check sizes.
    ///
    /// # Errors
    /// The tensor has another form.
    pub(super) fn check(&self, stored: &Self, name: &str) -> Result<()> {
        let why = if stored.sizes != self.sizes {
            format!(
                "has sizes {:?}, the program says {:?}",
                stored.sizes, self.sizes
            )
        } else if stored.kind != self.kind {
            format!(
                "has elements of kind {:?}, the program says {:?}",
                stored.kind, self.kind
            )
        } else if stored.steps().ne(self.steps()) {
            format!(
                "has strides {:?}, the program says {:?}",
                stored.strides, self.strides
            )
        } else {
            return Ok(());
        };
        Err(damaged(place(name), why))
    }

    /// Whether no two elements overlap in memory, for sizes and strides whose products fit: each stride
    /// exceeds the extent of all smaller ones.
    pub(super) fn is_apart(&self) -> bool {
        let mut dimensions: Vec<_> = self.sizes.iter().zip(&self.strides).collect();
        dimensions.sort_by_key(|(_, stride)| **stride);
        let mut reached = 0;
        dimensions.into_iter().all(|(size, stride)| {
            let is_beyond = *size <= 1 || *stride > reached;
            reached += (size - 1).max(0) * stride;
            is_beyond
        })
    }

    /// Returns the strides of dimensions with more than one element.
    fn steps(&self) -> impl Iterator<Item = i64> {
        let all = self.sizes.iter().zip(&self.strides);
        all.filter(|(size, _)| **size > 1)
            .map(|(_, stride)| *stride)
    }
}

/// Names the tensor for errors.
pub(super) fn place(name: &str) -> String {
    format!("the tensor `{name}`")
}
