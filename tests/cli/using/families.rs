//! Models of every family that `--weights` takes give the results of `transformers`, at once and token by
//! token. `tests/fixtures/hugging_face/families.py` made the files.

use gpipe::Pipeline;
use gpipe::models::hugging_face::{self, Imported};
use gpipe::models::zoo::{Zoo, token_cross_entropy};
use gpipe::tch::{Device, Kind, Tensor};
use serde_json::Value;

use super::hugging_face::{fixture, json, tensors};

const FAMILIES: [&str; 10] = [
    "gpt2",
    "llama2",
    "llama3",
    "llama3-tied",
    "llama-biases",
    "smollm2",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen3",
];

fn read(name: &str) -> (Imported, Value) {
    let folder = fixture("numbers").join(name);
    let read = hugging_face::import(&Zoo::builtin(), &folder);
    let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
    (read, json(&folder.join("expected.json")))
}

fn pipeline(read: &Imported, stages: usize, micro: usize) -> Pipeline {
    let mut pipe = Pipeline::builder(read.spec.build())
        .devices(&vec![Device::Cpu; stages])
        .micro_batches(micro)
        .threads_per_stage(1)
        .build()
        .unwrap();
    pipe.load(&read.weights).unwrap();
    pipe
}

fn tokens(of: &Value) -> Tensor {
    let rows: Vec<Vec<i64>> = serde_json::from_value(of.clone()).unwrap();
    Tensor::from_slice2(&rows)
}

fn apart(one: &Tensor, other: &Tensor) -> f64 {
    let apart = one.to_kind(Kind::Double) - other.to_kind(Kind::Double);
    apart.abs().max().double_value(&[])
}

#[test]
fn every_family_has_the_logits_and_the_loss_of_transformers() {
    for name in FAMILIES {
        let (read, expected) = read(name);
        let tokens = tokens(&expected["tokens"]);
        let logits: Vec<f64> = serde_json::from_value(expected["logits"].clone()).unwrap();
        let loss = expected["loss"].as_f64().unwrap();
        for stages in [1, 2] {
            let ours = pipeline(&read, stages, 2).forward(&tokens).unwrap();
            let theirs = Tensor::from_slice(&logits).view_as(&ours);
            let size = theirs.abs().max().double_value(&[]);
            let apart = apart(&ours, &theirs);
            println!("{name}, {stages} stages: logits {apart:.1e} apart, of {size:.1}");
            assert!(apart <= 1e-6 * size.max(1.0), "{name}: {apart} of {size}");
            let last = tokens.size()[1] - 1;
            let (ours, targets) = (ours.narrow(1, 0, last), tokens.narrow(1, 1, last));
            let own = token_cross_entropy(&ours.contiguous(), &targets).unwrap();
            let own = own.double_value(&[]);
            assert!((own - loss).abs() <= 1e-6, "{name}: loss {own}, not {loss}");
        }
    }
}

/// Token by token, in pieces, and again from the middle: the outputs equal those of the whole.
#[test]
fn tokens_may_come_one_after_the_other() {
    for name in FAMILIES {
        let (read, expected) = read(name);
        assert!(read.spec.caches());
        let tokens = tokens(&expected["tokens"]);
        let time = tokens.size()[1];
        let whole = pipeline(&read, 1, 1).forward(&tokens).unwrap();
        let pieces: [&[i64]; 3] = [&[1; 32], &[5, 1, 1, 9, 16], &[32]];
        for pieces in pieces {
            let mut by_stages = Vec::new();
            for (stages, micro) in [(1, 1), (2, 1), (2, 2)] {
                let mut pipe = pipeline(&read, stages, micro);
                let mut past = 0;
                let mut outputs = Vec::new();
                for piece in pieces {
                    let new = tokens.narrow(1, past, *piece);
                    outputs.push(pipe.decode(new, past as usize).unwrap());
                    past += piece;
                }
                assert_eq!(past, time);
                let outputs = Tensor::cat(&outputs, 1);
                let apart = apart(&outputs, &whole);
                assert!(apart < 1e-5, "{name}, {pieces:?}: {apart}");
                // Back to the tenth token, whatever came after it.
                let again = pipe.decode(tokens.narrow(1, 10, 3), 10).unwrap();
                let same = self::apart(&again, &whole.narrow(1, 10, 3));
                assert!(same < 1e-5, "{name}: {same}");
                // A plain forward neither reads nor writes the cache.
                assert!(self::apart(&pipe.forward(&tokens).unwrap(), &whole) < 1e-5);
                by_stages.push((micro, outputs));
            }
            // The cut changes no bit.
            assert!(by_stages[0].1.equal(&by_stages[1].1), "{name}, {pieces:?}");
        }
    }
}

#[test]
fn what_is_not_cached_cannot_be_gone_on_with() {
    let (read, expected) = read("llama3");
    let tokens = tokens(&expected["tokens"]);
    let mut pipe = pipeline(&read, 2, 1);
    let none = pipe.decode(tokens.narrow(1, 4, 1), 4).unwrap_err();
    let none = format!("{:#}", anyhow_of(none));
    assert!(
        none.contains("4 tokens are to be cached, but none are"),
        "{none}"
    );
    let _ = pipe.decode(tokens.narrow(1, 0, 4), 0).unwrap();
    let few = format!(
        "{:#}",
        anyhow_of(pipe.decode(tokens.narrow(1, 5, 1), 5).unwrap_err())
    );
    assert!(
        few.contains("5 tokens are to be cached, but only 4 are"),
        "{few}"
    );
    let others = tokens.narrow(0, 0, 1).narrow(1, 4, 1);
    let others = format!("{:#}", anyhow_of(pipe.decode(others, 4).unwrap_err()));
    assert!(
        others.contains("2 sequences are cached, and 1 others go on"),
        "{others}"
    );
    let (read, _) = self::read("gpt2");
    let mut pipe = pipeline(&read, 1, 1);
    let _ = pipe.decode(tokens.narrow(1, 0, 32), 0).unwrap();
    let long = format!(
        "{:#}",
        anyhow_of(pipe.decode(tokens.narrow(1, 0, 1), 32).unwrap_err())
    );
    assert!(
        long.contains("33 tokens, but the context holds 32"),
        "{long}"
    );
}

fn anyhow_of(error: gpipe::Error) -> anyhow::Error {
    error.into()
}

/// Greedy decoding gives the tokens of transformers' `generate`.
#[test]
fn every_family_goes_on_as_in_transformers() {
    for name in FAMILIES {
        let (read, expected) = read(name);
        let greedy: Vec<i64> = serde_json::from_value(expected["greedy"].clone()).unwrap();
        let mut pipe = pipeline(&read, 2, 1);
        let mut own = greedy[..4].to_vec();
        let mut past = 0;
        while own.len() < greedy.len() {
            let new = Tensor::from_slice(&own[past..]).view([1, -1]);
            let logits = pipe.decode(new, past).unwrap();
            past = own.len();
            own.push(logits.select(1, -1).argmax(-1, false).int64_value(&[0]));
        }
        assert_eq!(own, greedy, "{name}");
    }
}

#[test]
fn every_family_is_written_as_it_was_read() {
    for name in FAMILIES {
        let (read, _) = read(name);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        let own = pipeline(&read, 2, 1).parameters().unwrap();
        hugging_face::export(out, &read.spec, &own, None).unwrap();
        let there = fixture("numbers").join(name);
        let file = "model.safetensors";
        assert!(
            tensors(&out.join(file)) == tensors(&there.join(file)),
            "{name}"
        );
        let again = hugging_face::import(&Zoo::builtin(), out).unwrap();
        assert_eq!(again.spec.settings(), read.spec.settings(), "{name}");
        let (ours, theirs) = (
            json(&out.join("config.json")),
            json(&there.join("config.json")),
        );
        // Fields that versions before 5 read.
        let old = ["torch_dtype", "rope_theta", "rope_scaling"];
        for (field, value) in ours.as_object().unwrap() {
            // A Mistral without a window is a Llama.
            let kind = ["architectures", "model_type", "attention_bias", "mlp_bias"];
            let other = name == "mistral" && kind.contains(&field.as_str())
                // Qwen 2 has this field only if it differs from the width's default.
                || name == "qwen2" && field == "head_dim";
            if !old.contains(&field.as_str()) && !other {
                assert_eq!(value, &theirs[field], "{name}: {field}");
            }
        }
    }
}

#[test]
fn a_choice_of_settings_that_transformers_has_not_is_not_written() {
    let zoo = Zoo::builtin();
    let sizes = ["layers=1", "vocab=11", "qk_norm=1", "window=3"];
    let spec = zoo.spec("llama", sizes).unwrap();
    let mut pipe = Pipeline::new(spec.build(), &[Device::Cpu], 1).unwrap();
    let weights = pipe.parameters().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let error = hugging_face::export(folder.path(), &spec, &weights, None).unwrap_err();
    assert!(
        error.to_string().contains("transformers has no model with"),
        "{error}"
    );
}
