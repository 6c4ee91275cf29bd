//! Invalid models, sizes and data: exit code 2, and a helpful first line.

use super::gpipe;

use std::fs;

use serde_json::Value;

/// Flags, and the required parts of the message that refuses them.
type Case<'a> = (&'a str, &'a [&'a str]);

const BOTH: [Case<'static>; 24] = [
    (
        "--model gtp",
        &["no model and no file `gtp`", "did you mean `gpt`?"],
    ),
    // A name unlike any other gets no suggestion.
    (
        "--model tower",
        &["no model and no file `tower`; the verb `models` lists"],
    ),
    // Regression test: `lstm` and `f32` were suggested.
    (
        "--model nosuch.json",
        &["no model `nosuch`; there are mlp, gpt"],
    ),
    (
        "--model gpt --precision fp8",
        &["`fp8` is no precision; it must be one of f32, bf16, fp16"],
    ),
    (
        "--model gpt --precision bf61",
        &["`bf61` is no precision: did you mean `bf16`? It must be"],
    ),
    (
        "--model gpt --schedule nosuch",
        &["there is no schedule `nosuch`; there are gpipe, 1f1b"],
    ),
    (
        "--model meta-llama/Llama-3.2-1B",
        &[
            "there is no such file",
            "hf download meta-llama/Llama-3.2-1B",
            "--weights Llama-3.2-1B",
        ],
    ),
    (
        "--model gpt --data -",
        &["--data -:", "copy it into a file"],
    ),
    ("--model gpt --d-modle 3", &["'--d-modle'", "'--d-model'"]),
    (
        "--model mlp --d-model 3",
        &[
            "`mlp` has no --d-model",
            "did you mean `--hidden`?",
            "--depth",
            "is for gpt, llama",
        ],
    ),
    (
        "--model gpt --heads 3",
        &["d_model 128 is not a multiple of heads 3"],
    ),
    (
        "--model gpt --layers 0",
        &["--layers 0: must be a whole number from 1 to 4096"],
    ),
    (
        "--model gpt --layers two",
        &["--layers two: must be a number"],
    ),
    (
        "--model gpt --layers -1",
        &["--layers -1: must be a whole number"],
    ),
    (
        "--model gpt --dropout 1",
        &["--dropout 1: must be a number from 0 to below 1"],
    ),
    (
        "--model missing.json",
        &["--model missing.json: cannot be read"],
    ),
    ("--model .", &["--model .: this is a folder"]),
    (
        "--model text.txt",
        &[
            "--model text.txt: is no model description",
            "models NAME --json",
        ],
    ),
    (
        "--model other.json",
        &["--model other.json", "no model `gtp`: did you mean `gpt`?"],
    ),
    (
        "--model size.json",
        &[
            "--model size.json",
            "no size `layer`: did you mean `layers`?",
        ],
    ),
    (
        "--model vgg16 --data text.txt",
        &[
            "--data text.txt",
            "`vgg16` maps float32 [batch, 3, 224, 224]",
            "--data synthetic",
        ],
    ),
    (
        "--model transformer --data text.txt",
        &[
            "`transformer` sees the tokens after each one",
            "--data synthetic",
        ],
    ),
    (
        "--model gpt --vocab 3 --data text.txt",
        &[
            "5 distinct characters",
            "`gpt` knows 3 tokens",
            "use --vocab 5",
        ],
    ),
    (
        "--model unet --batch 4000000000",
        &["--batch 4000000000", "`unet`", "147456 values"],
    ),
];

const PROFILE: [Case<'static>; 5] = [
    (
        "--model mlp --depth 1 --devices cpu,cpu,cpu",
        &[
            "3 stages",
            "`mlp` has only 2 layers (hidden.0 and head)",
            "or --depth 2",
        ],
    ),
    (
        "--model gpt --schedule gpipe --chunks 2",
        &["no schedule exists", "one chunk per device"],
    ),
    (
        "--model gpt --schedule v-half --chunks 3",
        &["no schedule exists", "two chunks per device"],
    ),
    ("--model gpt --memory 1GiB,1GiB,1GiB", &["memory"]),
    ("", &["--model"]),
];

const TRAIN: [Case<'static>; 7] = [
    (
        "--model lstm --plan plan.json",
        &["it is for the model `mlp`, but this is `lstm`"],
    ),
    // Regression test: only the number of layers was compared.
    (
        "--model mlp --plan plan.json --depth 3 --hidden 16 --inputs 9",
        &["it is for `mlp` with inputs=8, hidden=8, not 9, 16: use --inputs 8 --hidden 8, or"],
    ),
    (
        "--model lstm --plan old.json",
        &[
            "for a model of 4 layers, but `lstm` has 6 layers",
            "use --layers 2",
        ],
    ),
    (
        "--model vgg16 --plan old.json",
        &[
            "for a model of 4 layers",
            "name the model that was profiled",
        ],
    ),
    (
        "--model unet --depth 1 --convolutions 1 --devices cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu",
        &["9 stages", "`unet` has only", "or --"],
    ),
    (
        "--model mlp --balance 3,4",
        &["--balance adds up to 7 layers", "`mlp` has 9 layers"],
    ),
    (
        "--image 32",
        &["`gpt` has no --image", "--image is for vgg16, resnet101"],
    ),
];

#[track_caller]
fn all_refused(verb: &str, cases: &[Case<'_>]) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("text.txt", &"abcd ".repeat(500));
    write("other.json", r#"{"name": "gtp", "settings": {}}"#);
    write("nosuch.json", r#"{"name": "nosuch", "settings": {}}"#);
    write("size.json", r#"{"name": "gpt", "settings": {"layer": 2}}"#);
    let mlp = "profile --model mlp --depth 3 --hidden 8 --inputs 8 --quick --plan plan.json";
    let args: Vec<&str> = mlp.split_whitespace().collect();
    assert!(gpipe(folder.path(), &args).status.success());
    // Like plans of versions that did not record the model.
    let plan = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    let mut plan: Value = serde_json::from_str(&plan).unwrap();
    plan.as_object_mut().unwrap().remove("model").unwrap();
    write("old.json", &plan.to_string());
    for (flags, wanted) in cases {
        let args: Vec<&str> = [verb].into_iter().chain(flags.split_whitespace()).collect();
        let output = gpipe(folder.path(), &args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(output.stdout.is_empty());
        assert!(errors.starts_with("error: "), "{args:?}: {errors}");
        for part in *wanted {
            assert!(
                errors.contains(part),
                "{args:?}: `{errors}` does not say `{part}`"
            );
        }
        assert!(!errors.contains("measuring"), "{args:?}: {errors}");
    }
    assert!(
        !folder.path().join("runs").exists(),
        "wrong use leaves nothing behind"
    );
}

#[test]
fn profile_refuses_what_cannot_be_before_it_measures() {
    all_refused("profile", &BOTH);
    all_refused("profile", &PROFILE);
}

#[test]
fn train_refuses_what_cannot_be() {
    all_refused("train", &BOTH);
    all_refused("train", &TRAIN);
}

/// A system without free memory ends programs silently.
#[cfg(target_os = "linux")]
#[test]
fn a_model_that_memory_cannot_hold_is_refused() {
    let model = "--model llama3-70b --layers 4096 --batch 1";
    let profile = [
        "`llama3-70b` need ",
        "are free: --low-memory has one layer at a time",
    ];
    all_refused("profile", &[(model, &profile)]);
    let train = [
        "and the optimizer of `llama3-70b` need ",
        "take smaller sizes",
    ];
    all_refused("train", &[(&format!("{model} --micro 1"), &train)]);
    // Regression test: its weights are small, but its first step was killed.
    let long = "--model gpt --layers 96 --context 1000000 --batch 32 --micro 4";
    let activations = [
        "the activations of `gpt` for 8 sequences of 1000000 tokens, a micro-batch, need ",
        "take a smaller --context",
    ];
    all_refused("train", &[(long, &activations)]);
}
