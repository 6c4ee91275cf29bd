//! Forms of tensors: element type, sizes and strides.

use tch::Kind;

use super::error::{Result, damaged, unsupported};
use super::schema::{SymInt, TensorMeta};
use super::weights::kind_of;

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
