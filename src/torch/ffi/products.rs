//! Products that add directly to a parameter's gradient (`shim/products.cpp`). Tests here check
//! that they are used, `tests/numbers/products.rs` their bits.

use std::ffi::c_int;

use tch::{Device, Kind, Tensor};

use super::graph::Graph;
use super::onednn::set_onednn;

unsafe extern "C" {
    fn gp_products_added() -> i64;
    fn gp_onednn_has_products() -> c_int;
}

fn added() -> i64 {
    // SAFETY: it reads a number.
    unsafe { gp_products_added() }
}

/// Runs one micro-batch of a layer.
fn backward(shape: &[i64], layer: impl Fn(&Tensor) -> Tensor, split: bool) {
    let x = Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let mut graph = Graph::new().unwrap();
    let (seen, _) = graph.enter(&[Some(x)]).unwrap();
    let seen = seen[0].as_ref().unwrap();
    let loss = layer(seen).square().mean(Kind::Float);
    graph.mark(&loss, 0).unwrap();
    graph.loss(&loss, 1.0, None).unwrap();
    if split {
        graph.backward_input(&[None]).unwrap();
        graph.backward_weight().unwrap();
    } else {
        graph.backward(&[None]).unwrap();
    }
}

/// Returns whether a layer's second micro-batch adds its gradient directly.
fn adds(weight: &[i64], shape: &[i64], layer: fn(&Tensor, &Tensor) -> Tensor) -> [bool; 2] {
    [false, true].map(|split| {
        let weight = Tensor::randn(weight, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let before = added();
        backward(shape, |x| layer(x, &weight), split);
        assert_eq!(added() - before, 0, "split {split}: there is no sum yet");
        backward(shape, |x| layer(x, &weight), split);
        added() - before == 1
    })
}

#[test]
fn the_second_micro_batch_is_added_by_its_product() {
    let linear = |x: &Tensor, weight: &Tensor| x.mm(&weight.tr());
    assert_eq!(adds(&[96, 128], &[16, 128], linear), [true; 2]);
    let convolution = |x: &Tensor, weight: &Tensor| x.conv2d(weight, None::<&Tensor>, 1, 1, 1, 1);
    let shapes: [&[i64]; 2] = [&[64, 32, 3, 3], &[2, 32, 4, 4]];
    assert_eq!(adds(shapes[0], shapes[1], convolution), [false; 2]);
    // SAFETY: it reads a number.
    let products = unsafe { gp_onednn_has_products() } == 1;
    set_onednn(Some(0)).unwrap();
    assert_eq!(adds(&[96, 128], &[16, 128], linear), [true; 2]);
    assert_eq!(adds(shapes[0], shapes[1], convolution), [products; 2]);
    set_onednn(None).unwrap();
}
