//! Every model of the zoo in shorter types.

use gpipe::models::zoo::{ModelSpec, Zoo};
use gpipe::partitioner::ScheduleKind;
use gpipe::{
    Optimizer, Pipeline,
    optim::AdamW,
    settings::{LossScale, Precision},
};

use super::SHORT;
use crate::support::cpus;

const STEPS: usize = 4;

fn small(name: &str) -> ModelSpec {
    let text = ["layers=3", "context=6", "vocab=11"];
    let wide = ["d_model=16", "heads=2", "d_ff=24"];
    let settings: Vec<&str> = match name {
        "mlp" => vec!["inputs=12", "hidden=16", "depth=3", "outputs=5"],
        "gpt" => [&text[..], &wide[..2]].concat(),
        "llama" => [&text[..], &wide[..], &["kv_heads=1"]].concat(),
        "transformer" => [&text[..], &wide[..], &["dropout=0.1"]].concat(),
        "lstm" => [&text[..], &["hidden=16", "dropout=0.1"]].concat(),
        "vgg16" => vec!["width=4", "hidden=16", "image=32", "classes=5"],
        "resnet101" => vec!["blocks2=1", "blocks3=2", "width=4", "image=64", "classes=5"],
        "unet" => vec!["depth=2", "convolutions=2", "width=4", "image=22"],
        "amoebanet-d" => vec!["layers=3", "filters=8", "image=64", "classes=5"],
        other => panic!("no small `{other}`"),
    };
    Zoo::builtin().spec(name, settings).unwrap()
}

fn pipeline(spec: &ModelSpec, stages: usize, precision: Precision) -> Pipeline {
    Pipeline::builder(spec.build())
        .devices(&cpus(stages))
        .micro_batches(2)
        .schedule(ScheduleKind::ZbH1)
        .threads_per_stage(1)
        .seed(3)
        .precision(precision)
        .loss_scale(LossScale {
            initial: 256.0,
            ..LossScale::default()
        })
        .build()
        .unwrap()
}

fn losses(spec: &ModelSpec, stages: usize, precision: Precision) -> Vec<f64> {
    let mut pipe = pipeline(spec, stages, precision);
    let (x, y) = spec.sample(4, 1).unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut step = || {
        let (x, y) = (x.shallow_clone(), y.shallow_clone());
        let report = pipe.train_step(x, y, spec.loss()).unwrap();
        assert!(
            !report.read().unwrap().skipped(),
            "{precision}: {:?}",
            report.read().unwrap().non_finite
        );
        optimizer.step(&mut pipe).unwrap();
        report.read().unwrap().loss
    };
    (0..STEPS).map(|_| step()).collect()
}

fn trains(name: &str, precisions: &[Precision]) {
    let spec = small(name);
    let plain = losses(&spec, 1, Precision::F32);
    for &precision in precisions {
        let own = losses(&spec, 1, precision);
        assert_eq!(losses(&spec, 3, precision), own, "{name} {precision}");
        assert_ne!(own, plain, "{name} {precision} is what it was");
        // Later losses of the small nets with batch norm diverge from each other.
        let off = (own[0] / plain[0] - 1.0).abs();
        assert!(off < 0.05, "{name} {precision}: {own:?} for {plain:?}");
    }
}

/// oneDNN's fused cells support bf16 on processors with AVX-512, and fp16 on few.
#[test]
fn lstm_or_a_word_about_its_missing_kernel() {
    let spec = small("lstm");
    for (precision, other) in [(Precision::Bf16, "f32"), (Precision::Fp16, "bf16")] {
        let (x, y) = spec.sample(4, 1).unwrap();
        let mut pipe = pipeline(&spec, 2, precision);
        match pipe.train_step(x, y, spec.loss()) {
            Ok(_) if precision == Precision::Bf16 => trains("lstm", &[precision]),
            Ok(_) => {}
            Err(error) => {
                let text = error.to_string();
                let begin = format!(
                    "stage 0, layer `lstm.0`, micro-batch 0, forward: the CPU has no {precision} kernel for \
                     something that this needs (use {other}, or a CUDA device): "
                );
                assert!(text.starts_with(&begin), "{text}");
            }
        }
    }
}

macro_rules! trains {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            trains($name, &SHORT);
        })*
    };
}

trains! {
    mlp: "mlp",
    gpt: "gpt",
    llama: "llama",
    transformer: "transformer",
    vgg16: "vgg16",
    resnet: "resnet101",
    unet: "unet",
    amoebanet: "amoebanet-d",
}
