//! Updates that ruin a run, and its checkpoints afterwards.

use std::path::Path;

use gpipe::checkpoint::{Checkpoint, Checkpointer};
use gpipe::models::zoo::Zoo;
use gpipe::{Optimizer, Pipeline, optim::AdamW, tch};

use super::{fails, gpt, losses, newest, place, trained};

fn steps(folder: &Path, run: &str) -> Vec<u64> {
    let listed = Checkpoint::list(folder.join(run).join("checkpoints")).unwrap();
    listed.iter().map(|one| one.step).collect()
}

/// Regression test: the checkpoint right after a ruinous update became the newest and replaced the good one,
/// so training diverged from it each time, though the error promised otherwise. With the larger rate weights
/// become infinite; with the smaller one they are finite, but no loss is.
#[test]
fn an_update_that_ruins_a_run_leaves_the_checkpoint_before_it() {
    for rate in ["1e39", "1e20"] {
        let folder = place();
        let folder = folder.path();
        let keep = ["--checkpoint-every", "5", "--checkpoint-keep", "1"];
        let begun = ["--devices", "cpu,cpu", "--steps", "10", "--out", "run"];
        trained(folder, &gpt(&[&begun[..], &keep[..]].concat()));
        let wild = format!("optimizer.lr={rate}");
        let constant = ["--lr-schedule", "constant", "--set", &wild];
        let go_on = ["--resume", "run", "--steps", "20"];
        let every = ["--checkpoint-every", "1"];
        let ruined = [&go_on[..], &constant[..], &every[..]].concat();
        fails(
            folder,
            &ruined,
            1,
            &["--lr RATE`, which goes on after step 10"],
        );
        assert_eq!(steps(folder, "run"), [10], "{rate}");
        newest(folder, "run").check_finite().unwrap();
        // The advice works.
        trained(folder, &[&go_on[..], &["--lr", "1e-4"]].concat());
        assert_eq!(losses(folder, "run").len(), 20);
    }
}

const MLP: &str = "--model mlp --inputs 8 --hidden 16 --depth 2 --outputs 3 --data synthetic \
                   --warmup 0 --batch 4 --micro 2 --threads-per-stage 1";

fn mlp<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let flags = MLP.split_whitespace();
    flags.chain(more.iter().copied()).collect()
}

/// Regression test: after the last step no loss shows the failure, and the run ended with exit code 0.
#[test]
fn a_last_update_that_ruins_a_run_is_told() {
    let folder = place();
    let folder = folder.path();
    let flags = ["--steps", "1", "--lr", "1e39", "--out", "run"];
    let wanted = [
        "after the update of step 1 the parameter `hidden.0.",
        "is not finite, so it was not saved: try a smaller --lr",
    ];
    fails(folder, &mlp(&flags), 1, &wanted);
    assert!(steps(folder, "run").is_empty());
}

/// A run for which an earlier version has also saved step 11, with every weight set to `number`.
fn with_ruins(folder: &Path, number: f64) {
    let begun = ["--steps", "10", "--checkpoint-every", "5", "--out", "run"];
    trained(folder, &mlp(&begun));
    let sizes = ["inputs=8", "hidden=16", "depth=2", "outputs=3"];
    let spec = Zoo::builtin().spec("mlp", sizes).unwrap();
    let mut pipe = Pipeline::new(spec.build(), &[tch::Device::Cpu], 2).unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let found = newest(folder, "run");
    found.restore(&mut pipe, &mut optimizer).unwrap();
    for (_, parameter) in pipe.parameters().unwrap() {
        let _ = tch::no_grad(|| parameter.shallow_clone().fill_(number));
    }
    let mut extras = found.extras().clone();
    extras.step = 11;
    let checkpoints = Checkpointer::new(folder.join("run/checkpoints")).unwrap();
    let mut checkpoints = checkpoints.allow_non_finite();
    checkpoints.save(&mut pipe, &optimizer, extras).unwrap();
    checkpoints.finish().unwrap();
    assert_eq!(steps(folder, "run"), [5, 10, 11]);
}

/// Such a checkpoint is intact. Regression test: only removing its folder by hand helped.
#[test]
fn a_ruined_checkpoint_is_named_and_an_older_one_used_where_that_is_agreed_to() {
    let folder = place();
    let folder = folder.path();
    with_ruins(folder, f64::NAN);
    let go_on = ["--resume", "run", "--steps", "20"];
    let wanted = [
        "run/checkpoints/step-00000011/stage-0.safetensors: the parameter `",
        "is not finite",
        "--resume-fallback goes on from run/checkpoints/step-00000010",
    ];
    fails(folder, &go_on, 1, &wanted);
    let told = trained(folder, &[&go_on[..], &["--resume-fallback"]].concat());
    assert!(
        told.contains("warning: run/checkpoints/step-00000011"),
        "{told}"
    );
    assert!(told.contains("goes on after step 10"), "{told}");
    assert_eq!(newest(folder, "run").extras().step, 20);
    newest(folder, "run").check_finite().unwrap();
}

/// A smaller learning rate does not help weights whose first loss is not finite.
#[test]
fn weights_whose_first_loss_is_not_finite_are_what_is_at_fault() {
    let folder = place();
    let folder = folder.path();
    with_ruins(folder, 1e30);
    let go_on = ["--resume", "run", "--steps", "20"];
    let wanted = [
        "at step 12: this is the first step after the checkpoint of step 11",
        "move run/checkpoints/step-00000011 away, and `train --resume run` goes on after step 10",
    ];
    fails(folder, &go_on, 1, &wanted);
    std::fs::remove_dir_all(folder.join("run/checkpoints/step-00000011")).unwrap();
    trained(folder, &go_on);
}
