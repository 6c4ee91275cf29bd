//! Tensors that layers exchange, within a stage and across stages.

use tch::Tensor;

use super::error::TorchError;
use super::ffi;

/// One or several tensors, some of them possibly absent, in a fixed order.
///
/// Most layers take and return a single tensor; [`Values::one`] and `From<Tensor>` are for them.
/// Tensors may be of any type and on any device.
#[derive(Debug, Default)]
pub struct Values(Vec<Option<Tensor>>);

impl Values {
    /// Makes a list without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of tensors, absent ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tensor at `index`; `None` where it is absent or past the end.
    pub fn get(&self, index: usize) -> Option<&Tensor> {
        self.0.get(index)?.as_ref()
    }

    /// The tensors in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&Tensor>> {
        self.0.iter().map(Option::as_ref)
    }

    /// The tensors that are present, in order.
    pub fn present(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter().flatten()
    }

    /// Appends a tensor, or an absent one.
    pub fn push(&mut self, value: Option<Tensor>) {
        self.0.push(value);
    }

    /// The only tensor.
    ///
    /// # Errors
    /// There is not exactly one, or it is absent.
    pub fn one(&self) -> anyhow::Result<&Tensor> {
        match self.0.as_slice() {
            [Some(tensor)] => Ok(tensor),
            [None] => anyhow::bail!("expected a tensor, but it is absent"),
            other => anyhow::bail!("expected one tensor, but there are {}", other.len()),
        }
    }

    /// The only tensor, by value.
    ///
    /// # Errors
    /// As [`Values::one`].
    pub fn into_one(mut self) -> anyhow::Result<Tensor> {
        self.one()?;
        // `one` has checked that the last element exists.
        self.0
            .pop()
            .flatten()
            .ok_or_else(|| anyhow::anyhow!("expected a tensor"))
    }

    /// The clone shares the tensors.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        self.iter()
            .map(|value| value.map(Tensor::shallow_clone))
            .collect()
    }

    /// Applies a function to each tensor that is present.
    ///
    /// # Errors
    /// The first error of the function.
    pub fn try_map<E>(self, mut f: impl FnMut(Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        self.0
            .into_iter()
            .map(|value| value.map(&mut f).transpose())
            .collect()
    }
}

impl Values {
    /// Moves values to other memory. Values that share memory are moved at once, as one tensor
    /// that holds all of it (their carrier), so that they share it there too.
    pub(crate) fn try_move<E: From<TorchError>>(
        self,
        mut f: impl FnMut(Tensor) -> Result<Tensor, E>,
    ) -> Result<Self, E> {
        let Some(first) = ffi::aliases(self.iter())? else {
            return self.try_map(f);
        };
        let mut moved: Vec<Option<Tensor>> = self.0.iter().map(|_| None).collect();
        for (index, value) in self.iter().enumerate() {
            let Some(value) = value.filter(|_| first[index] == index) else {
                continue;
            };
            let of_group = |other: &usize| first[*other] == index;
            let group: Vec<usize> = (0..first.len()).filter(of_group).collect();
            if group.len() == 1 {
                moved[index] = Some(f(value.shallow_clone())?);
                continue;
            }
            let members = group.iter().filter_map(|member| self.get(*member));
            let members: Vec<Tensor> = members.map(Tensor::shallow_clone).collect();
            let carrier = ffi::carrier(&members)?;
            let there = f(hand_over(&carrier)?)?;
            for (member, part) in group.iter().zip(ffi::parts(&there, &carrier, &members)?) {
                moved[*member] = part;
            }
        }
        Ok(Self(moved))
    }

    /// Returns whether some of them share memory.
    pub(crate) fn share_memory(&self) -> Result<bool, TorchError> {
        Ok(ffi::aliases(self.iter())?.is_some())
    }
}

/// A tensor as it crosses a border between graphs: detached from the graph that made it, and
/// requiring a gradient if that graph can take one. Layers on the other side then see it as in
/// the uncut model (libtorch chooses kernels by `requires_grad`), and no gradient is computed
/// that is not used.
#[doc(alias = "detach")]
pub(crate) fn hand_over(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let over = tensor.f_detach()?;
    if tensor.requires_grad() {
        return Ok(over.f_set_requires_grad(true)?);
    }
    Ok(over)
}

impl FromIterator<Option<Tensor>> for Values {
    fn from_iter<I: IntoIterator<Item = Option<Tensor>>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl FromIterator<Tensor> for Values {
    fn from_iter<I: IntoIterator<Item = Tensor>>(values: I) -> Self {
        values.into_iter().map(Some).collect()
    }
}

impl IntoIterator for Values {
    type Item = Option<Tensor>;
    type IntoIter = std::vec::IntoIter<Option<Tensor>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl From<Tensor> for Values {
    fn from(tensor: Tensor) -> Self {
        Self(vec![Some(tensor)])
    }
}

impl From<&Tensor> for Values {
    fn from(tensor: &Tensor) -> Self {
        tensor.shallow_clone().into()
    }
}

impl From<Vec<Tensor>> for Values {
    fn from(tensors: Vec<Tensor>) -> Self {
        tensors.into_iter().collect()
    }
}

impl From<&Values> for Values {
    fn from(values: &Values) -> Self {
        values.shallow_clone()
    }
}
