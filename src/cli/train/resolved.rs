//! The complete configuration of a run, without defaults.

use std::path::{Path, PathBuf};

use super::config;
use super::job::Job;
use super::recipe::Recipe;
use crate::config::toml;
use crate::feed::Source;
use crate::feed::remote::is_url;
use crate::model::sizes;
use gpipe_models::ExportedModel;
use gpipe_torch::Pipeline;

/// A complete configuration: a run trained with it has the same losses.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Contents of the file.
    pub(super) toml: String,
}

/// First line of the file.
const SAME: &str =
    "# What this run was trained with, in full: `train --config` of this file trains the same.";
/// First lines of the file if settings were changed by resuming.
const OTHERS: &str = "# What this run is trained with now, in full. `train --config` of this file does not train the \
                      same, as the first steps had other settings:";

impl Resolved {
    pub(super) fn new(job: &Job, pipe: &Pipeline) -> Self {
        let schema = config::schema(&job.zoo);
        let recipe = recipe(job, pipe);
        let head = format!(
            "{SAME}\n\
             # gpipe-rs {}, libtorch {}, data: {}\n",
            env!("CARGO_PKG_VERSION"),
            gpipe_torch::libtorch_version(),
            // Control characters in a name must not begin a new line.
            job.source.name().replace(char::is_control, " "),
        );
        let simulated = job.simulation();
        let simulated = simulated.map_or_else(String::new, |words| format!("# {words}\n"));
        Self {
            toml: head + &simulated + &toml(&schema, &recipe),
        }
    }

    /// Lists the settings that were changed by resuming.
    pub(super) fn after(self, changes: &[String]) -> Self {
        if changes.is_empty() {
            return self;
        }
        let head = format!("{OTHERS}\n{}", changes.join("\n"));
        Self {
            toml: self.toml.replacen(SAME, &head, 1),
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
        // Some kernels sum in an order that depends on it.
        threads_per_stage: Some(pipe.threads_per_stage()),
        data: data(job),
        eval_data: recipe.eval_data.as_deref().map(absolute),
        weights: recipe.weights.as_deref().map(absolute),
        tokenizer: recipe.tokenizer.as_deref().map(absolute),
        // The plan's decisions are in the other fields.
        plan: None,
        ..recipe.with_optimizer_in_full()
    }
}

fn absolute(path: &Path) -> PathBuf {
    if is_url(path) {
        return path.to_owned();
    }
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the absolute path of the data; `None` for the built-in text.
fn data(job: &Job) -> Option<PathBuf> {
    match &job.source {
        Source::Text { path, .. } | Source::Tokens { path, .. } | Source::Samples { path, .. } => {
            path.as_deref().map(absolute)
        }
        Source::Synthetic(_) => Some(Path::new(&job.source.name()).to_owned()),
    }
}
