//! A model that PyTorch exported, from the file to weights that Python loads.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use gpipe::checkpoint::Checkpoint;
use gpipe::models::ExportedModel;
use gpipe::tch::{Kind, Tensor};
use serde_json::Value;

use super::{printed, refused};
use crate::run::{config, losses};

fn program(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join(format!("tests/fixtures/exported/{name}.pt2"))
}

/// A folder with programs, and a text of fewer characters than the 19 tokens of `decoder`.
fn folder(programs: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in programs {
        fs::copy(program(name), folder.path().join(format!("{name}.pt2"))).unwrap();
    }
    let words = [
        "the whale ",
        "ate the hat. ",
        "a tall white wheel ",
        "let it heat. ",
    ];
    let text: String = (0..120).map(|at| words[at * at % 7 % 4]).collect();
    fs::write(folder.path().join("text.txt"), text).unwrap();
    folder
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

const TRAIN: &str = "train --model decoder.pt2 --loss cross-entropy --data text.txt --batch 6 \
                     --micro 3 --threads-per-stage 1 --lr 0.01 --checkpoint-every 2";

#[test]
fn its_layers_are_listed_profiled_planned_and_trained() {
    let here = folder(&["decoder"]);
    let here = here.path();
    let about = read(&printed(here, "models decoder.pt2 --json"));
    let names = [
        "embed", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "head",
    ];
    assert_eq!(about["names"], Value::from(names.to_vec()));
    assert_eq!(
        about["inputs"],
        read(r#"[{"shape": [6], "kind": "int64"}]"#)
    );
    assert_eq!(about["input_names"], read(r#"["ids"]"#));
    let text = printed(here, "models decoder.pt2");
    assert!(
        text.contains(
            "input   ids int64 [batch, 6]\ntarget  none: it computes no loss; `train` needs --loss"
        ),
        "{text}"
    );

    let profile = "profile --model decoder.pt2 --quick --batch 6 --micro 3 --plan plan.json --json";
    let layers = &read(&printed(here, profile))["profile"]["layers"];
    let layers = layers.as_array().unwrap().iter().map(|own| &own["name"]);
    assert_eq!(layers.collect::<Vec<_>>(), names);

    let told = printed(
        here,
        "train --model decoder.pt2 --loss cross-entropy --data text.txt --batch 6 --steps 2 --plan \
         plan.json --out planned",
    );
    assert!(
        told.contains("held-out loss") && told.contains("per character"),
        "{told}"
    );
    // Another file is another model.
    fs::copy(program("mlp"), here.join("decoder.pt2")).unwrap();
    let again = "train --model decoder.pt2 --loss mse --batch 6 --steps 2 --plan plan.json";
    refused(here, again, &["--plan", "another file of that name"]);
}

/// Cut, schedule and resuming do not change the losses, and the folder has the model.
#[test]
fn a_run_resumes_is_judged_writes_and_gives_its_weights_back() {
    let here = folder(&["decoder"]);
    let here = here.path();
    printed(here, &format!("{TRAIN} --steps 6 --out whole"));
    printed(
        here,
        &format!("{TRAIN} --steps 4 --out part --schedule zbv"),
    );
    let saved = config(here, "part");
    let path = saved["model"]["name"].as_str().unwrap();
    assert_eq!(
        Path::new(path),
        here.join("decoder.pt2").canonicalize().unwrap()
    );
    assert_eq!(saved["loss"]["name"].as_str(), Some("cross-entropy"));
    let file = ExportedModel::open(path).unwrap();
    assert_eq!(
        saved["model"]["fingerprint"].as_str(),
        Some(&*file.fingerprint())
    );
    printed(here, "train --resume part --steps 6 --devices cpu,cpu,cpu");
    assert_eq!(losses(here, "part"), losses(here, "whole"));

    let held_out = read(&printed(here, "eval --run part --json"));
    let all = read(&printed(
        here,
        "eval --run part --data text.txt --devices cpu,cpu --json",
    ));
    let first: f64 = losses(here, "whole")[0].parse().unwrap();
    assert!(held_out["loss"].as_f64().unwrap() < first, "{held_out}");
    assert!(all["count"].as_u64() > held_out["count"].as_u64(), "{all}");
    let goes_on = "generate --run part --prompt the --tokens 12 --temperature 0 --json";
    let written = read(&printed(here, goes_on));
    assert_eq!(written["tokens"], 12);

    printed(here, "export --run part -o weights.safetensors");
    let mut read = Tensor::read_safetensors(here.join("weights.safetensors")).unwrap();
    read.sort_by(|one, other| one.0.cmp(&other.0));
    let layout = read
        .iter()
        .map(|(name, own)| (name.clone(), own.size(), own.kind()));
    assert_eq!(
        layout.collect::<Vec<_>>(),
        file.state_dict_layout().unwrap()
    );
    let trained = Checkpoint::newest(here.join("part/checkpoints")).unwrap();
    for (name, tensor) in trained.weights().unwrap() {
        let (_, own) = read.iter().find(|(own, _)| *own == name).unwrap();
        assert!(own.equal(&tensor), "{name}");
    }
    printed(here, "export --run part -o folder");
    assert!(here.join("folder/model.safetensors").exists());
}

#[test]
fn a_file_that_moved_is_named_and_another_one_is_refused() {
    let here = folder(&["decoder", "mlp"]);
    let here = here.path();
    printed(here, &format!("{TRAIN} --steps 2 --out run --quiet"));
    fs::rename(here.join("decoder.pt2"), here.join("moved.pt2")).unwrap();
    let gone = ["decoder.pt2", "which is not there", "--model FILE"];
    for verb in [
        "eval --run run",
        "export --run run -o out",
        "generate --run run --prompt the",
    ] {
        refused(here, verb, &gone);
        printed(here, &format!("{verb} --model moved.pt2"));
    }
    refused(here, "train --resume run --steps 4", &gone);
    printed(
        here,
        "train --resume run --steps 4 --model moved.pt2 --quiet",
    );
    assert_eq!(losses(here, "run").len(), 4);

    fs::copy(program("mlp"), here.join("moved.pt2")).unwrap();
    let other = ["moved.pt2", "another file than the one that was trained"];
    refused(here, "train --resume run --steps 6", &other);
    refused(here, "eval --run run", &other);
    refused(
        here,
        "train --resume run --steps 6 --model mlp.pt2",
        &["mlp.pt2", "another file"],
    );
    // A run of a zoo model has no such file.
    printed(
        here,
        "train --model mlp --steps 1 --batch 4 --out zoo --quiet",
    );
    refused(
        here,
        "export --run zoo -o out --model mlp.pt2",
        &["`mlp` is no exported program"],
    );
}

/// A run's configuration reproduces it; with another model, the first one's settings do not interfere.
#[test]
fn a_configuration_names_the_program_and_its_loss() {
    let here = folder(&["decoder", "fixed"]);
    let here = here.path();
    printed(
        here,
        &format!("{TRAIN} --ignore-index 3 --steps 2 --out one --quiet"),
    );
    assert_eq!(
        config(here, "one")["loss"]["ignore_index"].as_integer(),
        Some(3)
    );
    printed(here, "train --config one/config.toml --out two --quiet");
    assert_eq!(losses(here, "one"), losses(here, "two"));
    printed(
        here,
        "train --config one/config.toml --model fixed.pt2 --loss mse --data synthetic --out three --quiet",
    );
    printed(
        here,
        "train --config one/config.toml --model mlp --data synthetic --out four --quiet",
    );
    assert!(!config(here, "four").contains_key("loss"));
}

/// By default the loss is the one that the program computes, if it does.
#[test]
fn a_program_may_compute_its_loss_itself() {
    let here = folder(&["judged"]);
    let here = here.path();
    printed(
        here,
        "train --model judged.pt2 --batch 6 --micro 3 --steps 3 --checkpoint-every 3 --out run --quiet",
    );
    assert_eq!(config(here, "run")["loss"]["name"].as_str(), Some("output"));
    printed(
        here,
        "profile --model judged.pt2 --batch 12 --micro 3 --quick",
    );
    printed(here, "export --run run -o out.safetensors");
    let read = Tensor::read_safetensors(here.join("out.safetensors")).unwrap();
    let get = |name: &str| &read.iter().find(|(own, _)| own == name).unwrap().1;
    assert!(get("third.weight").equal(get("second.weight")));
    assert_eq!(
        (get("note").kind(), get("note").size()),
        (Kind::Half, vec![4])
    );
    assert_eq!(get("norm.num_batches_tracked").int64_value(&[]), 3);
}

/// Regression test: the weights were refused name by name.
#[test]
fn weights_of_a_wrapped_module_are_those_of_the_module() {
    let here = folder(&["mlp"]);
    let here = here.path();
    let train = "train --model mlp.pt2 --loss cross-entropy --data synthetic --batch 8 --steps 1";
    printed(here, &format!("{train} --quiet --out one"));
    printed(here, "export --run one -o plain.safetensors");
    let plain = Tensor::read_safetensors(here.join("plain.safetensors")).unwrap();
    let wrapped: Vec<(String, Tensor)> = plain
        .into_iter()
        .map(|(name, tensor)| (format!("module.{name}"), tensor))
        .collect();
    Tensor::write_safetensors(&wrapped, here.join("wrapped.safetensors")).unwrap();
    printed(
        here,
        &format!("{train} --quiet --out two --weights plain.safetensors"),
    );
    let output = crate::run::gpipe(
        here,
        &format!("{train} --out three --weights wrapped.safetensors"),
    );
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("every name begins with `module.`"),
        "{errors}"
    );
    assert_eq!(losses(here, "two"), losses(here, "three"));
    // Others are refused as before.
    let mut odd = wrapped;
    odd.truncate(1);
    odd.push(("head.weight".to_owned(), odd[0].1.shallow_clone()));
    Tensor::write_safetensors(&odd, here.join("odd.safetensors")).unwrap();
    refused(
        here,
        &format!("{train} --weights odd.safetensors"),
        &["its names are not those of the model's state_dict"],
    );
}

/// Regression test: the batch of a program exported for one size was called free, and the function that wrote
/// the file had a line of its own.
#[test]
fn a_batch_that_is_fixed_is_shown() {
    let here = folder(&["fixed"]);
    let text = printed(here.path(), "models fixed.pt2");
    assert!(
        text.starts_with("fixed.pt2: a program that PyTorch exported (torch.export.save)\n\n"),
        "{text}"
    );
    assert!(text.contains("; exported for micro-batches of "), "{text}");
    assert!(!text.contains("[batch"), "{text}");
}

#[test]
fn a_file_is_taken_for_what_it_is() {
    let here = folder(&["mlp"]);
    let here = here.path();
    fs::write(here.join("broken.pt2"), "PK").unwrap();
    fs::copy(here.join("mlp.pt2"), here.join("mlp.pth")).unwrap();
    fs::write(here.join("weights.pth"), [0x80, 2, 0x8a]).unwrap();
    let cases: [(&str, &[&str]); 4] = [
        (
            "--model gone.pt2",
            &["--model gone.pt2: cannot be read", "No such file"],
        ),
        (
            "--model broken.pt2",
            &["broken.pt2: begins as a zip archive", "cut off"],
        ),
        (
            "--model mlp.pth",
            &["--loss is missing: `mlp.pth` computes none itself"],
        ),
        (
            "--model weights.pth",
            &[
                "weights.pth: was written by an old torch.save",
                "torch.export",
            ],
        ),
    ];
    for (args, wanted) in cases {
        refused(here, &format!("train --steps 1 {args}"), wanted);
    }
}

#[test]
fn what_does_not_fit_is_told_before_training() {
    let here = folder(&["decoder", "encoder", "fixed", "judged", "mlp"]);
    let here = here.path();
    let cases: [(&str, &[&str]); 15] = [
        // It takes probabilities, which no named loss here does.
        (
            "--model mlp.pt2 --loss BCELoss",
            &[
                "`BCELoss` is no loss here: use `bce`",
                "leave the sigmoid out",
            ],
        ),
        (
            "--model mlp.pt2",
            &[
                "--loss is missing",
                "computes none itself",
                "cross-entropy, mse, bce",
            ],
        ),
        (
            "--model mlp.pt2 --loss msee",
            &["`msee` is no loss: did you mean `mse`?"],
        ),
        (
            "--model mlp.pt2 --loss nll",
            &["`nll` is no loss here: use `cross-entropy`"],
        ),
        (
            "--model mlp.pt2 --loss output",
            &[
                "--model mlp.pt2: the loss `output`",
                "none of the model's outputs",
            ],
        ),
        ("--model judged.pt2 --loss bce", &["use the loss `output`"]),
        (
            "--model mlp.pt2 --loss mse --ignore-index 1",
            &["loss.ignore_index", "cross-entropy"],
        ),
        (
            "--model mlp.pt2 --ignore-index 1",
            &["--ignore-index is for --loss cross-entropy"],
        ),
        (
            "--model mlp.pt2 --loss mse --layers 3",
            &["--layers: the sizes of `mlp.pt2` are in the file"],
        ),
        (
            "--model gpt --loss mse",
            &["--loss: `gpt` has a loss of its own"],
        ),
        (
            "--model unet --ignore-index 2",
            &["--ignore-index", "`unet` has a loss of its own"],
        ),
        (
            "--model fixed.pt2 --loss mse --batch 8 --micro 2",
            &[
                "micro-batches of 4 samples",
                "exported for 2",
                "use --batch 4",
                "dynamic_shapes",
            ],
        ),
        (
            "--model mlp.pt2 --loss mse --batch 8194 --micro 2",
            &["micro-batches of 4097 samples", "exported for 1 to 4096"],
        ),
        (
            "--model encoder.pt2 --loss cross-entropy --data text.txt",
            &["--data text.txt", "int64 [batch, 6], float32 [batch, 6]"],
        ),
        (
            "--model decoder.pt2 --loss cross-entropy --data decoder.pt2",
            &["--data", "decoder.pt2"],
        ),
    ];
    for (args, wanted) in cases {
        refused(here, &format!("train --steps 1 {args}"), wanted);
    }
    refused(
        here,
        "profile --model fixed.pt2 --micro 3",
        &["exported for 2"],
    );
    refused(
        here,
        "models mlp.pt2 layers=3",
        &["`layers=3`: the sizes of `mlp.pt2`"],
    );
    let data = "profile --model decoder.pt2 --data text.txt --batch 6";
    refused(here, data, &["--data is for models with targets", "--loss"]);
    // A single micro-batch size is profiled, and used by the plan.
    let plan = "profile --model fixed.pt2 --loss mse --batch 8 --quick --plan plan.json";
    printed(here, plan);
    let plan = read(&fs::read_to_string(here.join("plan.json")).unwrap());
    assert_eq!(plan["micro_batches"], 4);
}

/// Writes a program whose archive declares one row instead of 32 for the first weight of its LSTM.
fn write_contradicting(path: &Path) {
    let mut from = zip::ZipArchive::new(fs::File::open(program("lstm")).unwrap()).unwrap();
    let mut to = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let stored =
        zip::write::FileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for at in 0..from.len() {
        let mut entry = from.by_index(at).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if entry.name().ends_with("_weights_config.json") {
            let mut config: Value = serde_json::from_slice(&bytes).unwrap();
            let meta = &mut config["config"]["lstm1.weight_ih_l0"]["tensor_meta"];
            meta["sizes"][0]["as_int"] = 1.into();
            bytes = serde_json::to_vec(&config).unwrap();
        }
        to.start_file(entry.name(), stored).unwrap();
        to.write_all(&bytes).unwrap();
    }
    to.finish().unwrap();
}

/// Regression test: the file was listed, ended `profile` by SIGSEGV, and trained on memory beyond the tensor.
#[test]
fn a_file_that_contradicts_itself_is_refused_by_every_verb() {
    let here = folder(&["lstm"]);
    let here = here.path();
    let train = "train --loss mse --data synthetic --batch 4 --micro 2 --steps 1 --devices cpu";
    printed(here, &format!("{train} --model lstm.pt2 --out run --quiet"));
    write_contradicting(&here.join("lstm.pt2"));
    for verb in [
        "models lstm.pt2".to_owned(),
        "profile --model lstm.pt2 --quick".to_owned(),
        format!("{train} --model lstm.pt2 --out other"),
        "train --resume run --steps 2".to_owned(),
        "eval --run run --data synthetic".to_owned(),
        "predict --run run --data synthetic".to_owned(),
    ] {
        let wanted = "the tensor `lstm1.weight_ih_l0`: has sizes [1, 8], the program says [32, 8]";
        refused(here, &verb, &[wanted]);
    }
    assert!(!here.join("other").exists());
}
