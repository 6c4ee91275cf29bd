//! Tests of a rank that cannot write, at each operation in turn.

use std::sync::Arc;

use super::super::disk::RealDisk;
use super::super::faults::{Fault, Faulty, names};
use super::super::together::Together;
use super::super::{CheckpointError, folder, write};
use super::{copied, newest, target, write_alone, write_together};
use gpipe_torch::testing::ranks;

/// In one world, one failure after another: none ends it.
#[test]
fn a_rank_that_cannot_write_has_all_return_its_error_and_the_next_checkpoint_works() {
    const SIZE: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    write_alone(folder.path(), 1);
    let path = folder.path().to_owned();
    let heard = ranks(SIZE, move |world| {
        let together = Together::all(&world).unwrap();
        let good = target(RealDisk, &path, 2, &together);
        let (rank, host) = (world.rank(), world.host().to_owned());
        let mut heard = Vec::new();
        let mut step = 1;
        for fails in 0..SIZE {
            for at in 0.. {
                step += 1;
                let disk = Faulty::new(Fault::Full, if rank == fails { at } else { usize::MAX });
                let to = target(disk.clone(), &path, 2, &together);
                let written = write_together(&to, step);
                let spared = disk.spared();
                let spared = together.collect(Ok(spared));
                let spared = together
                    .tell(|| Ok(spared?.into_iter().all(|own| own)))
                    .unwrap();
                let what = format!("rank {fails} at {at}");
                if spared {
                    written.unwrap();
                    assert!(at > 5, "{what}: fewer operations than it takes");
                    break;
                }
                let error = written.unwrap_err().to_string();
                let begin = format!("rank {fails} on `{host}`: cannot ");
                assert!(error.starts_with(&begin), "{what}: {error}");
                assert!(error.contains("free some space"), "{what}: {error}");
                assert!(error.contains(path.to_str().unwrap()), "{what}: {error}");
                heard.push(error);
                together
                    .tell(|| {
                        let now = newest(&path);
                        assert!(now == step || now == step - 1, "{what}: {now}");
                        Ok(())
                    })
                    .unwrap();
                // The same step again, in the same folder.
                write_together(&good, step).unwrap();
                together
                    .tell(|| {
                        assert_eq!(newest(&path), step, "{what}");
                        // The next run removes leftovers.
                        folder::recover(&RealDisk, &path)?;
                        let left = names(&path);
                        assert_eq!(left.len(), 2, "{what}: {left:?}");
                        Ok(())
                    })
                    .unwrap();
            }
        }
        world.leave().unwrap();
        heard
    });
    assert_eq!(heard[0], heard[1]);
    assert_eq!(heard[0], heard[2]);
    let named = |files: &[&str]| {
        let names = |error: &&String| files.iter().any(|file| error.contains(file));
        heard[0].iter().filter(names).count()
    };
    // Each stage takes five operations. A rank writes its stages concurrently, so which stage meets the
    // operation of a given number varies: they count together.
    let rank_1: &[&str] = &["stage-1", "stage-4"];
    for (files, least) in [(rank_1, 6), (&["stage-2"], 3), (&["manifest.json"], 3)] {
        assert!(named(files) >= least, "{files:?}: {:#?}", heard[0]);
    }
}

/// Failures before writing: weights that are not finite, a panic, a failed copy.
#[test]
fn whatever_a_rank_meets_all_hear_of_it() {
    let folder = tempfile::tempdir().unwrap();
    write_alone(folder.path(), 1);
    let path = folder.path().to_owned();
    let heard = ranks(2, move |world| {
        let together = Together::all(&world).unwrap();
        let to = target(RealDisk, &path, 2, &together);
        let is_one = world.rank() == 1;
        let mine = |stage: usize| stage % 2 == world.rank();

        let mut own = copied(2, mine);
        if is_one {
            own.stages[0].1[0].tensor = tch::Tensor::from_slice(&[f32::NAN]);
        }
        let finite = write::write(&to, 2, Ok(own), None, || true).unwrap_err();
        let cause = finite.cause();
        assert!(
            matches!(cause, CheckpointError::NotFinite { what: "the parameter", name, .. }
                if name == "layer.1.weight"),
            "{cause:?}"
        );
        assert!(finite.is_damage());

        let none = CheckpointError::Kind {
            name: "odd".to_owned(),
            kind: "QInt8".to_owned(),
        };
        let own = if is_one {
            Err(none)
        } else {
            Ok(copied(2, mine))
        };
        let kind = write::write(&to, 2, own, None, || true).unwrap_err();

        // Only rank 0 asks for approval, and a panic there is reported to all.
        let own = Ok(copied(2, mine));
        let panics = write::write(&to, 2, own, None, || panic!("on approval")).unwrap_err();
        let held = write::write(&to, 2, Ok(copied(2, mine)), None, || false).unwrap();
        assert_eq!(held, None);
        write_together(&to, 3).unwrap();
        world.leave().unwrap();
        [finite, kind, panics].map(|error| error.to_string())
    });
    assert_eq!(heard[0], heard[1]);
    let [finite, kind, panics] = &heard[0];
    assert!(finite.starts_with("rank 1 on "), "{finite}");
    assert!(kind.contains("`odd` has numbers of type QInt8"), "{kind}");
    assert!(
        panics.starts_with("rank 0 on ") && panics.ends_with("on approval"),
        "{panics}"
    );
    assert_eq!(names(folder.path()), ["step-00000001", "step-00000003"]);
}

/// No process waits for a lost rank.
#[test]
fn a_rank_that_is_lost_frees_the_others() {
    for gone in 0..3 {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        write_alone(dir.path(), 1);
        let own = Arc::clone(&dir);
        let heard = ranks(3, move |world| {
            let together = Together::all(&world).unwrap();
            let to = target(RealDisk, own.path(), 2, &together);
            if world.rank() == gone {
                return None;
            }
            let error = write_together(&to, 2).unwrap_err();
            Some(error.lost().cloned().unwrap())
        });
        for lost in heard.into_iter().flatten() {
            assert_eq!((lost.rank, lost.gone), (Some(gone), true), "{lost}");
        }
        assert_eq!(newest(dir.path()), 1);
        folder::recover(&RealDisk, dir.path()).unwrap();
        assert_eq!(names(dir.path()), ["step-00000001"]);
    }
}
