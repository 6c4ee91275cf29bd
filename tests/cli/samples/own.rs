//! Custom models: with numbers as targets, and with their own data.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use gpipe::data::{Dataset, Made, SampleOptions, Samples};
use gpipe::models::zoo::{Entry, Instance, Settings, Synthetic, Zoo};
use gpipe::tch::{Reduction, Tensor, nn};
use gpipe::{Sequential, cli};

use super::{config, losses};

/// A model that predicts one number.
#[allow(
    clippy::unnecessary_wraps,
    reason = "the zoo takes a function that may fail"
)]
fn regression(sizes: &Settings) -> anyhow::Result<Instance> {
    let inputs = sizes.count("inputs");
    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    let model = Sequential::new()
        .layer("in", move |p| linear(p, inputs, 4))
        .layer("out", move |p| linear(p, 4, 1));
    let loss = |out: &Tensor, wanted: &Tensor| out.mse_loss(wanted, Reduction::Mean);
    let (input, target) = (Synthetic::normal([inputs]), Synthetic::normal([1]));
    Ok(Instance::new(model, input, target, loss))
}

type Item = anyhow::Result<(Tensor, Tensor)>;

/// Sums of two numbers, used if no path is given.
fn sums(
    _: &Settings,
    path: Option<&Path>,
    options: &SampleOptions,
) -> anyhow::Result<Option<Samples>> {
    if path.is_some() {
        return Ok(None);
    }
    let item = |number: usize| -> Item {
        let (a, b) = (number as f32 / 40.0, (number % 7) as f32);
        Ok((Tensor::from_slice(&[a, b]), Tensor::from_slice(&[a + b])))
    };
    let all = Dataset::new(Made::new(40, item));
    Ok(Some(Samples::of(
        all,
        None::<Made<fn(usize) -> Item>>,
        options,
    )?))
}

fn zoo() -> Zoo {
    let mut zoo = Zoo::builtin();
    let entry = Entry::new("regression", regression).count("inputs", 7, "numbers");
    zoo.add(entry.data(sums)).unwrap();
    zoo
}

#[track_caller]
fn succeeds(args: &str) {
    let code = cli::run_with(args.split_whitespace(), &zoo());
    assert_eq!(
        format!("{code:?}"),
        format!("{:?}", ExitCode::SUCCESS),
        "{args}"
    );
}

#[test]
fn the_data_of_a_model_is_taken_where_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let train = "own train --batch 8 --quiet --json --threads-per-stage 1 --warmup 1";
    let (whole, half) = (path("whole"), path("half"));
    succeeds(&format!("{train} --steps 4 --out {whole}"));
    succeeds(&format!("{train} --steps 2 --out {half}"));
    succeeds(&format!(
        "own train --quiet --json --resume {half} --steps 4"
    ));
    assert_eq!(
        losses(folder.path(), "half"),
        losses(folder.path(), "whole")
    );
    succeeds(&format!("own eval --json --run {half}"));
    let model = &config(folder.path(), "whole")["model"];
    assert_eq!(model["inputs"].as_integer(), Some(2));
}

#[test]
fn a_column_of_numbers_is_told_by_a_model_of_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.csv");
    let mut text = String::from("a,b,c,sum\n");
    for row in 0..60 {
        writeln!(text, "{row},{},1,{}.5", row % 5, row + row % 5).unwrap();
    }
    fs::write(&table, text).unwrap();
    let out = folder.path().join("run").display().to_string();
    succeeds(&format!(
        "own train --quiet --json --batch 8 --steps 30 --lr 0.1 --out {out} --data {}",
        table.display()
    ));
    succeeds(&format!("own eval --json --run {out}"));
    let all = losses(folder.path(), "run");
    let number = |text: &String| text.parse::<f64>().unwrap();
    assert!(number(&all[29]) < number(&all[0]), "{all:?}");
}
