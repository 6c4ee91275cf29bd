//! `gpipe-rs export`: a run's weights, for other programs; and back.

use std::fs;

use gpipe::checkpoint::Checkpoint;
use gpipe::models::hugging_face;
use gpipe::models::zoo::Zoo;
use serde_json::Value;

use super::trained::{checkpoints, run, spec};
use super::{gpipe, printed, refused};

#[test]
fn an_exported_model_is_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("exported");
    let shown = out.display();
    let told = printed(run(), &format!("export --run run -o {shown} --json"));
    let told: Value = serde_json::from_str(&told).unwrap();
    let names = [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let files: Vec<String> = names.iter().map(|name| format!("{shown}/{name}")).collect();
    assert_eq!(told["files"], Value::from(files));

    let may = |name: &str| fs::metadata(out.join(name)).unwrap().permissions();
    assert_eq!(may("model.safetensors"), may("config.json"));

    let read = hugging_face::import(&Zoo::builtin(), &out).unwrap();
    assert_eq!(read.spec.settings(), spec().settings());
    let checkpoint = Checkpoint::newest(checkpoints(&run().join("run"))).unwrap();
    let weights = checkpoint.weights().unwrap();
    assert_eq!(read.weights.len(), weights.len());
    for (name, tensor) in &read.weights {
        let (_, own) = weights.iter().find(|(own, _)| own == name).unwrap();
        assert!(tensor.equal(own), "{name}");
    }

    let go_on = |place: [&str; 2]| {
        let rest = [
            "--prompt",
            "Ishmael",
            "--tokens",
            "50",
            "--temperature",
            "2",
        ];
        printed(run(), &[&["generate"][..], &place, &rest].concat())
    };
    let path = shown.to_string();
    assert_eq!(go_on(["--weights", &path]), go_on(["--run", "run"]));
    let file = format!("{shown}/model.safetensors");
    let eval = format!("eval --weights {file} --data text.txt --json");
    let told: Value = serde_json::from_str(&printed(run(), &eval)).unwrap();
    assert!(told["loss"].as_f64().unwrap() < 0.5 && told["step"].is_null());
}

/// Regression test: weights without a configuration replaced those with one, whose configuration stayed.
#[test]
fn weights_alone_do_not_replace_those_that_a_configuration_is_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --quiet --model mlp --hidden 8 --depth 2 --steps 1 --out mlp";
    assert!(gpipe(folder, train).status.success());
    let gpt = format!("export --run run -o {}", folder.join("gpt").display());
    assert!(gpipe(run(), &gpt).status.success());
    let before = fs::read(folder.join("gpt/model.safetensors")).unwrap();
    for name in ["gpt", "gpt/model.safetensors"] {
        let wanted = "gpt/config.json: another model is there already: choose another folder";
        refused(folder, &format!("export --run mlp -o {name}"), &[wanted]);
    }
    let after = fs::read(folder.join("gpt/model.safetensors")).unwrap();
    assert!(before == after);
    let beside = "export --run mlp -o gpt/mlp.safetensors";
    assert!(gpipe(folder, beside).status.success());
}

#[test]
fn files_are_named_and_other_models_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpt.safetensors");
    let output = gpipe(run(), &format!("export --run run -o {}", file.display()));
    assert!(output.status.success() && output.stdout.is_empty());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains(&format!("wrote {}\n", file.display())),
        "{errors}"
    );
    // Repeating is harmless; another model's config.json stays.
    printed(run(), &format!("export --run run -o {}", file.display()));
    fs::write(
        folder.path().join("config.json"),
        "{\"model_type\":\"bert\"}",
    )
    .unwrap();
    let again = format!("export --run run -o {}", file.display());
    refused(
        run(),
        &again,
        &["--output: ", "config.json: another one is there already"],
    );
}

/// Regression test: a folder with that name was silently created.
#[test]
fn a_name_of_another_kind_of_file_is_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.pt");
    let export = format!("export --run run -o {}", file.display());
    refused(
        run(),
        &export,
        &["no files of the kind .pt are written", "w.safetensors"],
    );
    assert!(!file.exists());
    let unknown = folder.path().join("w.foo");
    refused(
        run(),
        &format!("export --run run -o {}", unknown.display()),
        &["no files of the kind .foo are written", "w.foo/"],
    );
    assert!(!unknown.exists());
    printed(
        run(),
        &format!("export --run run -o {}/", unknown.display()),
    );
    assert!(unknown.join("model.safetensors").exists());
    // An existing folder is used, whatever its name.
    fs::create_dir(&file).unwrap();
    printed(run(), &export);
    assert!(file.join("model.safetensors").exists());
}
