//! Tests of checkpoints by several processes: threads with a store, or processes that are killed.

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

/// A stage's parameter and optimizer state, with bits that identify stage and step.
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

/// The stages that `mine` selects.
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

/// Writes the checkpoint of a step with all stages in a single process.
fn write_alone(folder: &Path, step: u64) {
    let to = target(RealDisk, folder, 9, &Together::alone());
    let copied = copied(step, |_| true);
    super::write::write(&to, step, Ok(copied), None, || true).unwrap();
}

/// Writes the checkpoint of a step in several processes, stages in turn.
fn write_together(to: &Target, step: u64) -> Result<Option<Saved>, CheckpointError> {
    let (rank, size) = (to.together.rank(), to.together.size());
    let copied = copied(step, |stage| stage % size == rank);
    super::write::write(to, step, Ok(copied), None, || true)
}

/// The files of a folder and their bytes, except those that always differ.
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

/// Checks that the newest checkpoint is complete, with all parts of one step. *Returns* the step.
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
