//! Runs a layer's operations.

use anyhow::Result;
use gpipe::tch::{Kind, Tensor};

use crate::layer::{Body, Pass, WIDTH};
use crate::program::Op;

/// The values of a running layer.
pub(crate) struct Machine<'a, P> {
    values: Vec<Option<Tensor>>,
    pub(crate) body: &'a Body,
    pub(crate) pass: &'a P,
    stashed: Vec<usize>,
    popped: Vec<usize>,
}

impl<'a, P: Pass> Machine<'a, P> {
    pub(crate) fn new(values: Vec<Option<Tensor>>, body: &'a Body, pass: &'a P) -> Self {
        Self {
            values,
            body,
            pass,
            stashed: Vec::new(),
            popped: Vec::new(),
        }
    }

    pub(crate) fn outputs(&self, which: &[usize]) -> Vec<Option<Tensor>> {
        let mut outputs: Vec<_> = which.iter().map(|&nth| self.any(nth)).collect();
        // The first output can have a gradient, if any value can.
        if let Some(value) = which.first().and_then(|&nth| self.floating(nth)) {
            outputs[0] = Some(value);
        }
        self.pass.note(|| format!("  returns {}", shapes(&outputs)));
        outputs
    }

    /// The nth newest value that fits, wrapping around.
    fn nth(&self, nth: usize, fits: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
        let fitting: Vec<_> = self.values.iter().flatten().filter(|t| fits(t)).collect();
        let count = fitting.len();
        (count > 0).then(|| fitting[count - 1 - nth % count].shallow_clone())
    }

    fn any(&self, nth: usize) -> Option<Tensor> {
        let place = self.values.len() - 1 - nth % self.values.len();
        self.values[place].as_ref().map(Tensor::shallow_clone)
    }

    /// A floating value with at least one dimension.
    pub(crate) fn floating(&self, nth: usize) -> Option<Tensor> {
        self.nth(nth, |t| t.is_floating_point() && t.dim() > 0)
    }

    pub(crate) fn other(&self, nth: usize) -> Option<Tensor> {
        self.nth(nth, |t| !t.is_floating_point())
    }

    /// Runs one operation, if its operands exist.
    pub(crate) fn run(&mut self, op: Op) -> Result<()> {
        let before = self.values.len();
        let _ = match op {
            Op::Absent
            | Op::SometimesAbsent(_)
            | Op::Weight
            | Op::Stash { .. }
            | Op::Pop { .. } => self.apart(op)?,
            _ if op.is_in_place() => self.in_place(op)?,
            _ => match self.view(op)? {
                Some(views) => self.push(views),
                None => match self.fresh(op)? {
                    Some(value) => self.push(vec![value]),
                    None => None,
                },
            },
        };
        let made = &self.values[before..];
        self.pass.note(|| format!("  {op:?} {}", shapes(made)));
        Ok(())
    }

    #[allow(
        clippy::unnecessary_wraps,
        reason = "for use as the last word of an operation"
    )]
    fn push(&mut self, values: Vec<Tensor>) -> Option<()> {
        self.values.extend(values.into_iter().map(Some));
        Some(())
    }

    /// Runs operations on absent values, parameters and skips.
    fn apart(&mut self, op: Op) -> Result<Option<()>> {
        match op {
            Op::Weight => self.values.push(Some(self.body.own("weight"))),
            Op::SometimesAbsent(of) if self.pass.micro().is_multiple_of(2) => {
                self.values.push(self.any(of));
            }
            Op::Stash { name, of } => {
                if self.body.plan.stashes.contains(&name) && !self.stashed.contains(&name) {
                    self.stashed.push(name);
                    let value = self.any(of);
                    self.pass.stash(skip(name), value.as_ref())?;
                }
            }
            Op::Pop { name } => {
                if self.body.plan.pops.contains(&name) && !self.popped.contains(&name) {
                    self.popped.push(name);
                    let value = self.pass.pop(skip(name))?;
                    self.values.push(value);
                }
            }
            _ => self.values.push(None),
        }
        Ok(Some(()))
    }

    fn view(&self, op: Op) -> Result<Option<Vec<Tensor>>> {
        let views = match op {
            Op::Same(of) => self.floating(of).map(|x| vec![x]),
            Op::Narrow {
                of,
                dim,
                start,
                len,
            } => match self.along(of, dim) {
                Some((x, dim, size)) => {
                    let start = start as i64 % size;
                    let len = 1 + len as i64 % (size - start);
                    Some(vec![x.f_narrow(dim, start, len)?])
                }
                None => None,
            },
            Op::Select { of, dim, index } => match self.along(of, dim) {
                Some((x, dim, size)) => Some(vec![x.f_select(dim, index as i64 % size)?]),
                None => None,
            },
            Op::EveryOther { of, dim } => match self.along(of, dim) {
                Some((x, dim, _)) => Some(vec![x.f_slice(dim, None, None, 2)?]),
                None => None,
            },
            Op::Halves { of, dim } => match self.along(of, dim) {
                Some((x, dim, _)) => Some(x.f_chunk(2, dim)?),
                None => None,
            },
            Op::Strided(of) => match self.along(of, 0) {
                Some((x, _, size)) => {
                    let (mut sizes, mut strides) = (x.size(), x.stride());
                    sizes[0] = (size + 1) / 2;
                    strides[0] *= 2;
                    Some(vec![x.f_as_strided(&sizes, &strides, None)?])
                }
                None => None,
            },
            Op::Transpose(of) => match self.floating(of).filter(|x| x.dim() > 1) {
                Some(x) => Some(vec![x.f_transpose(0, 1)?]),
                None => None,
            },
            Op::Flatten(of) => match self.floating(of) {
                Some(x) => Some(vec![x.f_reshape([-1])?]),
                None => None,
            },
            Op::Pairs(of) => match self
                .floating(of)
                .filter(|x| last(x) % 2 == 0 && x.dim() < 4)
            {
                Some(x) => {
                    let mut sizes = x.size();
                    let width = sizes.pop().unwrap_or(0);
                    sizes.extend([width / 2, 2]);
                    Some(vec![x.f_reshape(&sizes)?])
                }
                None => None,
            },
            Op::Expand(of) => match self.floating(of).filter(|x| x.dim() < 4) {
                Some(x) => {
                    let mut sizes = x.size();
                    sizes.insert(1, 2);
                    Some(vec![x.f_unsqueeze(1)?.f_expand(&sizes, false)?])
                }
                None => None,
            },
            Op::Detach(of) => match self.floating(of) {
                Some(x) => Some(vec![x.f_detach()?]),
                None => None,
            },
            _ => None,
        };
        Ok(views)
    }

    /// A value, one of its non-empty dimensions, and its size.
    fn along(&self, of: usize, dim: usize) -> Option<(Tensor, i64, i64)> {
        let x = self.floating(of)?;
        let dim = dim % x.dim();
        let size = x.size()[dim];
        (size > 0).then_some((x, dim as i64, size))
    }

    fn fresh(&self, op: Op) -> Result<Option<Tensor>> {
        let (Op::Linear(of)
        | Op::Tanh(of)
        | Op::Sin(of)
        | Op::Relu(of)
        | Op::Halve(of)
        | Op::Softmax(of)
        | Op::Clone(of)
        | Op::Add(of, _)
        | Op::Times(of, _)
        | Op::Cat(of, _)
        | Op::Where(of, _)
        | Op::MeanOfLast(of)
        | Op::PositiveRows(of)
        | Op::PositiveOnes(of)
        | Op::TimesMicro(of)
        | Op::Ids(of)
        | Op::IsPositive(of)
        | Op::Center(of)
        | Op::CenterBefore(of)
        | Op::Count(of)
        | Op::SpectralNorm(of)) = op
        else {
            return self.of_other(op);
        };
        let Some(x) = self.floating(of) else {
            return Ok(None);
        };
        Ok(Some(match op {
            Op::Linear(_) => self.linear(&x)?,
            Op::Tanh(_) => x.f_tanh()?,
            Op::Sin(_) => x.f_sin()?,
            Op::Relu(_) => x.f_relu()?,
            Op::Halve(_) => x.f_mul_scalar(0.5)?,
            Op::Softmax(_) => x.f_softmax(-1, x.kind())?,
            Op::Clone(_) => x.copy(),
            Op::Add(_, b) => x.f_add(&self.fitted(b, &x)?)?,
            Op::Times(_, b) => x.f_mul(&self.fitted(b, &x)?.f_tanh()?)?,
            Op::Cat(_, b) => self.cat(&x, b)?,
            Op::Where(_, b) => {
                let positive = x.f_detach()?.f_gt(0.0)?;
                x.f_where_self(&positive, &self.fitted(b, &x)?)?
            }
            Op::MeanOfLast(_) => (x.f_sum_dim_intlist(-1, true, x.kind())?)
                .f_mul_scalar(1.0 / (last(&x) + 1) as f64)?,
            Op::PositiveRows(_) => {
                let sums = x.f_detach()?.f_reshape([x.size()[0], -1]);
                // Without elements, -1 is ambiguous.
                let Ok(sums) = sums else { return Ok(None) };
                let positive = sums.f_sum_dim_intlist(1_i64, false, x.kind())?.f_gt(0.0)?;
                x.f_index_select(0, &positive.f_nonzero()?.f_flatten(0, -1)?)?
            }
            Op::PositiveOnes(_) => x.f_masked_select(&x.f_detach()?.f_gt(0.0)?)?,
            Op::TimesMicro(_) => x.f_mul_scalar(1.0 + self.pass.micro() as f64)?,
            Op::Ids(_) => x.f_detach()?.f_mul_scalar(10.0)?.f_to_kind(Kind::Int64)?,
            Op::IsPositive(_) => x.f_gt(0.0)?,
            Op::Center(_) => self.center(&x, true)?,
            Op::CenterBefore(_) => self.center(&x, false)?,
            Op::Count(_) => self.count(&x)?,
            _ => self.spectral_norm(&x)?,
        }))
    }

    /// Results computed from integers and booleans.
    fn of_other(&self, op: Op) -> Result<Option<Tensor>> {
        let (Op::Embed(of) | Op::FromOther(of)) = op else {
            return Ok(None);
        };
        let Some(ids) = self.other(of) else {
            return Ok(None);
        };
        Ok(Some(match op {
            Op::Embed(_) => {
                let ids = ids.f_to_kind(Kind::Int64)?.f_remainder(WIDTH)?;
                Tensor::f_embedding(&self.body.own("weight"), &ids, -1, false, false)?
            }
            _ => (ids.f_to_kind(self.body.plan.kind)?).f_mul_scalar(0.1)?,
        }))
    }

    fn linear(&self, x: &Tensor) -> Result<Tensor> {
        let width = last(x).min(WIDTH);
        let weight = self.body.own("weight").f_narrow(0, 0, width)?;
        let x = x.f_narrow(-1, 0, width)?;
        Ok(x.f_matmul(&weight)?.f_add(&self.body.own("bias"))?)
    }

    /// Another value that can be broadcast to `x`: itself, or its sum.
    pub(crate) fn fitted(&self, nth: usize, x: &Tensor) -> Result<Tensor> {
        let Some(other) = self.floating(nth) else {
            return Ok(x.shallow_clone());
        };
        if other.size() == x.size() {
            return Ok(other);
        }
        Ok(other.f_sum(other.kind())?.f_mul_scalar(0.1)?)
    }

    /// Concatenates along the last dimension if the other sizes agree, otherwise all elements in a row.
    fn cat(&self, x: &Tensor, other: usize) -> Result<Tensor> {
        let Some(other) = self.floating(other) else {
            return Ok(x.copy());
        };
        let (own, its) = (x.size(), other.size());
        if own.len() == its.len() && own[..own.len() - 1] == its[..its.len() - 1] {
            return Ok(Tensor::f_cat(&[x, &other], -1)?);
        }
        let flat = [x.f_reshape([-1])?, other.f_reshape([-1])?];
        Ok(Tensor::f_cat(&flat, 0)?)
    }
}

/// The size of the last dimension.
pub(crate) fn last(x: &Tensor) -> i64 {
    x.size().last().copied().unwrap_or(0)
}

/// Name of a skip.
pub(crate) fn skip(name: usize) -> &'static str {
    ["a", "b"][name]
}

fn shapes(values: &[Option<Tensor>]) -> String {
    let shape = |value: &Option<Tensor>| match value {
        None => "none".to_owned(),
        Some(t) => format!("{:?}{:?}", t.kind(), t.size()),
    };
    values.iter().map(shape).collect::<Vec<_>>().join(" ")
}
