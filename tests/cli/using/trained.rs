//! A run that memorized a text.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpipe::checkpoint::{Checkpointer, Extras};
use gpipe::data::{Sampler, Split, TextSet};
use gpipe::models::zoo::{ModelSpec, Zoo};
use gpipe::tch::Device;
use gpipe::{Optimizer, Pipeline, optim::AdamW};
use tempfile::TempDir;

/// Repeated, so that a small model can predict it.
pub(crate) const TEXT: &str = "Call me Ishmael! ";
const STEPS: u64 = 120;

/// A folder with a text and a run, created once; tests only read it.
pub(crate) fn run() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(make).path()
}

/// A copy of the run that a test may change, in a folder with the text.
pub(crate) fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    copy_folder(&super::trained::run().join("run"), &run);
    folder
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn spec() -> ModelSpec {
    let sizes = [
        "layers=1",
        "d_model=32",
        "heads=2",
        "context=16",
        "vocab=14",
    ];
    Zoo::builtin().spec("gpt", sizes).unwrap()
}

pub(crate) fn pipeline() -> Pipeline {
    Pipeline::builder(spec().build())
        .devices(&[Device::Cpu; 2])
        .micro_batches(2)
        .threads_per_stage(1)
        .build()
        .unwrap()
}

/// The configuration that `train` writes to `config.toml`.
pub(crate) fn config(data: &str) -> String {
    format!(
        "[model]\nname = \"gpt\"\nlayers = 1\nd_model = 32\nheads = 2\ncontext = 16\nvocab = 14\n\
         dropout = 0.0\n\n[pipeline]\nmicro = 2\nthreads_per_stage = 1\n\n[train]\nbatch = 8\n\n\
         [data]\npath = {data:?}\n"
    )
}

fn make() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (text, run) = (folder.path().join("text.txt"), folder.path().join("run"));
    fs::write(&text, TEXT.repeat(60)).unwrap();
    let set = TextSet::read(&text).unwrap();
    let mut pipe = pipeline();
    let mut optimizer = Optimizer::new(AdamW {
        lr: 1e-2,
        ..AdamW::default()
    });
    let mut sampler = Sampler::new(0);
    for _ in 0..STEPS {
        let (x, y) = sampler.batch(&set, 8, 16).unwrap().tensors().unwrap();
        pipe.train_step(x, y, spec().loss()).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
    let config = config(&text.display().to_string());
    let characters: String = set.vocabulary().iter().collect();
    let extras = Extras::new(STEPS)
        .config(&config)
        .part("vocabulary", characters);
    save(&run, &mut pipe, &optimizer, extras);
    fs::write(run.join("config.toml"), config).unwrap();
    folder
}

pub(crate) fn save(run: &Path, pipe: &mut Pipeline, optimizer: &Optimizer, extras: Extras) {
    let mut checkpoints = Checkpointer::new(checkpoints(run)).unwrap();
    checkpoints.save(pipe, optimizer, extras).unwrap();
    checkpoints.finish().unwrap();
}

pub(crate) fn checkpoints(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

/// The mean over the held-out text, as training computes it.
pub(crate) fn held_out_loss(weights: &[(String, gpipe::tch::Tensor)]) -> f64 {
    let set = TextSet::read(&run().join("text.txt")).unwrap();
    assert!(set.part(Split::HeldOut).len() > 100);
    let mut pipe = pipeline();
    pipe.load(weights).unwrap();
    let (mut sum, mut count) = (0.0, 0.0);
    for windows in set.held_out(8, 16) {
        let (x, y) = windows.tensors().unwrap();
        let logits = pipe.forward(&x).unwrap();
        let loss = gpipe::models::zoo::token_cross_entropy(&logits, &y).unwrap();
        sum += loss.double_value(&[]) * y.numel() as f64;
        count += y.numel() as f64;
    }
    sum / count
}
