//! Several processes write the same files as one, and the store does not grow.

use super::super::disk::RealDisk;
use super::super::faults::names;
use super::super::together::Together;
use super::super::write;
use super::{copied, files, newest, target, write_alone, write_together};
use gpipe_torch::testing::ranks;

/// Assignments of stages to ranks: in blocks, in turn, reversed, or one rank without any.
const CUTS: [fn(usize, usize) -> usize; 4] = [
    |stage, size| stage * size / super::STAGES,
    |stage, size| stage % size,
    |stage, size| size - 1 - stage % size,
    |stage, size| 1 + stage % (size - 1),
];

#[test]
fn the_bytes_are_those_that_one_process_writes() {
    let alone = tempfile::tempdir().unwrap();
    write_alone(alone.path(), 6);
    let expected = files(&alone.path().join("step-00000006"));
    for size in [2, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        ranks(size, move |world| {
            let together = Together::all(&world).unwrap();
            for cut in CUTS {
                let to = target(RealDisk, &path, 2, &together);
                let own = copied(6, |stage| cut(stage, size) == world.rank());
                let saved = write::write(&to, 6, Ok(own), None, || true).unwrap();
                let saved = saved.unwrap();
                assert_eq!(saved.path, path.join("step-00000006"));
                let bytes = files(&saved.path)
                    .iter()
                    .map(|(_, own)| own.len())
                    .sum::<usize>();
                assert_eq!(saved.bytes, bytes as u64);
            }
            world.leave().unwrap();
        });
        assert_eq!(
            files(&folder.path().join("step-00000006")),
            expected,
            "{size}"
        );
        assert_eq!(newest(folder.path()), 6);
    }
}

#[test]
fn many_checkpoints_leave_nothing_in_the_store_and_old_ones_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let keys = ranks(3, move |world| {
        let together = Together::all(&world).unwrap();
        let to = target(RealDisk, &path, 2, &together);
        let mut keys = Vec::new();
        for step in 1..=20 {
            write_together(&to, step).unwrap();
            // The others have read earlier messages, and none are pending.
            together.agree(Ok(())).unwrap();
            if world.rank() == 0 {
                keys.push(world.keys());
            }
            together.agree(Ok(())).unwrap();
        }
        world.leave().unwrap();
        keys
    });
    let (first, last) = (keys[0][0], keys[0][19]);
    assert!((last - first).abs() < 5, "{:?}", keys[0]);
    assert_eq!(names(folder.path()), ["step-00000019", "step-00000020"]);
}

/// Otherwise a missing stage would be noticed only when needed.
#[test]
fn a_stage_that_nobody_or_everybody_has_is_an_error_of_all() {
    let folder = tempfile::tempdir().unwrap();
    write_alone(folder.path(), 1);
    let path = folder.path().to_owned();
    let heard = ranks(2, move |world| {
        let together = Together::all(&world).unwrap();
        let to = target(RealDisk, &path, 2, &together);
        let mine: [fn(usize, usize) -> bool; 3] = [
            |stage, rank| stage != 2 && stage % 2 == rank,
            |stage, rank| stage == 3 || stage % 2 == rank,
            |stage, rank| stage % 2 == rank,
        ];
        let heard = mine.map(|mine| {
            let own = copied(2, |stage| mine(stage, world.rank()));
            write::write(&to, 2, Ok(own), None, || true)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        world.leave().unwrap();
        heard
    });
    assert_eq!(heard[0], heard[1]);
    let [none, two, right] = &heard[0];
    let none = none.as_ref().unwrap_err();
    assert!(none.contains("no process has stage 2"), "{none}");
    let two = two.as_ref().unwrap_err();
    assert!(two.contains("stage-3.safetensors"), "{two}");
    right.as_ref().unwrap();
    assert_eq!(newest(folder.path()), 2);
    assert_eq!(names(folder.path()), ["step-00000001", "step-00000002"]);
}

/// Two folders of the same name on two hosts, one with leftovers of a killed run.
#[test]
fn a_shard_that_rank_0_does_not_see_is_not_sealed() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let paths = folders.each_ref().map(|folder| folder.path().to_owned());
    std::fs::create_dir(paths[1].join(".writing-step-00000002")).unwrap();
    let heard = ranks(2, move |world| {
        let together = Together::all(&world).unwrap();
        let to = target(RealDisk, &paths[world.rank()], 2, &together);
        let error = write_together(&to, 2).unwrap_err();
        assert!(error.is_wrong_use());
        world.leave().unwrap();
        error.to_string()
    });
    assert_eq!(heard[0], heard[1]);
    let why = "rank 0 does not see what rank 1 on `";
    assert!(heard[0].contains(why), "{}", heard[0]);
    assert!(names(folders[0].path()).is_empty());
}
