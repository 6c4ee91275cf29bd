//! Weights are exchanged with `transformers` without changing a bit.
//!
//! `tests/fixtures/hugging_face/make.py` made the files read here, and checks the files written here with
//! `transformers` itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpipe::models::hugging_face::{self, HuggingFaceError};
use gpipe::models::zoo::{ModelSpec, Zoo};
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{Optimizer, Pipeline, optim::AdamW};
use safetensors::SafeTensors;
use serde_json::Value;

pub(super) fn fixture(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/fixtures/hugging_face").join(name)
}

pub(super) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Names, shapes and bytes of a file's tensors.
pub(super) type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub(super) fn tensors(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all = file.tensors().into_iter();
    all.map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec())))
        .collect()
}

fn pipeline(spec: &ModelSpec, stages: usize) -> Pipeline {
    Pipeline::builder(spec.build())
        .devices(&vec![Device::Cpu; stages])
        .micro_batches(2)
        .threads_per_stage(1)
        .build()
        .unwrap()
}

fn error(path: &Path) -> String {
    let error: HuggingFaceError = hugging_face::import(&Zoo::builtin(), path).unwrap_err();
    error.to_string()
}

/// A copy of a fixture that a test may modify.
pub(super) fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

/// Rewrites a file of JSON.
fn change(path: &Path, with: impl FnOnce(&mut Value)) {
    let mut value = json(path);
    with(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn what_transformers_wrote_computes_what_it_computes_there() {
    for name in ["gpt2", "gpt2-old", "llama", "llama-sharded"] {
        let read = hugging_face::import(&Zoo::builtin(), &fixture(name)).unwrap();
        let expected = json(&fixture(name).join("expected.json"));
        let tokens: Vec<Vec<i64>> = serde_json::from_value(expected["tokens"].clone()).unwrap();
        let logits: Vec<f64> = serde_json::from_value(expected["logits"].clone()).unwrap();
        let tokens = Tensor::from_slice2(&tokens);
        for stages in [1, 3] {
            let mut pipe = pipeline(&read.spec, stages);
            pipe.load(&read.weights).unwrap();
            let ours = pipe.forward(&tokens).unwrap().to_kind(Kind::Double);
            let theirs = Tensor::from_slice(&logits).view_as(&ours);
            let apart = (&ours - &theirs).abs().max().double_value(&[]);
            let size = theirs.abs().max().double_value(&[]);
            // Sums in single precision, in another order on another machine.
            assert!(apart < 1e-5 * size, "{name}: {apart} of {size}");
        }
    }
}

#[test]
fn the_way_there_and_back_changes_no_bit() {
    for name in ["gpt2", "llama"] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("deep/er");
        let zoo = Zoo::builtin();
        let read = hugging_face::import(&zoo, &fixture(name)).unwrap();
        // Loaded into a pipeline, as in training.
        let mut pipe = pipeline(&read.spec, 2);
        pipe.load(&read.weights).unwrap();
        let own = pipe.parameters().unwrap();
        let written = hugging_face::export(&out, &read.spec, &own, None).unwrap();
        assert_eq!(
            written,
            [out.join("model.safetensors"), out.join("config.json")]
        );
        // The very tensors that transformers wrote.
        let original = tensors(&fixture(name).join("model.safetensors"));
        assert!(tensors(&written[0]) == original, "{name}");
        let again = hugging_face::import(&zoo, &out).unwrap();
        assert_eq!(again.spec.settings(), read.spec.settings());
        assert_eq!(again.weights.len(), own.len());
        for (name, tensor) in &again.weights {
            let (_, own) = own.iter().find(|(own, _)| own == name).unwrap();
            assert!(tensor.equal(own), "{name}");
        }
    }
}

/// Regression test: names with the prefixes of `DataParallel` and `torch.compile` were refused as another
/// model's.
#[test]
fn weights_of_a_wrapper_are_taken_without_what_it_puts_before_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, prefix) in [("gpt2", "module."), ("llama", "_orig_mod.module.")] {
        let own = fixture(name);
        let read = Tensor::read_safetensors(own.join("model.safetensors")).unwrap();
        let wrapped = folder.path().join(name);
        fs::create_dir(&wrapped).unwrap();
        fs::copy(own.join("config.json"), wrapped.join("config.json")).unwrap();
        let longer: Vec<(String, Tensor)> = read
            .into_iter()
            .map(|(name, tensor)| (format!("{prefix}{name}"), tensor))
            .collect();
        Tensor::write_safetensors(&longer, wrapped.join("model.safetensors")).unwrap();
        let zoo = Zoo::builtin();
        let plain = hugging_face::import(&zoo, &own).unwrap();
        let taken = hugging_face::import(&zoo, &wrapped).unwrap();
        assert_eq!(plain.prefix, None);
        assert_eq!(taken.prefix.as_deref(), Some(prefix));
        for ((name, one), (_, other)) in plain.weights.iter().zip(&taken.weights) {
            assert!(one.equal(other), "{name}");
        }
        let train = format!(
            "train --weights {name} --data synthetic --batch 2 --micro 1 --steps 1 --out run-{name}"
        );
        let output = crate::run::gpipe(folder.path(), &train);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let note = format!("note: --weights {name}: every name begins with `{prefix}`");
        assert_eq!(errors.matches(&note).count(), 1, "{errors}");
    }
}

/// Every field written here has the same value in transformers' file, or is its default.
#[test]
fn the_config_says_what_transformers_config_says() {
    for name in ["gpt2", "llama"] {
        let folder = tempfile::tempdir().unwrap();
        let read = hugging_face::import(&Zoo::builtin(), &fixture(name)).unwrap();
        hugging_face::export(folder.path(), &read.spec, &read.weights, None).unwrap();
        let ours = json(&folder.path().join("config.json"));
        let theirs = json(&fixture(name).join("config.json"));
        let old = ["torch_dtype", "rope_theta", "bos_token_id", "eos_token_id"];
        for (field, value) in ours.as_object().unwrap() {
            if !old.contains(&field.as_str()) {
                assert_eq!(value, &theirs[field], "{name}: {field}");
            }
        }
        let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        // transformers refuses a file without this field.
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    }
}

#[test]
fn a_file_can_be_named_and_what_stood_there_is_replaced_unless_it_is_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let zoo = Zoo::builtin();
    let file = folder.path().join("weights.safetensors");
    let gpt2 = hugging_face::import(&zoo, &fixture("gpt2")).unwrap();
    for _ in 0..2 {
        let written = hugging_face::export(&file, &gpt2.spec, &gpt2.weights, None).unwrap();
        assert_eq!(written[0], file);
    }
    let own = hugging_face::weights(&file, &gpt2.spec).unwrap();
    assert_eq!(own.len(), gpt2.weights.len());
    let by_file = hugging_face::import(&zoo, &file).unwrap();
    assert_eq!(by_file.spec.settings(), gpt2.spec.settings());

    let llama = hugging_face::import(&zoo, &fixture("llama")).unwrap();
    let before = fs::read(&file).unwrap();
    let error = hugging_face::export(&file, &llama.spec, &llama.weights, None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("config.json: another one is there"),
        "{error}"
    );
    assert_eq!(fs::read(&file).unwrap(), before);
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 2, "nothing temporary is left");
}

#[test]
fn characters_travel_as_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let zoo = Zoo::builtin();
    let read = hugging_face::import(&zoo, &fixture("gpt2")).unwrap();
    assert_eq!(read.vocabulary, None);
    let characters: Vec<char> = "\n !Cael鯨m\"\\".chars().collect();
    let all = Some(characters.as_slice());
    hugging_face::export(folder.path(), &read.spec, &read.weights, all).unwrap();
    let again = hugging_face::import(&zoo, folder.path()).unwrap();
    assert_eq!(again.vocabulary, Some(characters));
}

#[test]
fn only_models_that_transformers_has_are_written_and_whole_ones() {
    let folder = tempfile::tempdir().unwrap();
    let zoo = Zoo::builtin();
    let mlp = zoo.spec("mlp", [""; 0]).unwrap();
    let error = hugging_face::export(folder.path(), &mlp, &[], None).unwrap_err();
    assert!(error.to_string().contains("not for `mlp`"), "{error}");
    let mut read = hugging_face::import(&zoo, &fixture("llama")).unwrap();
    read.weights.retain(|(name, _)| name != "norm.weight");
    let error = hugging_face::export(folder.path(), &read.spec, &read.weights, None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "there is no tensor `norm.weight`"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A copy of the fixture with tied embedding and projection: the projection's own name has the result of
/// `head`, or is absent.
fn tied_llama(head: impl Fn(&[u8]) -> Option<Vec<u8>>) -> tempfile::TempDir {
    let folder = copy("llama");
    let file = folder.path().join("model.safetensors");
    let mut all = tensors(&file);
    let (shape, embedding) = all["model.embed_tokens.weight"].clone();
    all.remove("lm_head.weight");
    if let Some(head) = head(&embedding) {
        all.insert("lm_head.weight".to_owned(), (shape, head));
    }
    let views = all.iter().map(|(name, (shape, bytes))| {
        let kind = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(kind, shape.clone(), bytes);
        (name.clone(), view.unwrap())
    });
    safetensors::serialize_to_file(views, None, &file).unwrap();
    change(&folder.path().join("config.json"), |config| {
        config["tie_word_embeddings"] = true.into()
    });
    folder
}

fn named<'a>(list: &'a [(String, Tensor)], name: &str) -> Option<&'a Tensor> {
    list.iter().find(|(own, _)| own == name).map(|(_, own)| own)
}

/// Regression test: the projection became a copy of the embedding, so the trained and written model had two
/// different tables.
#[test]
fn a_tied_llama_stays_tied_when_it_is_trained_and_written() {
    let zoo = Zoo::builtin();
    let folder = tied_llama(|_| None);
    let read = hugging_face::import(&zoo, folder.path()).unwrap();
    assert!(read.spec.settings().is_on("tied"));
    assert!(named(&read.weights, "lm_head.weight").is_none());
    let mut trained = Vec::new();
    for stages in [1, 3] {
        let mut pipe = pipeline(&read.spec, stages);
        pipe.load(&read.weights).unwrap();
        let tokens = Tensor::from_slice(&[1_i64, 4, 2, 3, 0, 1]).view([2, 3]);
        let before = pipe.forward(&tokens).unwrap();
        pipe.train_step(&tokens, &tokens, read.spec.loss()).unwrap();
        Optimizer::new(AdamW::default()).step(&mut pipe).unwrap();
        assert!(!pipe.forward(&tokens).unwrap().equal(&before));
        let own = pipe.parameters().unwrap();
        assert!(named(&own, "lm_head.weight").is_none(), "one parameter");
        trained.push(own);

        let out = tempfile::tempdir().unwrap();
        let written = hugging_face::export(out.path(), &read.spec, &trained[0], None).unwrap();
        assert!(!tensors(&written[0]).contains_key("lm_head.weight"));
        assert_eq!(json(&written[1])["tie_word_embeddings"], Value::Bool(true));
        let again = hugging_face::import(&zoo, out.path()).unwrap();
        assert_eq!(again.spec.settings(), read.spec.settings());
        for (name, tensor) in &again.weights {
            assert!(tensor.equal(named(&trained[0], name).unwrap()), "{name}");
        }
    }
    for (name, tensor) in &trained[0] {
        assert!(tensor.equal(named(&trained[1], name).unwrap()), "{name}");
    }
}

#[test]
fn a_tied_llama_may_have_its_projection_in_the_file_if_it_is_the_embedding() {
    let zoo = Zoo::builtin();
    let same = tied_llama(|embedding| Some(embedding.to_vec()));
    let read = hugging_face::import(&zoo, same.path()).unwrap();
    assert!(named(&read.weights, "lm_head.weight").is_none());
    let other = tied_llama(|embedding| Some(embedding.iter().map(|byte| byte ^ 1).collect()));
    let said = error(other.path());
    assert!(
        said.contains("no place for `lm_head.weight`: it differs from the embedding"),
        "{said}"
    );
    // An untied model needs a separate projection.
    let without = tied_llama(|_| None);
    change(&without.path().join("config.json"), |config| {
        config["tie_word_embeddings"] = false.into()
    });
    let said = error(without.path());
    assert!(
        said.contains("there is no tensor `lm_head.weight` in "),
        "{said}"
    );
}

#[test]
fn what_is_wrong_is_said_with_file_and_tensor() {
    let nowhere = fixture("nowhere");
    assert!(error(&nowhere).contains("nowhere: there is no such file or folder"));
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path();
    assert!(error(own).contains("there is no config.json"));
    fs::write(own.join("config.json"), "{").unwrap();
    assert!(error(own).contains("config.json: is no JSON"));
    fs::write(
        own.join("config.json"),
        "{\"model_type\":\"gpt2\",\"n_layer\":0}",
    )
    .unwrap();
    assert!(error(own).contains("layers=0"));
    fs::write(own.join("config.json"), "{\"model_type\":\"bert\"}").unwrap();
    assert!(error(own).contains("`model_type` is \"bert\""));
    fs::copy(fixture("gpt2/config.json"), own.join("config.json")).unwrap();
    assert!(error(own).contains("neither model.safetensors nor"));
    let index = own.join("model.safetensors.index.json");
    fs::write(
        &index,
        r#"{"weight_map":{"a":"../gpt2/model.safetensors"}}"#,
    )
    .unwrap();
    assert!(error(own).contains("outside of the folder"));
    fs::write(&index, "{}").unwrap();
    assert!(error(own).contains("has no `weight_map`"));

    // Sizes that differ from the weights'.
    let folder = copy("gpt2");
    change(&folder.path().join("config.json"), |config| {
        config["n_positions"] = 13.into()
    });
    let shape = "`transformer.wpe.weight` has shape [12, 8], but the model's sizes make it [13, 8]";
    assert_eq!(error(folder.path()), shape);
    let folder = copy("gpt2");
    change(&folder.path().join("config.json"), |config| {
        config["n_layer"] = 1.into()
    });
    assert!(error(folder.path()).contains("no place for `transformer.h.1."));
    let folder = copy("llama-sharded");
    fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    assert!(error(folder.path()).contains("model-00002-of-00002.safetensors: cannot be read"));
}

/// Every prefix of a file, and every changed byte of its header: an error, not a panic.
#[test]
fn a_damaged_file_is_found_or_harmless() {
    let folder = copy("gpt2");
    let file = folder.path().join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    for length in (0..whole.len()).step_by(487) {
        fs::write(&file, &whole[..length]).unwrap();
        let error = error(folder.path());
        assert!(error.contains("model.safetensors: "), "{length}: {error}");
    }
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let spec = hugging_face::import(&Zoo::builtin(), &fixture("gpt2"))
        .unwrap()
        .spec;
    for place in (0..header).step_by(7) {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x15;
        fs::write(&file, damaged).unwrap();
        // If it can still be read (`pt` has changed), it is complete.
        if let Ok(weights) = hugging_face::weights(&file, &spec) {
            assert_eq!(weights.len(), 28, "{place}");
        }
    }
}
