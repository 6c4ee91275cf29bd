//! Writing a value with a gradient into a part of a tensor.
//!
//! Regression tests: every split backward ended in an internal error of libtorch. The node of such a write
//! contains the node of the inner operation, and requires both to have the same edges, while the split
//! backward redirected only the outer one.

use gpipe::Values;
use gpipe::tch::{Tensor, nn};

use super::plain::{Body, as_plain};

fn lin(x: Values, linear: &nn::Linear) -> anyhow::Result<Values> {
    Ok(x.into_one()?.apply(linear).into())
}

fn in_the_middle(write: Body) {
    as_plain(&[("in", lin), ("write", write), ("out", lin), ("last", lin)]);
    as_plain(&[
        ("write", write),
        ("middle", lin),
        ("write again", write),
        ("last", lin),
    ]);
}

fn bias(linear: &nn::Linear) -> Tensor {
    linear.bs.as_ref().unwrap().shallow_clone()
}

#[test]
fn a_parameter_times_a_part() {
    in_the_middle(|x, linear| {
        let y = x.into_one()?.apply(linear);
        let _ = y.narrow(1, 0, 2).g_mul_(&bias(linear).narrow(0, 3, 2));
        Ok(y.into())
    });
}

#[test]
fn a_parameter_added_to_a_part() {
    in_the_middle(|x, linear| {
        let y = x.into_one()? * 1.5;
        let _ = y.narrow(1, 0, 2).g_add_(&bias(linear).narrow(0, 3, 2));
        let _ = y.select(1, 5).g_add_(&bias(linear).get(2));
        Ok(y.into())
    });
}

#[test]
fn a_parameter_in_place_of_a_part() {
    in_the_middle(|x, linear| {
        let y = x.into_one()?.apply(linear);
        y.narrow(1, 2, 4)
            .copy_(&linear.ws.get(1).narrow(0, 0, 4).tanh());
        Ok(y.into())
    });
}

#[test]
fn a_part_of_the_input_in_what_is_made_of_parameters() {
    in_the_middle(|x, linear| {
        let x = x.into_one()?;
        let y = bias(linear).unsqueeze(0) * Tensor::ones_like(&x);
        let _ = y.narrow(1, 0, 4).g_add_(&x.narrow(1, 2, 4));
        y.narrow(1, 4, 4).copy_(&x.narrow(1, 0, 4));
        Ok(y.into())
    });
}

/// Column by column, each from the previous ones and from parameters, as decoders write.
#[test]
fn a_loop_over_columns() {
    in_the_middle(|x, linear| {
        let y = x.into_one()? * 1.0;
        for column in 1..8 {
            let before = y.narrow(1, 0, column) * 1.0;
            let before = before.matmul(&linear.ws.get(column).narrow(0, 0, column));
            let _ = y.select(1, column).g_mul_(&bias(linear).get(column));
            let _ = y.select(1, column).g_add_(&before.tanh());
        }
        Ok(y.into())
    });
}

/// A part of a part, and a write with three sources.
#[test]
fn a_part_of_a_part() {
    in_the_middle(|x, linear| {
        let x = x.into_one()?;
        let y = x.apply(linear);
        let part = y.narrow(1, 1, 6).transpose(0, 1);
        let _ = part.narrow(0, 2, 3).addcmul_(
            &bias(linear).narrow(0, 0, 3).unsqueeze(1),
            &x.narrow(1, 5, 3).transpose(0, 1),
        );
        Ok((part.transpose(0, 1).constant_pad_nd([1, 1]) + y.sin()).into())
    });
}
