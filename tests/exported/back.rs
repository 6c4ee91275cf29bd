//! Trained weights go back to Python: `load_state_dict(strict=True)` takes them.

use std::process::Command;

use gpipe::models::{ExportedModel, LossKind};
use gpipe::tch::{Kind, Reduction, Tensor};
use gpipe::{Optimizer, Pipeline, Values, optim::AdamW};

use crate::fixture::{ALL, Fixture, assert_near, path, script, told_path};
use crate::support::single_threaded;

/// The named Python, or the installed one, if it has PyTorch.
fn python() -> Option<String> {
    let named = std::env::var("TORCH_PYTHON");
    let python = named.unwrap_or_else(|_| "python3".to_owned());
    let imported = Command::new(&python).args(["-c", "import torch"]).output();
    let found = imported.is_ok_and(|output| output.status.success());
    if !found {
        println!("NOT CHECKED: {python} has no PyTorch; TORCH_PYTHON names another one");
    }
    found.then_some(python)
}

/// All parameters and buffers of the pipeline, by name.
fn weights(pipe: &mut Pipeline) -> Vec<(String, Tensor)> {
    let mut all = pipe.parameters().unwrap();
    all.extend(pipe.buffers().unwrap());
    all
}

/// Two updates of the model that computes its own loss.
fn judged(stages: usize) -> (Fixture, ExportedModel, Pipeline, Vec<f64>) {
    let fixture = Fixture::open("judged");
    let file = ExportedModel::open(path("judged")).unwrap();
    assert!(file.computes_a_loss());
    let spec = file.spec(Some(LossKind::Output.into())).unwrap();
    assert!(spec.targets().is_empty());
    let mut pipe = fixture.builder(stages).build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut losses = Vec::new();
    for _ in 0..2 {
        let report = pipe.train_step(fixture.inputs(), Values::new(), spec.loss());
        losses.push(report.unwrap().read().unwrap().loss);
        optimizer.step(&mut pipe).unwrap();
    }
    (fixture, file, pipe, losses)
}

#[test]
fn a_program_that_computes_its_loss_is_trained_by_it() {
    single_threaded();
    let (fixture, _, _, losses) = judged(1);
    let told = fixture.told("loss").double_value(&[0]);
    assert!((losses[0] - told).abs() < 1e-6, "{losses:?}, {told}");
    assert_eq!(judged(3).3, losses);
}

/// The state_dict of each file, with the pipeline's numbers.
#[test]
fn weights_have_the_names_shapes_and_kinds_of_the_state_dict() {
    single_threaded();
    let python = python();
    let folder = tempfile::tempdir().unwrap();
    for name in ALL.into_iter().chain(["judged", "fixed"]) {
        let file = ExportedModel::open(path(name)).unwrap();
        let (fixture, mut pipe) = if name == "judged" {
            let (fixture, _, pipe, _) = judged(2);
            (fixture, pipe)
        } else {
            let fixture = Fixture::open(name);
            let mut pipe = fixture.builder(2).build().unwrap();
            let mut optimizer = Optimizer::new(AdamW::default());
            for _ in 0..2 {
                fixture.step(&mut pipe);
                optimizer.step(&mut pipe).unwrap();
            }
            (fixture, pipe)
        };
        let trained = weights(&mut pipe);
        let saved = folder.path().join(format!("{name}.weights.safetensors"));
        file.save_state_dict(&saved, &trained).unwrap();
        let mut read = Tensor::read_safetensors(&saved).unwrap();
        read.sort_by(|one, other| one.0.cmp(&other.0));
        let layout = read
            .iter()
            .map(|(name, own)| (name.clone(), own.size(), own.kind()));
        assert_eq!(
            layout.collect::<Vec<_>>(),
            file.state_dict_layout().unwrap()
        );
        for (own, tensor) in &trained {
            let (_, found) = read.iter().find(|(found, _)| found == own).unwrap();
            assert!(found.equal(tensor), "{name}: {own}");
        }
        // Training continues from the loaded weights.
        let mut again = fixture.builder(1).build().unwrap();
        let own: Vec<_> = trained.iter().map(|(own, _)| own.clone()).collect();
        let known = read.into_iter().filter(|(found, _)| own.contains(found));
        again.load(&known.collect::<Vec<_>>()).unwrap();
        let (here, there) = (loss(&fixture, &mut pipe), loss(&fixture, &mut again));
        assert_eq!(here, there, "{name}");
        if let Some(python) = &python {
            let output = Command::new(python)
                .args(["-W", "ignore"])
                .arg(script())
                .arg("check")
                .args([told_path(name), saved])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {said}");
            let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let told = told["loss"].as_f64().unwrap();
            assert!(
                (here - told).abs() < 1e-6 * told.abs().max(1.0),
                "{name}: {here}, {told}"
            );
        }
    }
}

/// The evaluation loss.
fn loss(fixture: &Fixture, pipe: &mut Pipeline) -> f64 {
    let outputs = pipe.forward_values(fixture.inputs()).unwrap();
    let first = outputs.get(0).unwrap();
    if fixture.name == "judged" {
        // One number per micro-batch.
        return first.mean(Kind::Double).double_value(&[]);
    }
    let y = fixture.told("y");
    first.mse_loss(y, Reduction::Mean).double_value(&[])
}

#[test]
fn what_the_program_does_not_use_is_as_it_was_and_tied_names_are_one() {
    single_threaded();
    let (_, file, mut pipe, _) = judged(4);
    let trained = weights(&mut pipe);
    for absent in ["spare.weight", "note", "third.weight", "scale"] {
        assert!(!trained.iter().any(|(name, _)| name == absent), "{absent}");
    }
    let all = file.state_dict(&trained).unwrap();
    let get = |name: &str| &all.iter().find(|(own, _)| own == name).unwrap().1;
    assert!(get("third.weight").equal(get("second.weight")));
    assert_near(
        get("note"),
        &Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0]).to_kind(Kind::Half),
        "note",
    );
    assert!(get("frozen").equal(&Tensor::ones_like(get("frozen"))));
    assert_eq!(get("norm.num_batches_tracked").int64_value(&[]), 2);
    assert!(!all.iter().any(|(name, _)| name == "scale"));
    let less: Vec<_> = trained
        .iter()
        .filter(|(name, _)| name != "head.bias")
        .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
        .collect();
    let error = file.state_dict(&less).unwrap_err().to_string();
    assert_eq!(error, "the weights have no `head.bias`");
}
