//! Ignored targets: -100, as in PyTorch, for any model and any name of its loss.

use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};

use super::{as_json, fails};
use crate::run::{losses, printed};

const FLAGS: &str =
    "--quiet --steps 3 --batch 16 --micro 4 --threads-per-stage 1 --devices cpu,cpu";

/// Arrays whose first half of targets is ignored.
fn save(folder: &Path, name: &str, x: &Tensor, y: &Tensor) {
    let half = y.size()[0] / 2;
    let left_out = y.copy();
    let _ = left_out.narrow(0, 0, half).fill_(-100);
    // Some items are ignored only in part.
    if left_out.dim() > 1 {
        let _ = left_out.select(1, 0).fill_(-100);
    }
    let path = folder.join(name);
    Tensor::write_safetensors(&[("x", x), ("y", &left_out)], path).unwrap();
}

/// Regression test: a run with the model's own loss ended at its first step, and the suggested flag was
/// refused.
#[test]
fn every_model_of_classes_leaves_them_out_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let options = (Kind::Float, Device::Cpu);
    gpipe::tch::manual_seed(3);
    let classes = Tensor::arange(64, (Kind::Int64, Device::Cpu)).remainder(3);
    save(
        folder,
        "rows.safetensors",
        &Tensor::randn([64, 4], options),
        &classes,
    );
    save(
        folder,
        "images.safetensors",
        &Tensor::randn([64, 3, 32, 32], options),
        &classes,
    );
    let tokens = Tensor::arange(64 * 6, (Kind::Int64, Device::Cpu)).remainder(5);
    let tokens = tokens.view([64, 6]);
    save(folder, "tokens.safetensors", &tokens, &tokens);
    let models = [
        ("mlp --hidden 8 --depth 1", "rows"),
        ("gpt --layers 1 --d-model 8 --heads 1 --context 6", "tokens"),
        ("lstm --layers 1 --hidden 8 --context 6", "tokens"),
        (
            "resnet101 --width 1 --blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --image 32",
            "images",
        ),
    ];
    for (number, (model, data)) in models.into_iter().enumerate() {
        let train = format!("train {FLAGS} --model {model} --data {data}.safetensors");
        let run = |more: &str, out: &str| {
            let told = as_json(
                folder,
                &format!("{train} {more} --json --out {out}{number}"),
            );
            (
                losses(folder, &format!("{out}{number}")),
                told["held_out_loss"].clone(),
            )
        };
        let own = run("", "own");
        assert!(own.1.is_number(), "{model}: {own:?}");
        assert_eq!(own, run("--loss cross-entropy", "named"), "{model}");
        assert_eq!(own, run("--ignore-index -100", "index"), "{model}");
        let judged = as_json(folder, &format!("eval --run own{number} --json"));
        assert_eq!(judged["loss"], own.1, "{model}");
        // It resumes like it began.
        printed(
            folder,
            &format!("train --quiet --resume own{number} --steps 4"),
        );
    }
}

/// However few targets of a micro-batch count, the loss is the mean over those of the mini-batch.
#[test]
fn micro_batches_weigh_as_much_as_is_left_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let options = (Kind::Float, Device::Cpu);
    gpipe::tch::manual_seed(4);
    let x = Tensor::randn([64, 4], options);
    let y = Tensor::arange(64, (Kind::Int64, Device::Cpu)).remainder(2);
    save(folder, "d.safetensors", &x, &y);
    let losses = [1, 2, 16].map(|micro| {
        let train =
            "train --quiet --steps 3 --batch 16 --devices cpu --model mlp --hidden 8 --depth 1";
        printed(
            folder,
            &format!("{train} --data d.safetensors --micro {micro} --out {micro}"),
        );
        let own = losses(folder, &micro.to_string()).into_iter();
        own.map(|own| own.parse::<f64>().unwrap())
            .collect::<Vec<_>>()
    });
    for other in &losses[1..] {
        let apart = losses[0]
            .iter()
            .zip(other)
            .map(|(one, other)| (one - other).abs());
        assert!(apart.fold(0.0, f64::max) < 1e-5, "{losses:?}");
    }
}

#[test]
fn another_number_may_be_left_out_of_a_models_own_loss() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let x = Tensor::ones([32, 4], (Kind::Float, Device::Cpu));
    let y = Tensor::arange(32, (Kind::Int64, Device::Cpu)).remainder(3);
    let y = y.masked_fill(&y.eq(2), 255);
    Tensor::write_safetensors(
        &[("x", &x), ("y", &y.to_kind(Kind::Uint8))],
        folder.join("d.safetensors"),
    )
    .unwrap();
    let train =
        "train --quiet --steps 1 --batch 8 --data d.safetensors --model mlp --hidden 8 --depth 1";
    printed(
        folder,
        &format!("{train} --ignore-index 255 --outputs 2 --out run"),
    );
    fails(
        folder,
        &format!("{train} --outputs 2 --out other"),
        2,
        &["255", "--ignore-index 255"],
    );
    // A model of numbers has no classes to ignore.
    fails(
        folder,
        "train --model unet --ignore-index 2",
        2,
        &["--ignore-index", "`unet` has a loss of its own"],
    );
}
