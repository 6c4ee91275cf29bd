//! Every model of the zoo is profiled, and trained with its plan.

use super::{as_json, config, losses};

use gpipe::models::zoo::Zoo;
use gpipe::partitioner::Plan;

/// Sizes small enough for a test.
fn tiny(name: &str) -> &'static str {
    match name {
        "mlp" => "--inputs 12 --hidden 16 --depth 3 --outputs 5",
        "gpt" => "--layers 2 --d-model 16 --heads 2 --seq 6 --vocab 11",
        "llama" => "--layers 2 --d-model 16 --heads 4 --d-ff 24 --context 6 --vocab 11",
        "transformer" => "--layers 2 --d-model 16 --heads 2 --d-ff 24 --context 6 --vocab 11",
        "lstm" => "--layers 2 --hidden 16 --context 6 --vocab 11",
        "vgg16" => "--width 4 --hidden 16 --image 32 --classes 5",
        "resnet101" => {
            "--blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --width 4 --image 64 --classes 5"
        }
        "unet" => "--depth 2 --convolutions 1 --width 4 --image 22",
        "amoebanet-d" => "--layers 3 --filters 8 --image 64 --classes 5",
        other => panic!("no tiny `{other}`: the zoo has a new model"),
    }
}

/// Profiles, trains with the plan, and trains again in one stage: the results are bit-identical.
fn profiled_and_trained(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut model = vec!["--model", name, "--threads-per-stage", "1", "--batch", "4"];
    model.extend(tiny(name).split_whitespace());
    let profile = ["profile", "--quick", "--micro", "2", "--plan", "plan.json"];
    let report = as_json(folder, &[&profile[..], &model].concat());
    assert_eq!(report["profile"]["batch"], 2, "{name}");
    assert_eq!(
        report["input"],
        serde_json::Value::Null,
        "{name}: no --data"
    );
    let plan = Plan::read(folder.join("plan.json")).unwrap();
    assert_eq!(plan.devices(), 2);

    let train = "train --data synthetic --steps 3 --quiet --lr 0.001";
    let train: Vec<&str> = train.split_whitespace().collect();
    let by_plan = ["--plan", "plan.json", "--out", "plan"];
    let summary = as_json(folder, &[&train[..], &model, &by_plan].concat());
    assert_eq!(
        (&summary["model"], &summary["data"]),
        (&name.into(), &"synthetic".into())
    );
    for key in [
        "samples_per_s",
        "planned_ms",
        "makespan_ms_median",
        "step_ms_median",
    ] {
        assert!(summary[key].as_f64().unwrap() > 0.0, "{name}: {key}");
    }
    assert!(summary.get("held_out_loss").is_none(), "{name}: {summary}");
    let of_tokens = tiny(name).contains("--vocab");
    assert_eq!(summary.get("tokens_per_s").is_some(), of_tokens, "{name}");
    let one = ["--devices", "cpu", "--micro", "2", "--out", "one"];
    as_json(folder, &[&train[..], &model, &one].concat());
    let three = [
        "--devices",
        "cpu,cpu,cpu",
        "--micro",
        "2",
        "--schedule",
        "zb-h1",
    ];
    as_json(
        folder,
        &[&train[..], &model, &three, &["--out", "three"]].concat(),
    );
    if plan.micro_batches == 2 {
        assert_eq!(losses(folder, "plan"), losses(folder, "one"), "{name}");
    }
    assert_eq!(losses(folder, "one"), losses(folder, "three"), "{name}");
    let config = config(folder, "one");
    assert_eq!(config["model"]["name"].as_str(), Some(name));
    let flags: Vec<&str> = tiny(name).split_whitespace().collect();
    for pair in flags.chunks(2) {
        let size = pair[0].trim_start_matches("--").replace('-', "_");
        let size = if size == "seq" { "context" } else { &size };
        let value = config["model"][size].as_integer().unwrap();
        assert_eq!(value.to_string(), pair[1], "{name}: {size}");
    }
}

macro_rules! profiled_and_trained {
    ($($test:ident: $name:literal,)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test]
        fn $test() {
            profiled_and_trained($name);
        })*
    };
}

profiled_and_trained! {
    mlp: "mlp",
    gpt: "gpt",
    llama: "llama",
    transformer: "transformer",
    lstm: "lstm",
    vgg16: "vgg16",
    resnet: "resnet101",
    unet: "unet",
    amoebanet: "amoebanet-d",
}

#[test]
fn every_model_of_the_zoo_is_tested() {
    let zoo = Zoo::builtin();
    let names: Vec<&str> = zoo.entries().map(|entry| entry.name()).collect();
    assert_eq!(names, TESTED);
}
