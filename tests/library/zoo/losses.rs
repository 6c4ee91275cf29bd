//! Losses of the zoo's models.

use gpipe::models::zoo::{class_cross_entropy, token_cross_entropy};
use gpipe::tch::{Device, Kind, Tensor};

/// Regression test: -100 was left out of a micro-batch's mean, which then counted as much as one without
/// ignored targets, so losses and gradients depended on the number of micro-batches.
#[test]
fn every_target_counts_or_is_refused() {
    let logits = Tensor::zeros([4, 3], (Kind::Float, Device::Cpu));
    let classes = |last: i64| Tensor::from_slice(&[0, 1, 2, last]);
    let loss = class_cross_entropy(&logits, &classes(0)).unwrap();
    assert!((loss.double_value(&[]) - 3_f64.ln()).abs() < 1e-6);
    let refused = class_cross_entropy(&logits, &classes(-100)).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("label -100 is out of the range 0 to 2"),
        "{refused}"
    );
    let (logits, tokens) = (logits.view([2, 2, 3]), classes(-100).view([2, 2]));
    let refused = token_cross_entropy(&logits, &tokens).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("label -100 is out of the range 0 to 2"),
        "{refused}"
    );
}
