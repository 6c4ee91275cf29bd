//! What becomes of CUDA graphs, told once a stage.

use super::job::Job;
use super::progress::Progress;
use super::{Failure, failure};
use crate::{GraphUse, Pipeline};

/// The stages of which nothing has been told yet; none where nobody asked for graphs.
#[derive(Debug)]
pub(super) struct Untold(Vec<usize>);

impl Untold {
    pub(super) fn new(job: &Job, pipe: &Pipeline) -> Self {
        let asked = job.recipe.cuda_graphs;
        Self((0..pipe.partition().stages()).filter(|_| asked).collect())
    }

    /// After a step: tells what is new.
    pub(super) fn look(&mut self, pipe: &mut Pipeline, progress: &Progress) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let uses = pipe.cuda_graphs().map_err(failure)?;
        self.0.retain(|stage| {
            let news = uses.get(*stage).and_then(|used| news(*stage, used));
            if let Some(news) = &news {
                progress.say(news);
            }
            news.is_none()
        });
        Ok(())
    }
}

fn news(stage: usize, used: &GraphUse) -> Option<String> {
    match &used.eager {
        Some(why) => Some(format!("stage {stage} runs without CUDA graphs: {why}")),
        None if used.replayed > 0 => Some(format!(
            "stage {stage} replays CUDA graphs from now on ({} captured so far)",
            used.captured
        )),
        None => None,
    }
}
