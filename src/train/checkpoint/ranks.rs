//! Checkpoints of several processes, which here are threads with a store, or processes that are
//! killed.

mod checkpointer;
mod fail;
mod kills;
mod pipelines;
mod read;
mod write;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::disk::{Disk, RealDisk};
use super::together::Together;
use super::write::{Copied, Saved, Target};
use super::{CheckpointError, Extras};
use gpipe_torch::pipeline::{Draws, ShardOf};
use gpipe_torch::{Portable, Role};

const STAGES: usize = 5;

/// A stage's parameter, and what an optimizer remembers of it: bits that tell stage and step.
fn stage(number: usize, step: u64) -> Vec<Portable> {
    let value = (step * 100 + number as u64) as f64;
    let one = |role, value: f64, size: i64| Portable {
        role,
        name: format!("layer.{number}.weight"),
        tensor: Tensor::full([size], value, (Kind::Float, Device::Cpu)),
    };
    vec![
        one(Role::Parameter, value, 3),
        one(Role::Optimizer("momentum".to_owned()), -value, 3),
    ]
}

/// Those stages of so many that `mine` says.
fn copied(step: u64, mine: impl Fn(usize) -> bool) -> Copied {
    let stages = (0..STAGES).filter(|number| mine(*number));
    Copied {
        extras: Extras::new(step).config("[train]\n").part("data", 7),
        draws: Draws {
            seed: 3,
            steps: step,
        },
        stages: stages
            .map(|number| (ShardOf::stage(number), stage(number, step)))
            .collect(),
        non_finite: false,
    }
}

fn target(disk: impl Disk + 'static, folder: &Path, keep: usize, together: &Together) -> Target {
    Target {
        disk: Arc::new(disk),
        folder: folder.to_owned(),
        keep,
        spared: None,
        together: together.clone(),
    }
}

/// The checkpoint of a step with all stages, by a process alone.
fn write_alone(folder: &Path, step: u64) {
    let to = target(RealDisk, folder, 9, &Together::alone());
    let copied = copied(step, |_| true);
    super::write::write(&to, step, Ok(copied), None, || true).unwrap();
}

/// The same by several, stage by stage in turn.
fn write_together(to: &Target, step: u64) -> Result<Option<Saved>, CheckpointError> {
    let (rank, size) = (to.together.rank(), to.together.size());
    let copied = copied(step, |stage| stage % size == rank);
    super::write::write(to, step, Ok(copied), None, || true)
}

/// The files of a folder and their bytes, but for those that change every time.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    all.sort();
    all
}

/// That the newest checkpoint is whole, and of one step all through. *Returns* that.
fn newest(folder: &Path) -> u64 {
    let newest = super::Checkpoint::newest(folder).unwrap();
    let step = newest.extras().step;
    assert_eq!(newest.stages(), STAGES);
    let weights = newest.weights().unwrap();
    let values: Vec<_> = weights
        .iter()
        .map(|(_, one)| one.double_value(&[0]))
        .collect();
    let expected: Vec<_> = (0..STAGES as u64)
        .map(|own| (step * 100 + own) as f64)
        .collect();
    assert_eq!(values, expected);
    step
}
