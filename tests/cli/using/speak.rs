//! Models with their own tokenizer: text in, text out, and back to `transformers`, without Python in between.
//! `tests/fixtures/hugging_face/families.py` made the models, and checks the files written here if there is a
//! Python with `transformers`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpipe::checkpoint::Checkpoint;
use gpipe::data::{TextStream, Tokenizer};
use gpipe::models::hugging_face;
use gpipe::models::zoo::Zoo;
use gpipe::tch::Tensor;
use serde_json::Value;

use super::hugging_face::{copy, fixture, json};
use super::{gpipe, printed, refusal, refused};
use crate::run::config;

const MODELS: [&str; 3] = ["gpt2", "llama3-tied", "qwen3"];

fn speaking(name: &str) -> PathBuf {
    fixture("speaking").join(name)
}

fn text() -> PathBuf {
    speaking("text.txt")
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The named Python, or the installed one, if it has `transformers`.
fn python() -> Option<String> {
    let named = std::env::var("TRANSFORMERS_PYTHON");
    let python = named.unwrap_or_else(|_| "python3".to_owned());
    let imported = Command::new(&python)
        .args(["-c", "import transformers, torch"])
        .output();
    let found = imported.is_ok_and(|output| output.status.success());
    if !found {
        println!(
            "NOT CHECKED: {python} has no transformers; TRANSFORMERS_PYTHON names another one"
        );
    }
    found.then_some(python)
}

#[test]
fn the_loss_of_a_text_is_that_of_transformers() {
    let here = tempfile::tempdir().unwrap();
    for name in MODELS {
        let expected = json(&speaking(name).join("expected.json"));
        let ids = expected["ids"].as_array().unwrap().len();
        for devices in ["cpu", "cpu,cpu"] {
            let weights = speaking(name).display().to_string();
            let data = text().display().to_string();
            let args = [
                "eval",
                "--weights",
                &weights,
                "--data",
                &data,
                "--devices",
                devices,
                "--json",
            ];
            let told = read(&printed(here.path(), &args));
            assert_eq!(
                (&told["unit"], &told["count"]),
                (&"token".into(), &(ids - 1).into())
            );
            let (ours, theirs) = (told["loss"].as_f64(), expected["loss"].as_f64());
            let apart = (ours.unwrap() - theirs.unwrap()).abs();
            assert!(apart < 1e-6, "{name}: {ours:?}, not {theirs:?}");
        }
    }
}

/// `llama3-tied` ends its text with the end token, the others at the number of tokens.
#[test]
fn a_prompt_is_gone_on_with_as_in_transformers() {
    let here = tempfile::tempdir().unwrap();
    for name in MODELS {
        let expected = &json(&speaking(name).join("expected.json"))["greedy"];
        let (prompt, wanted) = (expected["prompt"].as_str().unwrap(), &expected["text"]);
        for devices in ["cpu", "cpu,cpu"] {
            let weights = speaking(name).display().to_string();
            let args = [
                "generate",
                "--weights",
                &weights,
                "--prompt",
                prompt,
                "--tokens",
                "20",
                "--temperature",
                "0",
                "--devices",
                devices,
            ];
            let told = read(&printed(here.path(), &[&args[..], &["--json"]].concat()));
            assert_eq!(&told["text"], wanted, "{name}");
            let ends = name == "llama3-tied";
            assert_eq!(told["ended"], ends, "{name}");
            assert_eq!(told["tokens"].as_u64().unwrap() < 20, ends, "{name}");
            let streamed = printed(here.path(), &args);
            assert_eq!(streamed, format!("{prompt}{}\n", wanted.as_str().unwrap()));
        }
    }
}

/// Train, generate, export: transformers loads the resulting model.
#[test]
fn three_commands_make_a_model_that_transformers_loads() {
    let python = python();
    for name in MODELS {
        let here = tempfile::tempdir().unwrap();
        let here = here.path();
        let source = copy(&format!("speaking/{name}"));
        let (weights, data) = (
            source.path().display().to_string(),
            text().display().to_string(),
        );
        let args = [
            "train",
            "--weights",
            &weights,
            "--data",
            &data,
            "--steps",
            "3",
            "--batch",
            "4",
            "--micro",
            "2",
            "--lr",
            "1e-3",
            "--out",
            "run",
        ];
        let told = printed(here, &args);
        assert!(told.contains(" per token"), "{told}");
        assert!(told.contains("sample: the held-out text begins"), "{told}");
        // The checkpoint has all that is needed.
        drop(source);
        let prompt = "The café of";
        let go_on = |place: [&str; 2]| {
            let rest = [
                "--prompt",
                prompt,
                "--tokens",
                "20",
                "--temperature",
                "0",
                "--json",
            ];
            let told = printed(here, &[&["generate"][..], &place, &rest].concat());
            read(&told)["text"].as_str().unwrap().to_owned()
        };
        let written = go_on(["--run", "run"]);
        printed(here, "export --run run -o exported");
        assert_eq!(go_on(["--weights", "exported"]), written);

        let out = here.join("exported");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            let (ours, theirs) = (
                fs::read(out.join(file)),
                fs::read(speaking(name).join(file)),
            );
            assert_eq!(ours.unwrap(), theirs.unwrap(), "{name}: {file}");
        }
        let (ours, theirs) = (
            json(&out.join("config.json")),
            json(&speaking(name).join("config.json")),
        );
        for field in [
            "bos_token_id",
            "eos_token_id",
            "model_type",
            "tie_word_embeddings",
        ] {
            assert_eq!(ours[field], theirs[field], "{name}: {field}");
        }
        let model = hugging_face::import(&Zoo::builtin(), &out).unwrap();
        let trained = Checkpoint::newest(here.join("run/checkpoints")).unwrap();
        let trained = trained.weights().unwrap();
        assert_eq!(model.weights.len(), trained.len());
        for (name, tensor) in &model.weights {
            let (_, own) = trained.iter().find(|(own, _)| own == name).unwrap();
            assert!(tensor.equal(own), "{name}");
        }
        if let Some(python) = &python {
            let eval = format!("eval --run run --data {data} --json");
            let loss = read(&printed(here, &eval))["loss"].as_f64().unwrap();
            checked(
                python,
                &out,
                &ours["architectures"][0],
                loss,
                (prompt, &written),
            );
        }
        // The run resumes with its own tokenizer.
        printed(here, "train --resume run --steps 4 --quiet");
        go_on(["--run", "run"]);
    }
}

/// Checks that transformers loads a folder, with the same loss and the same text.
fn checked(python: &str, folder: &Path, class: &Value, loss: f64, (prompt, text): (&str, &str)) {
    let script = fixture("families.py");
    let output = Command::new(python)
        .arg(script)
        .arg("check")
        .args([folder, &self::text()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let told = read(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(&told["class"], class);
    assert!(
        (told["loss"].as_f64().unwrap() - loss).abs() < 1e-6,
        "{told}: {loss}"
    );
    assert_eq!(
        (&told["greedy"]["prompt"], &told["greedy"]["text"]),
        (&prompt.into(), &text.into())
    );
}

/// A model of custom sizes has the tokenizer's vocabulary.
#[test]
fn a_new_model_takes_the_tokenizer_that_is_named() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let (tokenizer, data) = (
        speaking("gpt2/tokenizer.json").display().to_string(),
        text().display().to_string(),
    );
    let train = format!(
        "train --model llama --layers 1 --d-model 8 --heads 2 --kv-heads 1 --head-dim 6 --d-ff 8 \
         --qk-norm 1 --context 16 --tokenizer {tokenizer} --data {data} --steps 1 --batch 2 --micro 1 \
         --out run"
    );
    printed(here, &train);
    printed(here, "export --run run -o exported");
    let config = json(&here.join("exported/config.json"));
    let wanted = [
        ("model_type", Value::from("qwen3")),
        ("vocab_size", 320.into()),
        ("head_dim", 6.into()),
        ("eos_token_id", 0.into()),
    ];
    for (field, value) in wanted {
        assert_eq!(config[field], value, "{field}");
    }
    printed(
        here,
        &[
            "generate", "--run", "run", "--prompt", "鯨", "--tokens", "3",
        ],
    );
    // A tokenizer other than the run's is refused.
    let other = speaking("llama3-tied").display().to_string();
    let resume = format!("train --resume run --steps 2 --tokenizer {other}");
    refused(here, &resume, &["tokenizer"]);
}

/// Rotary positions have no table, and of learned positions the first rows are used, so a part of the context
/// is enough. Regression test: GPT-2's were refused.
#[test]
fn weights_are_trained_on_shorter_sequences_and_go_back_whole() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let data = text().display().to_string();
    let with = |name: &str| {
        let weights = speaking(name).display().to_string();
        format!(
            "train --weights {weights} --data {data} --context 8 --steps 1 --batch 2 --micro 1 --out {name}"
        )
    };
    printed(here, &with("qwen3"));
    printed(here, &with("gpt2"));
    let saved = config(here, "gpt2");
    assert_eq!(saved["model"]["context"].as_integer(), Some(8));
    printed(here, "train --resume gpt2 --steps 2");
    printed(here, "export --run gpt2 -o back");
    let back = json(&here.join("back/config.json"));
    assert_eq!(back["n_positions"], 32);
    let positions = |folder: &Path| {
        let all = Tensor::read_safetensors(folder.join("model.safetensors")).unwrap();
        let mut all = all.into_iter();
        all.find(|(name, _)| name.ends_with("wpe.weight"))
            .unwrap()
            .1
    };
    let (before, after) = (positions(&speaking("gpt2")), positions(&here.join("back")));
    assert_eq!(before.size(), after.size());
    assert!(
        before
            .get(7)
            .ne_tensor(&after.get(7))
            .any()
            .int64_value(&[])
            == 1
    );
    let long = with("gpt2")
        .replace("--context 8 ", "--context 33 ")
        .replace("--out gpt2", "--out long");
    refused(here, &long, &["context=32, not 33", "leave it out"]);
    let weights = speaking("gpt2").display().to_string();
    let eval = format!("eval --weights {weights} --data {data} --context 8 --json");
    let short = read(&printed(here, &eval))["loss"].as_f64().unwrap();
    let long = json(&speaking("gpt2").join("expected.json"))["loss"]
        .as_f64()
        .unwrap();
    assert!(short > long, "{short}, {long}");
}

#[test]
fn a_wrong_or_missing_tokenizer_is_told_with_what_to_do() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let (none, small) = (fixture("llama").display().to_string(), fixture("llama"));
    let own = speaking("gpt2").display().to_string();
    let other = speaking("llama3-tied").display().to_string();
    let data = text().display().to_string();
    let cases: [(&str, &[&str]); 7] = [
        (
            &format!("generate --weights {none} --prompt a"),
            &["has no tokenizer.json beside it", "--tokenizer"],
        ),
        (
            &format!("generate --weights {none} --prompt a --tokenizer {own}"),
            &["the tokenizer has 320 tokens, but the model knows 11: it is that of another model"],
        ),
        (
            &format!("train --weights {none} --data {data}"),
            &["--data", "distinct characters"],
        ),
        (
            &format!("train --weights {own} --data {data} --tokenizer {other}"),
            &["the weights have another one beside them", "leave it out"],
        ),
        (
            &format!("train --model gpt --vocab 300 --data {data} --tokenizer {own}"),
            &["the tokenizer has 320 tokens, but `gpt` knows 300"],
        ),
        (
            &format!(
                "eval --weights {own} --data {data} --tokenizer {}",
                small.display()
            ),
            &["--tokenizer ", "there is no tokenizer.json"],
        ),
        (
            &format!(
                "train --data {data} --tokenizer {}/config.json",
                small.display()
            ),
            &["config.json: is no tokenizer.json"],
        ),
    ];
    for (args, wanted) in cases {
        refused(here, args, wanted);
    }
    // A damaged file, and one of an unknown kind.
    let folder = copy("speaking/gpt2");
    let file = folder.path().join("tokenizer.json");
    let shown = folder.path().display().to_string();
    for (text, wanted) in [
        ("{", "tokenizer.json: is no JSON"),
        (
            "{\"model\": {\"type\": \"Runes\"}}",
            "tokenizer.json is none that can be read",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let args = ["generate", "--weights", &shown, "--prompt", "a"];
        refusal(&gpipe(here, &args), text, &[wanted]);
    }
}

/// Each piece is whole characters, and together they are the text; an incomplete last character gives a
/// replacement character.
#[test]
fn text_streams_in_whole_characters() {
    for (name, text) in [
        ("gpt2", "a 鯨🐋, the café\u{301}\n\n  of 🏳️‍🌈!"),
        ("llama3-tied", "a 鯨🐋, the café\u{301}\n\n  of 🏳️‍🌈!"),
    ] {
        let tokenizer = Tokenizer::read(&speaking(name).join("tokenizer.json")).unwrap();
        let all = tokenizer.encode(text).unwrap();
        assert!(all.len() > text.chars().count() / 2);
        for begin in [0, 1, 2] {
            let before = tokenizer.decode(&all[..begin]).unwrap();
            let mut stream = TextStream::new(&tokenizer, &all[..begin]);
            let mut read = String::new();
            for &token in &all[begin..] {
                let piece = stream.push(token).unwrap();
                assert!(!piece.contains('\u{fffd}'), "{name}: {piece:?}");
                read += &piece;
            }
            assert_eq!(stream.rest().unwrap(), "");
            assert_eq!(before + &read, text, "{name}, from {begin}");
        }
        let whale = tokenizer.encode("鯨").unwrap();
        let mut stream = TextStream::new(&tokenizer, &[]);
        let last = whale.len() - 1;
        for &token in &whale[..last] {
            assert!(stream.push(token).unwrap().trim().is_empty());
        }
        let rest = stream.rest().unwrap();
        assert!(
            !rest.is_empty() && rest.trim().chars().all(|own| own == '\u{fffd}'),
            "{rest:?}"
        );
    }
}
