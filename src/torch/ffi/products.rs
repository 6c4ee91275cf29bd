//! Products that add to a parameter's gradient (`shim/products.cpp`): their bits are tested by
//! `tests/numbers/products.rs`, and here that they are used.

use tch::{Device, Kind, Tensor};

use super::graph::Graph;

unsafe extern "C" {
    fn gp_products_added() -> i64;
}

fn added() -> i64 {
    // SAFETY: it reads a number.
    unsafe { gp_products_added() }
}

/// One micro-batch of a linear layer.
fn backward(weight: &Tensor, split: bool) {
    let x = Tensor::randn([16, 128], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let mut graph = Graph::new().unwrap();
    let (seen, _) = graph.enter(&[Some(x)]).unwrap();
    let loss = seen[0]
        .as_ref()
        .unwrap()
        .mm(&weight.tr())
        .square()
        .mean(Kind::Float);
    graph.mark(&loss, 0).unwrap();
    graph.loss(&loss, 1.0, None).unwrap();
    if split {
        graph.backward_input(&[None]).unwrap();
        graph.backward_weight().unwrap();
    } else {
        graph.backward(&[None]).unwrap();
    }
}

#[test]
fn the_second_micro_batch_is_added_by_its_product() {
    for split in [false, true] {
        let weight = Tensor::randn([96, 128], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let before = added();
        backward(&weight, split);
        assert_eq!(added() - before, 0, "split {split}: there is no sum yet");
        backward(&weight, split);
        assert_eq!(added() - before, 1, "split {split}");
    }
}
