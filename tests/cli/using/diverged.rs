//! A model whose weights are NaN.

use gpipe::checkpoint::{Checkpoint, Checkpointer};
use gpipe::data::Tokens;
use gpipe::models::hugging_face;
use gpipe::{Optimizer, optim::AdamW, tch};

use super::trained::{checkpoints, copy, pipeline, spec};
use super::{gpipe, printed, refused};

/// Standard error of a run that fails without printing data.
#[track_caller]
fn failed(folder: &std::path::Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args}: {errors}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.is_empty() || args.starts_with("generate"),
        "{printed}"
    );
    errors
}

/// Regression test: `eval` reported a NaN loss or `null`, and `export` wrote the weights, both as if all were
/// well.
#[test]
fn every_verb_says_that_training_has_diverged() {
    let folder = copy();
    let path = folder.path();
    let found = Checkpoint::newest(checkpoints(&path.join("run"))).unwrap();
    let (mut pipe, mut optimizer) = (pipeline(), Optimizer::new(AdamW::default()));
    found.restore(&mut pipe, &mut optimizer).unwrap();
    let (name, parameter) = pipe.parameters().unwrap().remove(0);
    let _ = tch::no_grad(|| parameter.shallow_clone().fill_(f64::NAN));
    let mut extras = found.extras().clone();
    extras.step = 121;
    let checkpointer = Checkpointer::new(checkpoints(&path.join("run"))).unwrap();
    let mut checkpointer = checkpointer.allow_non_finite();
    checkpointer.save(&mut pipe, &optimizer, extras).unwrap();
    checkpointer.finish().unwrap();

    for json in ["", " --json"] {
        let errors = failed(path, &format!("eval --run run{json}"));
        for part in [
            "the loss of the checkpoint of step 121 is NaN",
            &format!("`{name}` has numbers that are NaN"),
            "--checkpoint DIR",
        ] {
            assert!(errors.contains(part), "{errors}");
        }
        let errors = failed(path, &format!("export --run run -o out{json}"));
        assert!(errors.contains(&format!("`{name}`")), "{errors}");
        assert!(!path.join("out").exists());
        failed(path, &format!("generate --run run --prompt Call{json}"));
    }
    // The previous checkpoint is intact.
    printed(path, "eval --checkpoint run/checkpoints/step-00000120");

    // Weights of other programs may be NaN, too.
    let weights = pipe.parameters().unwrap();
    hugging_face::export(&path.join("theirs"), &spec(), &weights, None).unwrap();
    let tokens: Vec<u32> = (0..400).map(|place| place % 14).collect();
    Tokens::write(&path.join("own.bin"), &tokens, 14).unwrap();
    let errors = failed(path, "eval --weights theirs --data own.bin");
    assert!(errors.contains(&format!("`{name}`")), "{errors}");
    refused(
        path,
        "train --weights theirs --data own.bin --steps 1 --out new",
        &["--weights theirs: `", "NaN or infinite"],
    );
    assert!(!path.join("new").exists());
}
