//! The trainer takes samples of any kind, and those of a custom source.

use std::fs;
use std::path::Path;

use gpipe::data::{Dataset, Made, SampleOptions, Samples, Source as _};
use gpipe::models::zoo::{Zoo, class_cross_entropy};
use gpipe::tch::{Device, Tensor};
use gpipe::train::{Outcome, Trainer};
use gpipe::{Optimizer, Pipeline, optim::AdamW};

use super::images::pictures;

fn train(samples: &Samples, model: &str, sizes: &[&str], steps: usize, folder: &Path) -> Outcome {
    let spec = Zoo::builtin().spec(model, sizes).unwrap();
    let mut pipe = Pipeline::builder(spec.build())
        .devices(&[Device::Cpu; 2])
        .micro_batches(2)
        .threads_per_stage(1)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let trainer = Trainer::builder(
        &mut pipe,
        &mut optimizer,
        samples.batches(4),
        class_cross_entropy,
    )
    .held_out(samples.held_out(4).unwrap())
    .steps(steps)
    .folder(folder.join("run"))
    .resume(folder.join("run").exists())
    .part("samples", samples.kept());
    trainer.build().unwrap().run().unwrap()
}

#[test]
fn a_table_and_a_folder_of_images_are_trained_on_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let rows =
        (0..40).map(|n| format!("{},{},{}\n", n, 40 - n, if n < 20 { "low" } else { "high" }));
    fs::create_dir(folder.join("table")).unwrap();
    let path = folder.join("table/a.csv");
    fs::write(&path, format!("a,b,size\n{}", rows.collect::<String>())).unwrap();
    let samples = Samples::open(&path, &SampleOptions::default().held_out(0.2)).unwrap();
    let mlp = ["inputs=2", "hidden=8", "depth=1", "outputs=2"];
    let first = train(&samples, "mlp", &mlp, 3, &folder.join("table"));
    assert!(first.held_out_loss.unwrap().is_finite());
    let second = train(&samples, "mlp", &mlp, 6, &folder.join("table"));
    assert!(second.held_out_loss.unwrap() < first.held_out_loss.unwrap());

    pictures(&folder.join("images"));
    let options = SampleOptions::default().image(3, 32, 32).held_out(0.5);
    let samples = Samples::open(&folder.join("images"), &options).unwrap();
    let sizes = [
        "blocks1=1",
        "blocks2=1",
        "blocks3=1",
        "blocks4=1",
        "width=4",
        "image=32",
        "classes=2",
    ];
    let outcome = train(&samples, "resnet50", &sizes, 2, &folder.join("images"));
    assert!(outcome.held_out_loss.unwrap().is_finite());
}

#[test]
fn an_own_source_is_split_and_scaled_as_others_are() {
    let item = |number: usize| {
        let x = Tensor::from_slice(&[number as i64, 7]);
        Ok((x, Tensor::from(number as i64 % 5)))
    };
    let own = Dataset::new(Made::new(20, item));
    let none = None::<Dataset<Made<fn(usize) -> anyhow::Result<(Tensor, Tensor)>>>>;
    let options = SampleOptions::default()
        .held_out(0.25)
        .normalise("standard".parse().unwrap());
    let samples = Samples::of(own, none, &options).unwrap();
    assert_eq!((samples.train_len(), samples.held_out_len()), (15, 5));
    assert_eq!((samples.input(), samples.classes()), (&[2][..], Some(5)));
    let (x, _) = samples.batches(15).load().unwrap().next().unwrap().unwrap();
    assert!(x.select(1, 0).mean(None).double_value(&[]).abs() < 1e-6);
    assert_eq!(x.select(1, 1).count_nonzero(None).int64_value(&[]), 0);
    assert!(Dataset::new(Made::new(0, item)).is_empty());
}

/// Regression test: rows of an image without a channel dimension were taken for channels.
#[test]
fn an_image_of_two_dimensions_is_one_channel() {
    let item = |number: usize| {
        let rows = [number as f32, 100.0 + number as f32];
        let x = Tensor::from_slice(&rows).reshape([2, 1]).repeat([1, 3]);
        Ok((x, Tensor::from(number as i64 % 2)))
    };
    let own = Dataset::new(Made::new(8, item));
    let none = None::<Dataset<Made<fn(usize) -> anyhow::Result<(Tensor, Tensor)>>>>;
    let options = SampleOptions::default()
        .held_out(0.25)
        .normalise("standard".parse().unwrap());
    let samples = Samples::of(own, none, &options).unwrap();
    assert_eq!(samples.input(), &[2, 3]);
    let (x, _) = samples.batches(6).load().unwrap().next().unwrap().unwrap();
    // One mean over all numbers: differences between rows remain.
    let mean = |row: i64| x.select(1, row).mean(None).double_value(&[]);
    assert!((mean(0) + 1.0).abs() < 0.01, "{}", mean(0));
    assert!((mean(1) - 1.0).abs() < 0.01, "{}", mean(1));
}
