//! `gpipe-rs models` as users run it.

use std::path::Path;
use std::process::Output;

use gpipe::models::zoo::Zoo;
use serde_json::{Value, json};

use crate::run::command;

fn models(args: &[&str]) -> Output {
    let mut command = command(Path::new("."), "models");
    command.args(args).output().unwrap()
}

fn as_json(args: &[&str]) -> Value {
    let output = models(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn all_models_are_listed_with_their_presets() {
    let all = as_json(&[]);
    let mut names = Vec::new();
    for model in all["models"].as_array().unwrap() {
        names.push(model["name"].as_str().unwrap());
        for preset in model["presets"].as_array().unwrap() {
            names.push(preset["name"].as_str().unwrap());
        }
    }
    let zoo = Zoo::builtin();
    assert_eq!(names, zoo.names().collect::<Vec<_>>());
    let text = models(&[]);
    let text = String::from_utf8(text.stdout).unwrap();
    for name in names {
        assert!(text.contains(&format!("\n{name} ")), "{name}: {text}");
    }
}

#[test]
fn one_model_is_described_with_the_sizes_that_were_asked_for() {
    let model = as_json(&["amoebanet-d", "layers=18", "filters=416"]);
    assert_eq!(model["settings"]["filters"], 416);
    assert_eq!(model["parameters"], 319_024_120);
    assert_eq!(model["layers"], 24);
    let input = json!([{"shape": [3, 224, 224], "kind": "float32"}]);
    assert_eq!(model["inputs"], input);
    assert_eq!(model["targets"], json!([{"shape": [], "kind": "int64"}]));
    let text = String::from_utf8(models(&["gpt2-xl"]).stdout).unwrap();
    assert!(
        text.contains("1,557,611,200 parameters in 50 layers"),
        "{text}"
    );
    assert!(text.contains("int64 [batch, 1024]"), "{text}");
}

#[test]
fn wrong_use_names_the_nearest_model_and_size() {
    for (args, message) in [
        (&["resnet100"][..], "did you mean `resnet101`?"),
        (&["gtp"], "did you mean `gpt`?"),
        (&["gpt", "layer=3"], "did you mean `layers`?"),
        (&["gpt", "--jsn"], "--json"),
    ] {
        let output = models(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(message), "{args:?}: {errors}");
    }
}
