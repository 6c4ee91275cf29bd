//! Tests of the checkpointer in several processes.

use std::fs;
use std::sync::mpsc;

use super::super::faults::names;
use super::super::{CheckpointError, Checkpointer};
use super::{copied, newest};
use gpipe_torch::testing::ranks;
use gpipe_torch::world::World;

/// Starts writing a rank's part of a step.
fn start(
    own: &mut Checkpointer,
    world: &World,
    step: u64,
    approved: Option<mpsc::Receiver<bool>>,
) -> Result<(), CheckpointError> {
    let copied = copied(step, |stage| stage % world.size() == world.rank());
    own.start(step, Ok(copied), approved)
}

#[test]
fn all_hear_what_became_of_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints");
    let own = path.clone();
    ranks(3, move |world| {
        let path = &own;
        let mut all = Checkpointer::in_world(path, &world).unwrap().keep(2);
        for step in 1..=3 {
            start(&mut all, &world, step, None).unwrap();
            assert_eq!(all.finish().unwrap().unwrap().step, step);
        }
        // A failed copy: each call except the one that reports it returns as usual.
        let none = CheckpointError::Kind {
            name: "odd".to_owned(),
            kind: "QInt8".to_owned(),
        };
        let stages = copied(4, |stage| stage % 3 == world.rank());
        let stages = if world.rank() == 2 {
            Err(none)
        } else {
            Ok(stages)
        };
        all.start(4, stages, None).unwrap();
        while !all.is_over() {
            std::thread::yield_now();
        }
        assert_eq!(all.check().unwrap(), None);
        let error = all.finish().unwrap_err().to_string();
        assert!(error.starts_with("rank 2 on "), "{error}");
        start(&mut all, &world, 5, None).unwrap();
        while !all.is_over() {
            std::thread::yield_now();
        }
        assert_eq!(all.check().unwrap().unwrap().step, 5);
        assert_eq!(all.finish().unwrap(), None);
        world.leave().unwrap();
    });
    assert_eq!(names(&path), [".lock", "step-00000003", "step-00000005"]);
    assert_eq!(newest(&path), 5);
}

/// Only rank 0 is asked; processes that only write a part can end while it waits for the answer.
#[test]
fn one_that_is_held_back_is_published_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    ranks(2, move |world| {
        let mut all = Checkpointer::in_world(&path, &world).unwrap();
        for (step, approved) in [(1, true), (2, false)] {
            let (says, approval) = mpsc::channel();
            start(&mut all, &world, step, Some(approval)).unwrap();
            says.send(approved).unwrap();
            assert_eq!(all.finish().unwrap().is_some(), approved);
        }
        let (says, approval) = mpsc::channel();
        start(&mut all, &world, 3, Some(approval)).unwrap();
        let control = world.control().unwrap().unwrap();
        if world.rank() == 1 {
            drop(all);
            control.send(0, "dropped", String::new());
        } else {
            control.receive("dropped").unwrap();
            assert_eq!(newest(&path), 1);
            says.send(true).unwrap();
            assert_eq!(all.finish().unwrap().unwrap().step, 3);
        }
        world.leave().unwrap();
    });
    assert_eq!(newest(folder.path()), 3);
}

#[test]
fn a_folder_that_is_not_the_same_for_all_is_told_at_the_start() {
    for exists in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_owned();
        if exists {
            fs::create_dir(place.join("other")).unwrap();
            // From another run, or from this one before a restart.
            fs::write(place.join("other/.lock"), "process 7 on node").unwrap();
        }
        let heard = ranks(3, move |world| {
            let own = if world.rank() == 2 { "other" } else { "own" };
            let error = Checkpointer::in_world(place.join(own), &world).unwrap_err();
            assert!(error.is_wrong_use());
            // A folder shared by all works.
            let all = Checkpointer::in_world(place.join("own"), &world).unwrap();
            drop(all);
            world.leave().unwrap();
            error.to_string()
        });
        assert_eq!(heard[0], heard[1]);
        assert_eq!(heard[0], heard[2]);
        let error = &heard[0];
        assert!(error.starts_with("rank 2 on `"), "{error}");
        assert!(error.contains("other: all processes must write"), "{error}");
        assert!(error.contains("rank 0 on `"), "{error}");
    }
}

#[test]
fn a_folder_in_use_is_told_to_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let first = Checkpointer::new(&path).unwrap();
    ranks(2, move |world| {
        let error = Checkpointer::in_world(&path, &world).unwrap_err();
        assert!(error.is_wrong_use());
        let said = error.to_string();
        assert!(
            said.starts_with("rank 0 on ") && said.contains("another process"),
            "{said}"
        );
        world.leave().unwrap();
    });
    drop(first);
}

/// No rank writes to a folder that has become another run's, and all end for the same reason.
#[test]
fn a_folder_that_is_replaced_is_lost_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints");
    let own = path.clone();
    ranks(2, move |world| {
        let mut all = Checkpointer::in_world(&own, &world).unwrap();
        let control = world.control().unwrap().unwrap();
        if world.rank() == 0 {
            fs::remove_dir_all(&own).unwrap();
            fs::create_dir(&own).unwrap();
            fs::write(own.join(".lock"), "").unwrap();
            control.send(1, "replaced", String::new());
        } else {
            control.receive("replaced").unwrap();
        }
        start(&mut all, &world, 1, None).unwrap();
        let error = all.finish().unwrap_err();
        assert!(
            matches!(error.cause(), CheckpointError::Lost { .. }),
            "{error}"
        );
        world.leave().unwrap();
    });
    assert_eq!(names(&path), [".lock"]);
}
