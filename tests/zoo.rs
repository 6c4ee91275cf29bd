//! The model zoo: exact sizes, and models that train alike wherever they are cut.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use gpipe::models::zoo::{ModelSpec, Zoo};

fn spec(name: &str, settings: &[&str]) -> ModelSpec {
    Zoo::builtin().spec(name, settings).unwrap()
}

fn assert_parameters(name: &str, settings: &[&str], expected: u64) {
    let counted = spec(name, settings).parameters().unwrap();
    assert_eq!(counted, expected, "{name} {settings:?}");
}

#[test]
fn gpt2_has_the_parameters_of_the_released_weights() {
    assert_parameters("gpt2", &[], 124_439_808);
    assert_parameters("gpt2-medium", &[], 354_823_168);
    assert_parameters("gpt2-large", &[], 774_030_080);
    assert_parameters("gpt2-xl", &[], 1_557_611_200);
}
