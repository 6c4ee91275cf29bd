//! Inputs that are not a trained model.

use std::fs;

use gpipe::checkpoint::Extras;
use gpipe::models::zoo::Zoo;
use gpipe::tch::Device;
use gpipe::{Optimizer, Pipeline, optim::AdamW};

use super::trained::{config, copy, pipeline, run, save};
use super::{gpipe, printed, refused};

const VERBS: [&str; 3] = ["generate --prompt C", "eval", "export -o out"];

#[test]
fn a_model_is_where_one_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("file"), "").unwrap();
    fs::create_dir(path.join("empty")).unwrap();
    fs::create_dir(path.join("fresh")).unwrap();
    fs::write(path.join("fresh/config.toml"), config("synthetic")).unwrap();
    let cases: [(&str, &[&str]); 9] = [
        (
            "",
            &["--run <DIR>", "--checkpoint <DIR>", "--weights <PATH>"],
        ),
        ("--run a --weights b", &["cannot be used with"]),
        ("--run nowhere", &["--run nowhere: there is no such folder"]),
        ("--run file", &["--run file: this is a file"]),
        ("--run empty", &["this is no run folder", "config.toml"]),
        ("--run fresh", &["the run has no checkpoint yet"]),
        (
            "--weights nowhere",
            &["--weights nowhere: there is no such file or folder"],
        ),
        (
            "--weights some-lab/Llama-1B",
            &["`hf download some-lab/Llama-1B --local-dir Llama-1B`"],
        ),
        (
            "--weights empty",
            &["--weights ", "there is no config.json"],
        ),
    ];
    for verb in VERBS {
        for (flags, wanted) in cases {
            refused(path, &format!("{verb} {flags}"), wanted);
        }
    }
    assert!(!path.join("out").exists());
}

#[test]
fn a_damaged_checkpoint_is_not_used() {
    let folder = copy();
    let shard = folder
        .path()
        .join("run/checkpoints/step-00000120/stage-0.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    for verb in VERBS {
        let output = gpipe(folder.path(), &format!("{verb} --run run"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("stage-0.safetensors: the checksum is wrong"),
            "{errors}"
        );
    }
}

/// The checkpoint has the characters, so the text may be missing.
#[test]
fn the_text_that_was_trained_on_is_not_needed_to_go_on() {
    let folder = copy();
    let gone = folder.path().join("gone.txt").display().to_string();
    let text = config(&gone);
    let file = folder.path().join("run/config.toml");
    fs::write(&file, &text).unwrap();
    printed(folder.path(), "generate --run run --prompt Call --tokens 3");

    // An old checkpoint may lack them; the text is read instead.
    let mut pipe = pipeline();
    let optimizer = Optimizer::new(AdamW::default());
    let extras = Extras::new(121).config(&text);
    save(&folder.path().join("run"), &mut pipe, &optimizer, extras);
    let go_on = "generate --run run --prompt Call --tokens 3";
    refused(
        folder.path(),
        go_on,
        &["what tokens stand for is not known", "gone.txt"],
    );
    refused(folder.path(), "eval --run run", &["gone.txt"]);
    fs::copy(run().join("text.txt"), &gone).unwrap();
    printed(folder.path(), go_on);
    fs::write(&gone, "abcdefghijklmnopqrstuvwxyz").unwrap();
    refused(
        folder.path(),
        go_on,
        &["26 distinct characters", "knows 14 tokens"],
    );
}

#[test]
fn models_without_text_have_nothing_to_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let sizes = ["inputs=4", "hidden=4", "depth=1", "outputs=2"];
    let spec = Zoo::builtin().spec("mlp", sizes).unwrap();
    let mut pipe = Pipeline::new(spec.build(), &[Device::Cpu], 1).unwrap();
    let text = "[model]\nname = \"mlp\"\ninputs = 4\nhidden = 4\ndepth = 1\noutputs = 2\n\
                [data]\npath = \"synthetic\"\n";
    let run = path.join("run");
    let extras = Extras::new(1).config(text);
    save(&run, &mut pipe, &Optimizer::new(AdamW::default()), extras);
    fs::write(run.join("config.toml"), text).unwrap();
    let wanted = ["`mlp` is no model of texts: it maps float32 [batch, 4]"];
    refused(path, "generate --run run --prompt C", &wanted);
    // The error is about the data, not the model.
    let wanted = [
        "it was trained on made-up data, of which none is held out; name other data with --data FILE",
    ];
    refused(path, "eval --run run", &wanted);

    // A model of tokens without meaning.
    let folder = copy();
    let run = folder.path().join("run");
    let extras = Extras::new(122).config(config("synthetic"));
    save(
        &run,
        &mut pipeline(),
        &Optimizer::new(AdamW::default()),
        extras,
    );
    let verb = "generate --prompt C --run run";
    refused(
        folder.path(),
        verb,
        &["not known: it was trained on made-up data"],
    );
}
