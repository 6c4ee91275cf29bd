//! Reports the use of CUDA graphs, once per stage.

use super::error::TrainError;
use super::hook::Hooks;
use gpipe_torch::{GraphUse, Pipeline};

/// The stages not yet reported; none if graphs were not requested.
#[derive(Debug, Default)]
pub(super) struct GraphNotices(Vec<usize>);

impl GraphNotices {
    pub(super) fn new(pipe: &mut Pipeline) -> Result<Self, TrainError> {
        Ok(Self((0..pipe.cuda_graphs()?.len()).collect()))
    }

    /// Reports news after a step.
    pub(super) fn look(
        &mut self,
        pipe: &mut Pipeline,
        hooks: &mut Hooks<'_>,
    ) -> Result<(), TrainError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let uses = pipe.cuda_graphs()?;
        self.0.retain(|stage| {
            let news = uses.get(*stage).and_then(|used| news(*stage, used));
            if let Some(news) = &news {
                hooks.note(news);
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
