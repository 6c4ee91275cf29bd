//! Tests in which every disk operation fails once, and the process dies at every one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tch::{Device, Kind, Tensor};

use super::disk::{Disk, Durable, RealDisk};
use super::together::Together;
use super::write::{self, Copied, Saved, Target};
use super::{Checkpoint, CheckpointError, Extras, folder};
use gpipe_torch::pipeline::{Draws, ShardOf};
use gpipe_torch::{Portable, Role};

/// A fault at one operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// The disk is full at this operation.
    Full,
    /// The process dies here: no further operation is executed.
    Dead,
    /// The process is killed.
    Killed,
}

/// A disk on which one operation, by its number, fails halfway.
#[derive(Debug, Clone)]
pub(super) struct Faulty {
    fault: Fault,
    at: usize,
    done: Arc<AtomicUsize>,
}

impl Faulty {
    pub(super) fn new(fault: Fault, at: usize) -> Self {
        let done = Arc::default();
        Self { fault, at, done }
    }

    fn hit(&self) -> bool {
        let number = self.done.fetch_add(1, Ordering::SeqCst);
        if number == self.at && self.fault == Fault::Killed {
            let own = std::process::id().to_string();
            Command::new("kill").args(["-9", &own]).status().unwrap();
            std::thread::park();
        }
        number == self.at || (self.fault == Fault::Dead && number > self.at)
    }

    /// Whether the fault has not occurred yet.
    pub(super) fn spared(&self) -> bool {
        self.done.load(Ordering::SeqCst) <= self.at
    }

    fn attempt(&self, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.hit() { Err(full()) } else { operation() }
    }
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Disk for Faulty {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.attempt(|| RealDisk.make_folder(path))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Durable>> {
        if self.hit() {
            return Err(full());
        }
        let file = FaultyFile {
            file: RealDisk.create(path)?,
            disk: self.clone(),
        };
        Ok(Box::new(file))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.attempt(|| RealDisk.sync_folder(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.attempt(|| RealDisk.rename(from, to))
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let dead = !self.spared();
        if !self.hit() {
            return RealDisk.remove_folder(path);
        }
        if !dead
            && let Ok(mut entries) = fs::read_dir(path)
            && let Some(Ok(entry)) = entries.next()
        {
            fs::remove_file(entry.path())?;
        }
        Err(full())
    }
}

struct FaultyFile {
    file: Box<dyn Durable>,
    disk: Faulty,
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let dead = !self.disk.spared();
        if !self.disk.hit() {
            return self.file.write(bytes);
        }
        if !dead {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
        }
        Err(full())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Durable for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        let disk = self.disk.clone();
        disk.attempt(|| self.file.sync())
    }
}

/// Two stages of a model, with values that identify the save.
pub(super) fn copied(step: u64, value: f64) -> Copied {
    let stage = |name: &str| {
        vec![Portable {
            role: Role::Parameter,
            name: name.to_owned(),
            tensor: Tensor::full([3], value, (Kind::Float, Device::Cpu)),
        }]
    };
    Copied {
        extras: Extras::new(step),
        draws: Draws {
            seed: 1,
            steps: step,
        },
        stages: vec![
            (ShardOf::stage(0), stage("a.weight")),
            (ShardOf::stage(1), stage("b.weight")),
        ],
        non_finite: false,
    }
}

/// A target of a single process.
fn target(disk: impl Disk + 'static, folder: &Path, keep: usize) -> Target {
    Target {
        disk: Arc::new(disk),
        folder: folder.to_owned(),
        keep,
        spared: None,
        together: Together::alone(),
    }
}

pub(super) fn write(
    disk: impl Disk + 'static,
    folder: &Path,
    keep: usize,
    copied: Copied,
) -> Result<Option<Saved>, CheckpointError> {
    let step = copied.extras.step;
    write::write(&target(disk, folder, keep), step, Ok(copied), None, || true)
}

fn value(checkpoint: &Checkpoint) -> f64 {
    let weights = checkpoint.weights().unwrap();
    assert_eq!(weights.len(), 2);
    weights[0].1.double_value(&[0])
}

/// A folder with checkpoints of these steps, with the steps as values.
pub(super) fn folder_with(steps: &[u64]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for &step in steps {
        write(RealDisk, folder.path(), 9, copied(step, step as f64)).unwrap();
    }
    folder
}

/// Checks that all listed checkpoints are complete; returns the steps and the newest one's value.
pub(super) fn state(folder: &Path) -> (Vec<u64>, f64) {
    let listed = Checkpoint::list(folder).unwrap();
    let steps = listed.iter().map(|one| one.step).collect();
    let all: Vec<_> = listed
        .into_iter()
        .map(|one| Checkpoint::open(one.path).unwrap())
        .collect();
    (steps, value(all.last().expect("no checkpoint at all")))
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub(super) const NEW: f64 = 77.0;

/// Saves `step` onto checkpoints of `before`, with a fault at every operation in turn; `after` are the
/// steps left on success.
fn with_faults(before: &[u64], step: u64, keep: usize, after: &[u64]) {
    for fault in [Fault::Full, Fault::Dead] {
        let mut at = 0;
        loop {
            let what = format!("{before:?} + {step}, {fault:?} at {at}");
            let folder = folder_with(before);
            let path = folder.path();
            let disk = Faulty::new(fault, at);
            let result = write(disk.clone(), path, keep, copied(step, NEW));
            let (_, newest) = state(path);
            let old = *before.last().unwrap() as f64;
            assert!(newest == NEW || newest == old, "{what}: {newest}");
            if disk.spared() {
                result.unwrap();
                assert_eq!(state(path), (after.to_vec(), NEW), "{what}");
                assert!(at > 12, "{what}: fewer operations than it takes");
                break;
            }
            let text = result.unwrap_err().to_string();
            assert!(text.contains("free some space"), "{what}: {text}");
            assert!(text.contains(path.to_str().unwrap()), "{what}: {text}");
            recovered(path, &what);
            write(RealDisk, path, keep, copied(step, NEW)).unwrap();
            assert_eq!(state(path), (after.to_vec(), NEW), "{what}");
            assert_eq!(
                names(path),
                after.iter().map(|s| folder::name(*s)).collect::<Vec<_>>()
            );
            at += 1;
        }
    }
}

/// A clean-up that dies at every operation loses nothing, and once completed leaves only checkpoints.
fn recovered(path: &Path, what: &str) {
    let expected = state(path);
    for at in 0.. {
        let disk = Faulty::new(Fault::Dead, at);
        let result = folder::recover(&disk, path);
        assert_eq!(state(path), expected, "{what}: clean-up dead at {at}");
        if disk.spared() {
            result.unwrap();
            break;
        }
        result.unwrap_err();
    }
    assert!(
        names(path).iter().all(|name| name.starts_with("step-")),
        "{what}"
    );
}

#[test]
fn a_fault_anywhere_leaves_a_whole_checkpoint_and_nothing_to_trip_over() {
    with_faults(&[1, 2], 3, 2, &[2, 3]);
    with_faults(&[1], 2, 1, &[2]);
}

#[test]
fn a_checkpoint_is_replaced_by_a_newer_one_of_its_step_without_a_gap() {
    with_faults(&[2], 2, 1, &[2]);
    with_faults(&[1, 2], 2, 2, &[1, 2]);
}

#[test]
fn checkpoints_of_later_steps_are_gone_once_an_earlier_one_is_written_anew() {
    with_faults(&[1, 3, 4], 2, 2, &[1, 2]);
}

#[test]
fn a_read_only_folder_is_named_with_what_to_do() {
    struct ReadOnly;
    impl Disk for ReadOnly {
        fn make_folder(&self, _: &Path) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
        fn create(&self, _: &Path) -> io::Result<Box<dyn Durable>> {
            unreachable!("there is no folder")
        }
        fn sync_folder(&self, _: &Path) -> io::Result<()> {
            unreachable!("nothing was written")
        }
        fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
            unreachable!("nothing was written")
        }
        fn remove_folder(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
    }
    let folder = folder_with(&[1]);
    let error = write(ReadOnly, folder.path(), 2, copied(2, NEW)).unwrap_err();
    let CheckpointError::Write { path, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        path,
        &PathBuf::from(folder.path()).join(".writing-step-00000002")
    );
    assert!(
        error.to_string().contains("a folder that you may write to"),
        "{error}"
    );
    assert_eq!(state(folder.path()), (vec![1], 1.0));
}

/// A checkpoint of NaN weights once counted as complete, and replaced the good ones.
#[test]
fn weights_that_are_not_finite_are_told_and_the_older_checkpoint_stays() {
    for ruined in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let folder = folder_with(&[1]);
        let error = write(RealDisk, folder.path(), 1, copied(2, ruined)).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::NotFinite { name, .. } if name == "a.weight"),
            "{error}"
        );
        assert_eq!(state(folder.path()), (vec![1], 1.0));
        assert_eq!(names(folder.path()), ["step-00000001"]);

        // Optimizer state is checked too; buffers may be masks.
        let of = |role: Role| {
            let mut copied = copied(2, ruined);
            for one in copied.stages.iter_mut().flat_map(|(_, stage)| stage) {
                one.role = role.clone();
            }
            write(RealDisk, folder.path(), 2, copied)
        };
        let error = of(Role::Optimizer("square".to_owned())).unwrap_err();
        assert!(error.to_string().contains("`a.weight`"), "{error}");
        of(Role::Buffer).unwrap();

        let mut wanted = copied(3, ruined);
        wanted.non_finite = true;
        write(RealDisk, folder.path(), 1, wanted).unwrap();
        let found = Checkpoint::newest(folder.path()).unwrap();
        let error = found.check_finite().unwrap_err();
        assert!(error.is_damage(), "{error}");
    }
}

/// Weights may be finite and yet ruined, which only the next step shows.
#[test]
fn what_is_not_approved_of_leaves_the_older_ones_as_they_were() {
    let folder = folder_with(&[1, 2]);
    let mut seen = None;
    let to = target(RealDisk, folder.path(), 1);
    let written = write::write(&to, 3, Ok(copied(3, NEW)), None, || {
        seen = Some(names(folder.path()));
        false
    });
    assert_eq!(written.unwrap(), None);
    let while_asked = [".writing-step-00000003", "step-00000001", "step-00000002"];
    assert_eq!(seen.unwrap(), while_asked);
    assert_eq!(names(folder.path()), while_asked[1..]);
}
