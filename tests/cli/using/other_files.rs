//! Files and names of other tools, given where they do not fit: the message says what they are, and what to
//! do instead.

use std::fs;
use std::path::Path;

use gpipe::tch::Tensor;

use super::refused;
use crate::run::gpipe;

/// A zip archive of empty, stored entries.
fn archive(names: &[&str]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    let length = |name: &str| u16::try_from(name.len()).unwrap().to_le_bytes();
    for name in names {
        let at = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        bytes.extend(b"PK\x03\x04");
        bytes.extend([0; 22]);
        bytes.extend(length(name));
        bytes.extend([0; 2]);
        bytes.extend(name.as_bytes());
        directory.extend(b"PK\x01\x02");
        directory.extend([0; 24]);
        directory.extend(length(name));
        directory.extend([0; 12]);
        directory.extend(at);
        directory.extend(name.as_bytes());
    }
    let (start, size) = (bytes.len(), directory.len());
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0; 4]);
    bytes.extend([u16::try_from(names.len()).unwrap().to_le_bytes(); 2].concat());
    for number in [size, start] {
        bytes.extend(u32::try_from(number).unwrap().to_le_bytes());
    }
    bytes.extend([0; 2]);
    bytes
}

fn model(folder: &Path, wanted: &[&str]) {
    let train = "train --model model.pt2 --loss mse --data synthetic --steps 1";
    refused(folder, train, wanted);
}

#[test]
fn what_a_file_is_that_has_no_exported_program_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = folder.join("model.pt2");
    // The advice includes dynamic shapes: a program without them takes only one micro-batch size.
    let export = ["save(export(", "dynamic_shapes=({0: Dim.AUTO}"];
    let saved = ["m/data.pkl", "m/byteorder", "m/data/0", "m/version"];
    fs::write(&file, archive(&saved)).unwrap();
    let told = [
        "--model model.pt2: ",
        "was written by torch.save: it has weights",
    ];
    model(folder, &[&told[..], &export].concat());
    fs::write(&file, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
    model(folder, &[&["by an old torch.save"][..], &export].concat());
    // libtorch itself writes a TorchScript program.
    Tensor::from_slice(&[1.0_f32]).save(&file).unwrap();
    model(
        folder,
        &[&["TorchScript (torch.jit.save)"][..], &export].concat(),
    );
    // Its sources may be compressed.
    let mut script = archive(&["m/code/__torch__.py", "m/constants.pkl"]);
    let entry = script.windows(4).position(|own| own == b"PK\x01\x02");
    script[entry.unwrap() + 10] = 8;
    fs::write(&file, script).unwrap();
    model(folder, &["TorchScript (torch.jit.save)"]);
    let tensors = [("x", Tensor::from_slice(&[1.0_f32]))];
    Tensor::write_safetensors(&tensors, &file).unwrap();
    model(
        folder,
        &[&["safetensors", "--weights takes them"][..], &export].concat(),
    );
    fs::write(&file, "").unwrap();
    model(folder, &[&["is empty"][..], &export].concat());
    fs::write(&file, b"\x08\x08\x12\x07pytorch").unwrap();
    model(folder, &[&["ONNX", "not read"][..], &export].concat());
    fs::write(&file, archive(&["m/anything"])).unwrap();
    model(
        folder,
        &[&["has no `archive_format`"][..], &export].concat(),
    );
}

/// Regression test: a user gave the model's source, weights of `torch.save`, and folders for files.
#[test]
fn what_is_no_such_file_says_what_to_give_instead() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("cnn.py"), "import torch").unwrap();
    refused(
        folder,
        "train --model cnn.py",
        &["this is Python", "torch.export.save"],
    );
    fs::write(folder.join("weights.pt"), "PK").unwrap();
    let wanted = ["--weights weights.pt", "safetensors.torch.save_file"];
    refused(folder, "train --weights weights.pt", &wanted);
    fs::create_dir(folder.join("runs")).unwrap();
    let wanted = ["runs: is a folder: name a file in it"];
    refused(folder, "plan --devices 2 --profile runs", &wanted);
    refused(folder, "train --plan runs", &wanted);
    let planned = "plan --model-shape llama3-8b --cluster dgx-h100 --batch 128 -o plan.json";
    assert!(gpipe(folder, planned).status.success());
    refused(
        folder,
        "train --plan plan.json",
        &["it does not say which model", "else profile"],
    );
    let asked = gpipe(folder, "plan --model-shape llama3-8b");
    let asked = String::from_utf8(asked.stderr).unwrap();
    assert!(
        asked.contains("--cluster") && !asked.contains("--devices"),
        "{asked}"
    );
}

#[test]
fn a_name_on_a_hub_is_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let hub = |name: &str, wanted: &[&str]| {
        let verbs = [
            format!("train --weights {name} --steps 1"),
            format!("generate --weights {name} --prompt a"),
        ];
        for verb in verbs {
            refused(folder.path(), &verb, wanted);
        }
    };
    let none = "there is no such file or folder";
    hub("gpt2", &[none, "`hf download gpt2 --local-dir gpt2`"]);
    let wanted = "`hf download org/name-1.5b --local-dir name-1.5b`";
    hub("org/name-1.5b", &[none, "nothing is downloaded", wanted]);
}

#[test]
fn devices_of_other_spellings_are_told_with_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --steps 1 --devices";
    let wanted = ["`cpu:0`: the CPU has no number", "`cpu*4`"];
    refused(folder.path(), &format!("{train} cpu:0,cpu:1"), &wanted);
}

/// `CUDA_VISIBLE_DEVICES` hides GPUs of the test's machine.
#[test]
fn without_a_gpu_the_simulated_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for devices in ["cuda", "cuda:0"] {
        let args = ["train", "--steps", "1", "--devices", devices];
        let mut own = crate::run::command(folder.path(), &args);
        let own = own.env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap();
        super::refusal(&own, devices, &["device `cuda", "--simulate-gpus N"]);
    }
}

/// Regression test: `cuda` was resolved before the simulated GPUs were set up.
#[test]
fn all_simulated_gpus_are_what_cuda_means() {
    if !crate::simulated::built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let args = "--simulate-gpus 2 train --data synthetic --layers 2 --d-model 8 --heads 2 --seq 8 \
                --batch 4 --micro 2 --steps 1 --devices cuda --out run";
    crate::run::printed(folder.path(), args);
    let config = fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    assert!(
        config.contains("devices = [\"cuda:0\", \"cuda:1\"]"),
        "{config}"
    );
    // Errors after it are still reported.
    let wrong = "--simulate-gpus 2 train --steps 1 --devices cuda,gpu";
    refused(folder.path(), wrong, &["unknown device `gpu`"]);
}
