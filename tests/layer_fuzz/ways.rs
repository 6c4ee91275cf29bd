//! Paths by which values leave a layer in the plain loop.

use std::ops::Range;

use anyhow::Result;
use gpipe::tch::{self, Tensor};

use crate::layer::Body;

/// A value at the time of its stash.
pub(crate) struct Stash {
    pub(crate) name: String,
    value: Option<Tensor>,
    before: Option<Tensor>,
    /// A copy in the graph at the place of the stash.
    copy: Option<Tensor>,
}

impl Stash {
    pub(crate) fn new(name: &str, value: Option<&Tensor>) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            value: value.map(Tensor::shallow_clone),
            before: value.map(|v| tch::no_grad(|| snapshot(v))).transpose()?,
            copy: value.map(snapshot).transpose()?,
        })
    }

    /// The snapshot on a separate path. The path begins at the layer's end, after all of its operations; if
    /// the value has changed since, after a copy.
    pub(crate) fn way(&self) -> Result<Option<Tensor>> {
        let (Some(value), Some(before), Some(copy)) = (&self.value, &self.before, &self.copy)
        else {
            return Ok(None);
        };
        let changed = !value.detach().equal(before);
        Ok(Some(on_way(before, if changed { copy } else { value })?))
    }
}

/// A copy of these numbers, with the gradient path of `value`, which has the same numbers.
fn on_way(numbers: &Tensor, value: &Tensor) -> Result<Tensor> {
    let mut copy = tch::no_grad(|| strided(&core(numbers)?))?;
    if value.requires_grad() {
        let core = core(value)?;
        let nothing = core.f_sub(&core.f_detach()?)?;
        let _ = copy.f_add_(&nothing)?;
    }
    spread(copy, value)
}

/// A copy with the same strides, so that kernels treat it like the original. Overlapping elements overlap in
/// the copy.
pub(crate) fn snapshot(value: &Tensor) -> Result<Tensor> {
    spread(strided(&core(value)?)?, value)
}

fn strided(value: &Tensor) -> Result<Tensor> {
    let options = (value.kind(), value.device());
    let mut copy = Tensor::f_empty_strided(value.size(), value.stride(), options)?;
    copy.f_copy_(value)?;
    Ok(copy)
}

fn spread(core: Tensor, like: &Tensor) -> Result<Tensor> {
    if core.size() == like.size() {
        return Ok(core);
    }
    Ok(core.f_expand(like.size(), false)?)
}

/// The value with overlapping dimensions reduced to one element.
fn core(value: &Tensor) -> Result<Tensor> {
    let mut core = value.shallow_clone();
    for (dim, stride) in value.stride().into_iter().enumerate() {
        if stride == 0 && core.size()[dim] > 1 {
            core = core.f_narrow(dim as i64, 0, 1)?;
        }
    }
    Ok(core)
}

/// Puts each value on a separate path; gradients of paths that begin last are added first.
pub(crate) fn apart(values: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
    let reversed = values.into_iter().rev();
    let ways = reversed.map(|value| value.map(|value| value.f_alias()).transpose());
    let mut ways: Vec<_> = ways.collect::<Result<_, _>>()?;
    ways.reverse();
    Ok(ways)
}

/// Whether some of the values may share their memory.
pub(crate) fn share(values: &[Option<Tensor>]) -> bool {
    let memory = |value: &Tensor| {
        let extents = value.size().into_iter().zip(value.stride());
        let last: i64 = extents
            .map(|(size, stride)| (size - 1).max(0) * stride)
            .sum();
        let begin = value.data_ptr() as usize;
        begin..begin + (last as usize + 1) * value.kind().elt_size_in_bytes()
    };
    let all: Vec<_> = values.iter().flatten().map(memory).collect();
    let overlap = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
    (1..all.len()).any(|i| all[..i].iter().any(|other| overlap(other, &all[i])))
}

/// A layer returns copies of its own tensors. Several parts of one tensor become parts of one copy.
pub(crate) fn not_owned(values: Vec<Option<Tensor>>, body: &Body) -> Result<Vec<Option<Tensor>>> {
    let mut values = values;
    for (_, own) in body.owned() {
        let size = own.kind().elt_size_in_bytes();
        let begin = own.data_ptr() as usize;
        let memory = begin..begin + own.numel() * size;
        let lies_in = |value: &&mut Tensor| memory.contains(&(value.data_ptr() as usize));
        let mut parts: Vec<_> = values.iter_mut().flatten().filter(lies_in).collect();
        if let [part] = parts.as_mut_slice() {
            **part = snapshot(part)?;
            continue;
        }
        let copy = own.copy();
        let frozen = copy.detach();
        for part in parts {
            let copy = if part.requires_grad() { &copy } else { &frozen };
            let offset = (part.data_ptr() as usize - begin) / size;
            *part = copy.f_as_strided(part.size(), part.stride(), offset as i64)?;
        }
    }
    Ok(values)
}
