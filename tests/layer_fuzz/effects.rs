//! Operations with side effects: in-place changes of values, and buffers.

use anyhow::Result;
use gpipe::tch::{self, Kind, Tensor};

use crate::layer::{Pass, WIDTH};
use crate::machine::{Machine, last};
use crate::program::Op;

impl<P: Pass> Machine<'_, P> {
    /// The running mean as used in this pass: a copy, since under most schedules the next micro-batch updates
    /// it before this one's backward.
    pub(crate) fn center(&self, x: &Tensor, after: bool) -> Result<Tensor> {
        let width = last(x).min(WIDTH);
        let mut mean = self.body.own("mean").f_narrow(0, 0, width)?;
        let before = mean.copy();
        let seen = x.f_detach()?.f_narrow(-1, 0, width)?;
        if self.pass.train() && seen.numel() > 0 {
            let rows = seen.f_reshape([-1, width])?;
            let new = rows.f_mean_dim(0_i64, false, x.kind())?;
            let _ = tch::no_grad(|| mean.f_lerp_(&new, 0.3))?;
        }
        let mean = if after { mean.copy() } else { before };
        Ok(x.f_narrow(-1, 0, width)?.f_sub(&mean)?)
    }

    pub(crate) fn count(&self, x: &Tensor) -> Result<Tensor> {
        let mut count = self.body.own("count");
        if self.pass.train() {
            let _ = count.f_add_scalar_(1.0)?;
        }
        Ok(x.f_mul(&count.f_sin()?)?)
    }

    pub(crate) fn spectral_norm(&self, x: &Tensor) -> Result<Tensor> {
        let unit = |t: Tensor| -> Result<Tensor> {
            let length = t.f_square()?.f_sum(t.kind())?.f_add_scalar(0.1)?;
            Ok(t.f_mul(&length.f_rsqrt()?)?)
        };
        let (weight, mut direction) = (self.body.own("weight"), self.body.own("direction"));
        let other = tch::no_grad(|| unit(weight.f_tr()?.f_mv(&direction)?))?;
        if self.pass.train() {
            tch::no_grad(|| -> Result<()> {
                Ok(direction.f_copy_(&unit(weight.f_mv(&other)?)?)?)
            })?;
        }
        let norm = direction.copy().f_dot(&weight.f_mv(&other)?)?;
        Ok(x.f_mul(&norm.f_tanh()?)?)
    }

    pub(crate) fn in_place(&self, op: Op) -> Result<Option<()>> {
        if let Op::OtherIn(to) = op {
            let Some(mut x) = self.other(to) else {
                return Ok(None);
            };
            let _ = match x.kind() {
                Kind::Bool => x.f_logical_not_()?,
                _ => x.f_add_scalar_(1)?,
            };
            return Ok(Some(()));
        }
        let (Op::DoubleIn(to)
        | Op::ReluIn(to)
        | Op::TanhIn(to)
        | Op::FillIn(to)
        | Op::AddIn { to, .. }
        | Op::CopyIn { to, .. }
        | Op::MaskIn(to)
        | Op::TimesBiasIn(to)
        | Op::AddBiasIn(to)
        | Op::CopyBiasIn(to)) = op
        else {
            return Ok(None);
        };
        let Some(mut x) = self.floating(to) else {
            return Ok(None);
        };
        let _ = match op {
            Op::DoubleIn(_) => x.f_mul_scalar_(2.0)?,
            Op::ReluIn(_) => x.f_relu_()?,
            Op::TanhIn(_) => x.f_tanh_()?,
            Op::FillIn(_) => x.f_fill_(0.3)?,
            Op::AddIn { from, .. } => x.f_add_(&self.fitted(from, &x)?)?,
            Op::CopyIn { from, .. } => {
                x.f_copy_(&self.fitted(from, &x)?)?;
                x
            }
            Op::MaskIn(_) => {
                let positive = x.f_detach()?.f_gt(0.0)?;
                x.f_masked_fill_(&positive, 0.2)?
            }
            _ if last(&x) > WIDTH => return Ok(None),
            _ => {
                let bias = self.body.own("bias").f_narrow(0, 0, last(&x))?;
                match op {
                    Op::TimesBiasIn(_) => x.f_mul_(&bias)?,
                    Op::AddBiasIn(_) => x.f_add_(&bias)?,
                    _ => {
                        x.f_copy_(&bias)?;
                        x
                    }
                }
            }
        };
        Ok(Some(()))
    }
}
