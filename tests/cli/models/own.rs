//! Custom models, in a separate program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use gpipe::models::zoo::{Entry, Instance, Settings, Synthetic, Zoo};
use gpipe::tch::{Reduction, Tensor, nn};
use gpipe::{Layer, Sequential, Values, layers::Context, settings::on_values};
use serde_json::Value;

/// Builds an example's program. Uses the features of `make test`: with fewer workspace members some crates
/// would have other features, and everything would be recompiled.
pub(crate) fn example(name: &str) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--workspace",
        "--quiet",
        "--offline",
        "--example",
        name,
    ]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let built = build
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    let binary = Path::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    binary.with_file_name("examples").join(name)
}

fn run(program: &Path, folder: &Path, args: &str) -> Output {
    let mut command = Command::new(program);
    command.args(args.split_whitespace()).current_dir(folder);
    command.output().unwrap()
}

#[test]
fn a_program_of_its_own_has_all_verbs_for_its_model() {
    let program = example("own_model_cli");
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &str| {
        let output = run(&program, folder.path(), args);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let help = run("--help");
    assert!(
        help.contains("Usage: own_model_cli [OPTIONS] <COMMAND>"),
        "{help}"
    );
    for verb in [
        "models", "profile", "train", "plan", "simulate", "schedule", "env",
    ] {
        assert!(help.contains(&format!("\n  {verb} ")), "{help}");
    }
    let help = run("train --help")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        help.contains(" own_model_cli train --data mine.txt"),
        "{help}"
    );
    assert!(
        help.contains("hidden layers (mlp 8); levels (unet 5); floors (tower 8)"),
        "{help}"
    );
    assert!(!help.contains("gpipe-rs"), "{help}");
    assert!(run("--version").starts_with("own_model_cli (gpipe-rs "));
    assert!(run("models tower").starts_with("tower: linear layers with residuals"));
    let model = "--model tower --width 8 --depth 2 --batch 8 --threads-per-stage 1";
    run(&format!(
        "profile {model} --quick --micro 2 --plan plan.json"
    ));
    let json = run(&format!(
        "train {model} --steps 2 --plan plan.json --quiet --json"
    ));
    let summary: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(summary["data"], "synthetic");
    assert!(summary["loss_last"].as_f64().unwrap() > 0.0);
    let gpt = "--model gpt --layers 1 --d-model 8 --heads 2 --context 4 --batch 4";
    let again = run(&format!(
        "train {gpt} --steps 1 --data synthetic --quiet --json"
    ));
    assert!(again.contains("tokens_per_s"), "{again}");
}

#[test]
fn the_example_fits_in_forty_lines() {
    let source = include_str!("../../../examples/own_model_cli.rs");
    let code = source.lines().filter(|line| !line.starts_with("//!"));
    assert!(code.count() < 40);
}

/// The mean and the difference of two inputs.
#[derive(Debug)]
struct Mix(nn::Linear);

impl Layer for Mix {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        let [Some(a), Some(b)] = [inputs.get(0), inputs.get(1)] else {
            anyhow::bail!("two inputs are needed");
        };
        let (mean, apart) = ((a + b) / 2.0, a - b);
        Ok(vec![mean.apply(&self.0), apart.apply(&self.0)].into())
    }
}

/// Two inputs, two outputs, two targets.
fn twice(sizes: &Settings) -> anyhow::Result<Instance> {
    let width = sizes.count("wide");
    anyhow::ensure!(width > 1, "wide {width} is narrow");
    let model = Sequential::new().layers("mix", sizes.number("deep"), move |p, _| {
        Mix(nn::linear(p, width, width, nn::LinearConfig::default()))
    });
    let loss = on_values(|outputs: &Values, targets: &Values| {
        let pairs = outputs.present().zip(targets.present());
        let losses = pairs.map(|(out, wanted)| out.mse_loss(wanted, Reduction::Mean));
        losses
            .reduce(|sum: Tensor, loss| sum + loss)
            .ok_or_else(|| anyhow::anyhow!("no outputs"))
    });
    let two = || vec![Synthetic::normal([width]), Synthetic::uniform([width])];
    Ok(Instance::of_several(model, two(), two(), loss))
}

fn code(args: &str, zoo: &Zoo) -> String {
    format!("{:?}", gpipe::cli::run_with(args.split_whitespace(), zoo))
}

fn exit(code: ExitCode) -> String {
    format!("{code:?}")
}

#[test]
fn several_inputs_and_targets_are_profiled_and_trained() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut zoo = Zoo::builtin();
    let entry = Entry::new("twice", twice);
    zoo.add(
        entry
            .count("wide", 4, "features")
            .layers("deep", 4, "layers"),
    )
    .unwrap();
    let model = "--model twice --wide 8 --batch 8 --threads-per-stage 1";
    let plan = path("plan.json");
    let profile = format!(
        "own profile {model} --quick --micro 2 --plan {plan} -o {}",
        path("profile.json")
    );
    assert_eq!(code(&profile, &zoo), exit(ExitCode::SUCCESS));
    let train = format!(
        "own train {model} --steps 2 --quiet --json --plan {plan} --out {}",
        path("run")
    );
    assert_eq!(code(&train, &zoo), exit(ExitCode::SUCCESS));
    let metrics = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 2);
}

/// A layer that blocks forever.
#[derive(Debug)]
struct Stuck;

impl Layer for Stuck {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        while ctx.micro().index() == 1 {
            std::thread::park();
        }
        Ok(inputs)
    }
}

/// Regression test: the command waited forever, without a message.
#[test]
fn a_run_whose_layer_never_comes_back_ends_when_its_patience_does() {
    let folder = tempfile::tempdir().unwrap();
    let mut zoo = Zoo::builtin();
    let stuck = |_: &Settings| {
        let model = Sequential::new()
            .layer("linear", |p| {
                nn::linear(p, 2, 2, nn::LinearConfig::default())
            })
            .layer("stuck", |_| Stuck);
        let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
        let normal = || Synthetic::normal([2]);
        Ok(Instance::new(model, normal(), normal(), loss))
    };
    zoo.add(Entry::new("stuck", stuck)).unwrap();
    let out = folder.path().join("run");
    let train = format!(
        "own train --model stuck --batch 4 --micro 2 --steps 2 --patience 2 --quiet --out {}",
        out.display()
    );
    assert_eq!(code(&train, &zoo), exit(ExitCode::from(1)));
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(config.contains("\npatience = 2.0\n"), "{config}");
}

#[test]
fn names_of_models_and_sizes_that_are_taken_are_wrong_use() {
    let of = |name: &str, size: &str| {
        let mut zoo = Zoo::builtin();
        let entry = Entry::new(name, twice).count(size, 1, "");
        zoo.add(entry).map(|()| zoo)
    };
    for taken in [
        "batch",
        "devices",
        "seed",
        "low_memory",
        "quick",
        "help",
        "plan",
    ] {
        let zoo = of("mine", taken).unwrap();
        assert_eq!(code("own env", &zoo), exit(ExitCode::from(2)), "{taken}");
    }
    let code = gpipe::cli::run(|zoo| zoo.add(Entry::new("gpt", twice)));
    assert_eq!(exit(code), exit(ExitCode::from(2)));
}

/// Regression test: without a named model, a program for a custom model trained a GPT on the built-in text.
#[test]
fn a_program_for_an_own_model_trains_that_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut zoo = Zoo::builtin();
    let entry = Entry::new("twice", twice).count("wide", 4, "features");
    zoo.add(entry.layers("deep", 4, "layers")).unwrap();
    let out = folder.path().join("run");
    let train = format!(
        "own train --batch 8 --steps 1 --quiet --json --out {}",
        out.display()
    );
    assert_eq!(code(&train, &zoo), exit(ExitCode::SUCCESS));
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(config.contains("name = \"twice\""), "{config}");
}
