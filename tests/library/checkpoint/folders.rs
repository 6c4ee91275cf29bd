//! Folders of checkpoints: how many are kept, which process may write, which is the newest.

use std::fs;
use std::path::Path;

use gpipe::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Extras};

use super::run::small;

fn steps(folder: &Path) -> Vec<u64> {
    let listed = Checkpoint::list(folder).unwrap();
    listed.into_iter().map(|one| one.step).collect()
}

#[test]
fn the_last_few_are_kept() {
    for (keep, expected) in [(0, vec![50]), (1, vec![50]), (3, vec![30, 40, 50])] {
        let folder = tempfile::tempdir().unwrap();
        let mut run = small();
        let mut checkpointer = Checkpointer::new(folder.path()).unwrap().keep(keep);
        for step in [10, 20, 30, 40, 50] {
            checkpointer
                .save(&mut run.pipe, &run.optimizer, Extras::new(step))
                .unwrap();
        }
        checkpointer.finish().unwrap();
        assert_eq!(steps(folder.path()), expected, "keep {keep}");
    }
}

#[test]
fn steps_of_more_digits_are_newer_not_only_longer() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = small();
    for step in [99_999_999, 100_000_000] {
        run.save(folder.path(), step);
    }
    assert_eq!(steps(folder.path()), [99_999_999, 100_000_000]);
    assert_eq!(
        Checkpoint::newest(folder.path()).unwrap().extras().step,
        100_000_000
    );
}

#[test]
fn other_things_in_the_folder_are_let_be() {
    let folder = tempfile::tempdir().unwrap();
    for other in [
        "step-1",
        "step-x",
        "best",
        ".writing-mine",
        "step-00000005.old",
    ] {
        fs::create_dir(folder.path().join(other)).unwrap();
    }
    fs::write(folder.path().join("step-00000009"), "a file").unwrap();
    let mut run = small();
    run.save(folder.path(), 5);
    assert_eq!(steps(folder.path()), [5]);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        8,
        "and a lock"
    );
}

#[test]
fn what_a_killed_process_left_is_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = small();
    run.save(folder.path(), 5);
    for left in [".writing-step-00000006", ".removing-step-00000004"] {
        fs::create_dir(folder.path().join(left)).unwrap();
        fs::write(folder.path().join(left).join("stage-0.safetensors"), "half").unwrap();
    }
    assert_eq!(steps(folder.path()), [5]);
    let checkpointer = Checkpointer::new(folder.path()).unwrap();
    assert_eq!(checkpointer.folder(), folder.path());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "step-5 and a lock"
    );
}

#[test]
fn two_cannot_write_to_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = Checkpointer::new(folder.path()).unwrap();
    let error = Checkpointer::new(folder.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    Checkpointer::new(folder.path()).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Checkpointer::new(file.join("checkpoints")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("file/checkpoints"), "{text}");
    assert!(text.contains("choose another folder"), "{text}");
}

#[test]
fn no_checkpoint_is_an_error_that_says_where() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("missing")] {
        let error = Checkpoint::newest(&path).unwrap_err();
        assert!(matches!(error, CheckpointError::None { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
        let error = Checkpoint::newest_intact(&path).unwrap_err();
        assert!(matches!(error, CheckpointError::None { .. }), "{error}");
    }
}

#[test]
fn the_newest_intact_one_is_found_behind_damaged_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = small();
    for step in 1..=3 {
        run.save(folder.path(), step);
    }
    fs::remove_file(folder.path().join("step-00000003/stage-1.safetensors")).unwrap();
    let manifest = folder.path().join("step-00000002/manifest.json");
    fs::write(
        &manifest,
        fs::read_to_string(&manifest)
            .unwrap()
            .replace("\"step\": 2", "\"step\": 3"),
    )
    .unwrap();
    assert!(Checkpoint::newest(folder.path()).unwrap_err().is_damage());
    let (found, wrong) = Checkpoint::newest_intact(folder.path()).unwrap();
    assert_eq!(found.extras().step, 1);
    let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    assert!(
        wrong[0].contains("step-00000003/stage-1.safetensors: the file is missing"),
        "{wrong:?}"
    );
    assert!(
        wrong[1].contains("step-00000002/manifest.json: the checksum is wrong"),
        "{wrong:?}"
    );
    // The run resumes from the old checkpoint, and its next one is then the newest.
    run.save(folder.path(), 2);
    assert_eq!(steps(folder.path()), [1, 2]);
    Checkpoint::newest(folder.path()).unwrap();
}

/// A training process may remove a checkpoint that another one has just opened, which must not be reported as
/// a missing file.
#[test]
fn an_opened_checkpoint_is_read_to_the_end_though_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = small();
    run.save(folder.path(), 1);
    let found = Checkpoint::newest(folder.path()).unwrap();
    let before = found.weights().unwrap();
    fs::remove_dir_all(folder.path().join("step-00000001")).unwrap();
    assert_eq!(found.weights().unwrap(), before);
    found.restore(&mut run.pipe, &mut run.optimizer).unwrap();
}

/// Regression test: after its folder was removed, the writer continued in another process's folder of the
/// same name, and pruned its checkpoints.
#[test]
fn whoever_has_lost_the_folder_writes_nothing_more() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("checkpoints");
    let mut run = small();
    let mut old = Checkpointer::new(&folder).unwrap().keep(1);
    assert!(old.check().unwrap().is_none());
    fs::remove_dir_all(&folder).unwrap();
    run.save(&folder, 1);
    let lost = [
        old.check().unwrap_err(),
        old.save(&mut run.pipe, &run.optimizer, Extras::new(2))
            .unwrap_err(),
    ];
    for error in lost {
        assert!(matches!(error, CheckpointError::Lost { .. }), "{error}");
        assert!(!error.is_wrong_use() && !error.is_damage());
    }
    assert_eq!(steps(&folder), [1]);
}

/// Regression test: such weights were saved like any others, replacing good ones.
#[test]
fn weights_that_are_not_finite_are_saved_where_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = small();
    run.save(folder.path(), 1);
    let (name, parameter) = run.pipe.parameters().unwrap().remove(1);
    let _ = gpipe::tch::no_grad(|| parameter.shallow_clone().fill_(f64::NEG_INFINITY));
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap().keep(1);
    checkpointer
        .save(&mut run.pipe, &run.optimizer, Extras::new(2))
        .unwrap();
    let error = checkpointer.finish().unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(steps(folder.path()), [1]);
    let found = Checkpoint::newest(folder.path()).unwrap();
    found.check_finite().unwrap();

    let mut checkpointer = checkpointer.allow_non_finite();
    checkpointer
        .save(&mut run.pipe, &run.optimizer, Extras::new(2))
        .unwrap();
    checkpointer.finish().unwrap();
    let found = Checkpoint::newest(folder.path()).unwrap();
    let error = found.check_finite().unwrap_err();
    assert!(
        matches!(error, CheckpointError::NotFinite { .. }),
        "{error}"
    );
    found.restore(&mut run.pipe, &mut run.optimizer).unwrap();
}
