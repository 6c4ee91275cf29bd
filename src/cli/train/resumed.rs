//! Checks that a resumed run's configuration still fits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::schema;
use super::configured::Saved;
use super::job::Job;
use super::options::Args;
use super::recipe::Recipe;
use crate::config::diff;
use crate::feed::SYNTHETIC;
use crate::trained::{saved_samples, saved_tokenizer, saved_vocabulary};
use crate::world::leads;
use crate::{Failure, failure, say};
use gpipe_torch::Kernels;
use gpipe_torch::world::World;
use gpipe_train::{Resume, ResumeOptions};

/// Opens the run to resume, in its own folder or as a `fork` in another.
pub(super) fn open(
    run: &Path,
    fork: Option<PathBuf>,
    args: &Args,
    world: Option<&Arc<World>>,
) -> Result<Resume, Failure> {
    let options = ResumeOptions::default()
        .fork(fork)
        .fallback(args.resume_fallback)
        .world(world);
    let warn = &mut |warning: &str| {
        if leads(world) {
            say(&format!("warning: {warning}"));
        }
    };
    let resume = Resume::open(run, &options, warn).map_err(failure)?;
    let every = every(resume.config().1);
    resume.check_unsaved(every).map_err(failure)?;
    Ok(resume)
}

/// Returns the run's saved configuration, the lowest layer.
///
/// # Errors
/// The tokenizer in its checkpoint is invalid.
pub(super) fn saved(resume: &Resume) -> Result<Saved, Failure> {
    let (path, text) = resume.config();
    let tokenizer = resume.checkpoint().map(saved_tokenizer).transpose()?;
    Ok(Saved {
        path: path.to_owned(),
        text: text.to_owned(),
        trained: resume.checkpoint().is_some(),
        tokenizer: tokenizer.flatten(),
        samples: resume.checkpoint().and_then(saved_samples),
    })
}

/// Differences between a saved run and the resumed one.
#[derive(Debug, Default)]
pub(super) struct GoesOn {
    /// Lines to print.
    pub(super) notes: Vec<String>,
    /// Lines about changed settings, with the steps of the changes.
    pub(super) changes: Vec<String>,
}

/// Prefix of a changed setting's line in the configuration file.
const CHANGE: &str = "# from step ";

/// Checks that the resolved configuration can resume the saved run, and lists the differences.
///
/// # Errors
/// A changed setting must not change.
pub(super) fn check(resume: &Resume, job: &Job, resolved: &str) -> Result<GoesOn, Failure> {
    let note = resume.note();
    let Some(from) = resume.checkpoint() else {
        if resume.repeated() == 0 {
            return Ok(GoesOn {
                notes: vec![note],
                ..GoesOn::default()
            });
        }
        // Printed even if quiet.
        if leads(job.world.as_ref()) {
            say(&format!("warning: {note}"));
        }
        return Ok(GoesOn::default());
    };
    let own = &from.extras().config;
    let new = diff(
        &schema(&job.zoo),
        &Recipe {
            // The kernels before there was a choice.
            kernels: Some(Kernels::Libtorch),
            ..Recipe::defaults()
        },
        &moved(own, resolved),
        resolved,
    )?;
    let told = new.iter().map(|change| {
        format!("{change}: from here on its losses are others than they would have been")
    });
    let notes = std::iter::once(note).chain(told).collect();
    let before = own.lines().filter(|line| line.starts_with(CHANGE));
    let next = resume.step() + 1;
    let new = new
        .iter()
        .map(|change| format!("{CHANGE}{next} on: {change}"));
    let changes = before.map(str::to_owned).chain(new).collect();
    if let (Some(saved), Some((set, _))) = (saved_vocabulary(from)?, job.source.text())
        && !saved.chars().eq(set.vocabulary().iter().copied())
    {
        return Err(Failure::Usage(format!(
            "--resume: the text {} has other characters than the one that the run was trained on: name \
             that one with --data",
            job.source.name()
        )));
    }
    Ok(GoesOn { notes, changes })
}

/// Checks that a run resumes with the kind of data that it was trained on. A moved or changed file is
/// detected where it is read.
///
/// # Errors
/// The data is of another kind; the error says what to do.
pub(super) fn check_data(saved: &Saved, recipe: &Recipe) -> Result<(), Failure> {
    let config: Option<toml::Table> = saved.text.parse().ok();
    let path = config
        .as_ref()
        .and_then(|own| own.get("data")?.get("path")?.as_str());
    let (before, now) = (path.map(Path::new), recipe.data.as_deref());
    let are_files = |path: Option<&Path>| path.is_some_and(|own| own != Path::new(SYNTHETIC));
    if !saved.trained || before == now || (are_files(before) && are_files(now)) {
        return Ok(());
    }
    let before = before.map_or_else(
        || "the built-in text".to_owned(),
        |own| own.display().to_string(),
    );
    Err(Failure::Usage(format!(
        "--resume: the run was trained on {before}, and goes on with that alone: leave --data out, or train \
         on other data in a new run, without --resume"
    )))
}

/// Returns the saved configuration with the present path of an unchanged exported program.
fn moved(saved: &str, resolved: &str) -> String {
    let (Ok(mut before), Ok(now)) = (
        saved.parse::<toml::Table>(),
        resolved.parse::<toml::Table>(),
    ) else {
        return saved.to_owned();
    };
    let of = |config: &toml::Table, key: &str| config.get("model")?.get(key).cloned();
    let (was, is) = (of(&before, "fingerprint"), of(&now, "fingerprint"));
    let model = before.get_mut("model").and_then(|own| own.as_table_mut());
    match (model, of(&now, "name")) {
        (Some(model), Some(name)) if was.is_some() && was == is => {
            model.insert("name".to_owned(), name);
        }
        _ => return saved.to_owned(),
    }
    before.to_string()
}

/// Steps between checkpoints of the run.
fn every(config: &str) -> Option<u64> {
    let config: toml::Table = config.parse().ok()?;
    let every = config.get("checkpoint")?.get("every")?.as_integer()?;
    u64::try_from(every).ok()
}
