//! Notes on a run's settings before it begins.

use crate::run::gpipe;

/// Standard error of a short run.
fn said(flags: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let args = format!("train --steps 2 --threads-per-stage 1 --checkpoint-every 0 {flags}");
    let output = gpipe(folder.path(), args.as_str());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args}: {errors}");
    errors
}

const MLP: &str = "--model mlp --inputs 4 --hidden 8 --depth 2 --outputs 3 --batch 4 --micro 2";

/// Regression test: a warm-up of 99 steps in a run of four left the rate at a twenty-fifth of the requested
/// one.
#[test]
fn a_warm_up_that_is_longer_than_the_run_is_noted() {
    let note = "lr.warmup = 99 is longer than the 2 steps of this run";
    let errors = said(&format!("{MLP} --warmup 99"));
    assert!(
        errors.contains(note) && errors.contains("6.06e-5 of 3.00e-3"),
        "{errors}"
    );
    assert!(!said(&format!("{MLP} --warmup 2")).contains("lr.warmup"));
}

/// Regression test: batch norms over two values per channel silently gave losses of 5e8.
#[test]
fn a_batch_norm_over_few_values_is_noted() {
    let resnet = "--model resnet101 --blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --width 4 \
                  --classes 5 --batch 8 --micro 4";
    let errors = said(&format!("{resnet} --image 32"));
    let note = "note: batch norm takes its statistics of each micro-batch, and 2 samples give it \
                about 2 values";
    assert!(errors.contains(note), "{errors}");
    assert!(!said(&format!("{resnet} --image 128")).contains("batch norm"));
    assert!(!said(MLP).contains("batch norm"));
}
