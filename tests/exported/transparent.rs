//! Behaviour that no comparison with eager shows: random draws, and other number types.

use gpipe::settings::Precision;

use crate::fixture::{DRAWS, Fixture};
use crate::support::single_threaded;

#[test]
fn dropout_draws_anew_in_every_micro_batch_and_step() {
    single_threaded();
    let fixture = Fixture::open(DRAWS);
    let mut pipe = fixture.builder(2).build().unwrap();
    let (first, second) = (fixture.step(&mut pipe), fixture.step(&mut pipe));
    assert_ne!(first, second);
}

#[test]
fn computes_in_bfloat16() {
    single_threaded();
    for name in ["decoder", "resnet"] {
        let fixture = Fixture::open(name);
        let losses = [1, 3].map(|stages| {
            let pipe = fixture.builder(stages).precision(Precision::Bf16);
            fixture.step(&mut pipe.build().unwrap())
        });
        assert_eq!(losses[0], losses[1], "{name}");
        let told = fixture.told("loss").double_value(&[0]);
        assert!(
            (losses[0] - told).abs() < 0.05 * told,
            "{name}: {losses:?}, {told}"
        );
    }
}
