//! Published parameter counts, and the shapes of inputs and outputs.

use gpipe::Pipeline;
use gpipe::tch::Device;

use super::{small, spec};

#[track_caller]
fn assert_parameters(name: &str, settings: &[&str], expected: u64) {
    let counted = spec(name, settings).parameters().unwrap();
    assert_eq!(counted, expected, "{name} {settings:?}");
}

/// In millions, to as many digits as the source gives.
#[track_caller]
fn assert_millions(name: &str, settings: &[&str], expected: &str) {
    let counted = spec(name, settings).parameters().unwrap() as f64 / 1e6;
    let digits = expected
        .split_once('.')
        .map_or(0, |(_, digits)| digits.len());
    assert_eq!(
        format!("{counted:.digits$}"),
        expected,
        "{name} {settings:?}"
    );
}

#[track_caller]
fn assert_billions(name: &str, expected: &str) {
    let counted = spec(name, &[]).parameters().unwrap() as f64 / 1e9;
    assert_eq!(format!("{counted:.2}"), expected, "{name}");
}

#[test]
fn a_tied_llama_has_one_table_less() {
    let sizes = ["vocab=100", "d_model=16"];
    let count = |tied| {
        spec("llama", &[sizes[0], sizes[1], tied])
            .parameters()
            .unwrap()
    };
    assert_eq!(count("tied=0") - count("tied=1"), 100 * 16);
}

#[test]
fn gpt2_has_the_parameters_of_the_released_weights() {
    assert_parameters("gpt2", &[], 124_439_808);
    assert_parameters("gpt2-medium", &[], 354_823_168);
    assert_parameters("gpt2-large", &[], 774_030_080);
    assert_parameters("gpt2-xl", &[], 1_557_611_200);
}

#[test]
fn llama_has_the_parameters_of_the_released_weights() {
    assert_parameters("tinyllama-1.1b", &[], 1_100_048_384);
    assert_parameters("llama2-7b", &[], 6_738_415_616);
    assert_parameters("llama2-13b", &[], 13_015_864_320);
    assert_parameters("llama2-70b", &[], 68_976_648_192);
    assert_parameters("llama3-8b", &[], 8_030_261_248);
    assert_parameters("llama3-70b", &[], 70_553_706_496);
}

#[test]
fn vgg_and_resnet_have_torchvisions_parameters() {
    assert_parameters("vgg16", &[], 138_357_544);
    assert_parameters("resnet50", &[], 25_557_032);
    assert_parameters("resnet101", &[], 44_549_160);
    assert_parameters("resnet152", &[], 60_192_808);
}

#[test]
fn amoebanet_d_has_the_parameters_of_the_gpipe_benchmark() {
    assert_millions("amoebanet-d", &["layers=18", "filters=208"], "81.5");
    assert_millions("amoebanet-d", &["layers=18", "filters=416"], "319.0");
    assert_millions("amoebanet-d", &["layers=18", "filters=544"], "542.7");
    assert_billions("amoebanet-d-36-544", "1.06");
    assert_billions("amoebanet-d-72-512", "1.84");
    assert_eq!(spec("amoebanet-d", &[]).build().len(), 24);
}

#[test]
fn unet_has_the_parameters_of_torchgpipes_benchmark() {
    assert_millions("unet-6-72", &[], "362.2");
    assert_billions("unet-11-128", "2.21");
    assert_billions("unet-24-128", "4.99");
    assert_billions("unet-24-160", "7.80");
    assert_billions("unet-48-160", "15.82");
}

#[test]
fn the_original_transformer_and_lstm_sizes() {
    let (d, ff, vocab) = (512, 2048, 37_000);
    let layer = 4 * (d * d + d) + 2 * d * ff + ff + d + 4 * d;
    assert_parameters("transformer-base", &[], 2 * vocab * d + vocab + 6 * layer);
    let (h, vocab) = (1500, 10_000);
    assert_parameters(
        "lstm-large",
        &[],
        2 * vocab * h + vocab + 2 * 8 * (h * h + h),
    );
}

#[test]
fn outputs_have_the_shapes_that_targets_need() {
    for (name, expected) in [
        ("mlp", vec![2, 5]),
        ("gpt", vec![2, 6, 11]),
        ("llama", vec![2, 6, 11]),
        ("transformer", vec![2, 6, 11]),
        ("lstm", vec![2, 6, 11]),
        ("vgg16", vec![2, 5]),
        ("resnet101", vec![2, 5]),
        ("unet", vec![2, 1, 22, 22]),
        ("amoebanet-d", vec![2, 5]),
    ] {
        let spec = small(name);
        let mut pipe = Pipeline::new(spec.build(), &[Device::Cpu], 1).unwrap();
        let (input, _) = spec.sample(2, 0).unwrap();
        assert_eq!(pipe.forward(input).unwrap().size(), expected, "{name}");
    }
}
