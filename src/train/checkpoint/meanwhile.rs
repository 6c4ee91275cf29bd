//! Tests of changes by other processes while a checkpoint is read or written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::disk::{Disk, Durable, RealDisk};
use super::faults::{NEW, copied, folder_with, names, write};
use super::lock::{self, Lock, Locked};
use super::{Checkpoint, CheckpointError, folder};

/// The trainer removed the checkpoint just found to be the newest, which was reported as a missing
/// file.
#[test]
fn what_is_removed_between_looking_and_opening_is_looked_for_again() {
    let folder = folder_with(&[1]);
    let path = folder.path();
    let mut step = 1;
    let mut trains = || {
        step += 1;
        if step < 5 {
            write(RealDisk, path, 1, copied(step, step as f64)).unwrap();
        }
    };
    let newest = Checkpoint::newest_of(path, &mut trains).unwrap();
    assert_eq!(newest.extras().step, 4);

    // One that persists is invalid.
    fs::remove_file(path.join("step-00000004/stage-1.safetensors")).unwrap();
    let error = Checkpoint::newest_of(path, &mut || ()).unwrap_err();
    assert!(matches!(error, CheckpointError::Missing { .. }), "{error}");

    // The search is finite.
    let mut looks = 0;
    let mut removes = || {
        looks += 1;
        let name = |step| path.join(folder::name(step));
        fs::rename(name(3 + looks), name(4 + looks)).unwrap();
    };
    Checkpoint::newest_of(path, &mut removes).unwrap_err();
    assert!(looks >= 10, "{looks}");
}

/// A disk on which the folder is replaced with another run's before one operation, by its number.
struct Replaced {
    disk: Locked<RealDisk>,
    folder: PathBuf,
    by: PathBuf,
    at: usize,
    done: AtomicUsize,
}

impl Replaced {
    fn now(&self) -> &Locked<RealDisk> {
        if self.done.fetch_add(1, Ordering::SeqCst) == self.at {
            fs::remove_dir_all(&self.folder).unwrap();
            fs::rename(&self.by, &self.folder).unwrap();
        }
        &self.disk
    }
}

impl Disk for Replaced {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.now().make_folder(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn Durable>> {
        self.now().create(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.now().sync_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.now().rename(from, to)
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.now().remove_folder(path)
    }
}

/// Paths are just names: a process whose folder had been removed wrote to the next run's folder of that
/// name, and pruned its checkpoints.
#[test]
fn a_folder_that_has_become_another_runs_is_left_alone() {
    for at in 0.. {
        let place = tempfile::tempdir().unwrap();
        let (own, other) = (place.path().join("own"), place.path().join("other"));
        for (folder, step) in [(&own, 5.0), (&other, 1.0)] {
            fs::create_dir(folder).unwrap();
            write(RealDisk, folder, 9, copied(step as u64, step)).unwrap();
            fs::write(folder.join(lock::FILE), "").unwrap();
        }
        // The other run is writing a checkpoint of the same name.
        fs::create_dir(other.join(".writing-step-00000006")).unwrap();
        let before = names(&other);
        let lock = Arc::new(Lock::take(&own).unwrap());
        let disk = Replaced {
            disk: Locked {
                disk: RealDisk,
                lock: Arc::clone(&lock),
            },
            folder: own.clone(),
            by: other.clone(),
            at,
            done: AtomicUsize::new(0),
        };
        let written = write(disk, &own, 1, copied(6, NEW));
        if !other.exists() {
            written.unwrap_err();
            let error = lock.check().unwrap_err();
            assert!(matches!(error, CheckpointError::Lost { .. }), "{error}");
            assert_eq!(names(&own), before, "at {at}");
            assert!(
                names(&own.join(".writing-step-00000006")).is_empty(),
                "at {at}"
            );
            continue;
        }
        written.unwrap();
        assert!(at > 10, "fewer operations than it takes: {at}");
        break;
    }
}
