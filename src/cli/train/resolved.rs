//! What a run was trained with, in full: nothing is left to defaults.

use std::path::{Path, PathBuf};

use super::config;
use super::job::Job;
use super::recipe::Recipe;
use crate::cli::config::{lines, toml};
use crate::cli::feed::Source;
use crate::cli::feed::remote::is_url;
use crate::cli::model::sizes;
use crate::decide::output;
use crate::models::ExportedModel;
use crate::{AdamW, Kernels, OptimizerKind, Pipeline, Sgd};

/// A configuration that says everything: trained by it, a run gives the same losses.
#[derive(Debug)]
pub(super) struct Resolved {
    /// The file.
    pub(super) toml: String,
    /// For people what is not usual, a paragraph for each table.
    pub(super) lines: Vec<String>,
}

impl Resolved {
    pub(super) fn new(job: &Job, pipe: &Pipeline) -> Self {
        let schema = config::schema(&job.zoo);
        let recipe = recipe(job, pipe);
        let head = format!(
            "# What this run was trained with, in full: `train --config` of this file trains the same.\n\
             # gpipe-rs {}, libtorch {}, data: {}\n",
            env!("CARGO_PKG_VERSION"),
            crate::libtorch_version(),
            // A name is no reason for a second line.
            job.source.name().replace(char::is_control, " "),
        );
        let simulated = job.simulation();
        let simulated = simulated.map_or_else(String::new, |words| format!("# {words}\n"));
        Self {
            toml: head + &simulated + &toml(&schema, &recipe),
            lines: lines(&schema, (&recipe, &usual(&recipe)), output::width(None)),
        }
    }
}

fn recipe(job: &Job, pipe: &Pipeline) -> Recipe {
    let recipe = &job.recipe;
    let (spec, loss) = (&job.chosen.spec, job.chosen.loss());
    Recipe {
        model: match spec.exported() {
            Some(model) => absolute(model.path()).display().to_string(),
            None => spec.name().to_owned(),
        },
        fingerprint: spec.exported().map(ExportedModel::fingerprint),
        loss: loss.map(|loss| loss.kind()),
        sizes: sizes(&job.chosen.spec),
        balance: Some(pipe.partition().balance()),
        chunks: Some(recipe.chunks()),
        // Some kernels add up in an order that depends on it.
        threads_per_stage: Some(pipe.threads_per_stage()),
        data: data(job),
        eval_data: recipe.eval_data.as_deref().map(absolute),
        weights: recipe.weights.as_deref().map(absolute),
        tokenizer: recipe.tokenizer.as_deref().map(absolute),
        // What it decides stands in the other fields.
        plan: None,
        ..recipe.with_optimizer_in_full()
    }
}

/// What nobody has to be told: defaults, and what stands in a sentence of its own. Whatever they are,
/// the mini-batch and its parts, the optimizer and its rate are told.
fn usual(recipe: &Recipe) -> Recipe {
    let other = match recipe.optimizer {
        OptimizerKind::Sgd(_) => AdamW::default().into(),
        _ => Sgd::default().into(),
    };
    Recipe {
        batch: 0,
        optimizer: other,
        lr: f64::NAN,
        balance: recipe.balance.clone(),
        micro: 0,
        kernels: Some(Kernels::auto()),
        data: recipe.data.clone(),
        chunks: Some(recipe.schedule.default_chunks()),
        ..Recipe::defaults().with_optimizer_in_full()
    }
}

fn absolute(path: &Path) -> PathBuf {
    if is_url(path) {
        return path.to_owned();
    }
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// From whatever folder it is read; nothing for the built-in text.
fn data(job: &Job) -> Option<PathBuf> {
    match &job.source {
        Source::Text { path, .. } | Source::Tokens { path, .. } | Source::Samples { path, .. } => {
            path.as_deref().map(absolute)
        }
        Source::Synthetic(_) => Some(Path::new(&job.source.name()).to_owned()),
    }
}
