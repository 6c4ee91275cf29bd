//! How a step begins on a stage, and is undone.

use tch::{Kind, Tensor};

use super::TorchStage;
use crate::torch::error::TorchError;
use crate::torch::step::{Mode, StepSettings};
use crate::torch::step_state::Gathered;

impl TorchStage {
    pub(super) fn begin_step(&mut self, step: &StepSettings) -> anyhow::Result<()> {
        self.streams.begin_task(step.caller_events.as_deref())?;
        // What an earlier step left must be out of reach of this one's abort.
        self.commit_step()?;
        self.saved_buffers.clear();
        if matches!(step.mode, Mode::Train { .. }) {
            self.accumulator.set_aside()?;
            self.save_all_buffers()?;
            self.begin_graphs()?;
        }
        if let Some(meter) = &mut self.meter {
            meter.begin_step()?;
        }
        Ok(())
    }

    /// What can only be done once it is certain that the last step ended well on
    /// every stage: its gradients join those of earlier steps, and layers commit
    /// what they gathered.
    pub(super) fn commit_step(&mut self) -> anyhow::Result<()> {
        if self.accumulator.wait_for_found_inf()? {
            self.undo_step();
        }
        self.accumulator.commit()?;
        let commit = |Gathered { layer, state }: Gathered| {
            let name = &self.layers[layer].name;
            crate::torch::caught(|| state.commit())
                .map_err(|error| error.context(format!("layer `{name}`")))
        };
        // The step counts for all of them, also where one fails.
        let all = self.step_states.take().into_iter().map(commit);
        all.collect::<Vec<_>>().into_iter().collect()
    }

    /// Puts back what buffers held before the step where it does not count.
    pub(super) fn undo_buffers_where(&mut self, found_inf: &Tensor) -> Result<(), TorchError> {
        let saved = std::mem::take(&mut self.saved_buffers);
        tch::no_grad(|| {
            let bad = found_inf.f_to_kind(Kind::Bool)?;
            for ((_, buffer), saved) in self.buffers.iter().zip(&saved) {
                let right = saved.f_where_self(&bad, buffer)?;
                buffer.shallow_clone().f_copy_(&right)?;
            }
            Ok(())
        })
    }

    /// Leaves no trace of the last step.
    pub(super) fn undo_step(&mut self) {
        self.accumulator.undo();
        for gathered in self.step_states.take() {
            // Where even this panics, the step's own error is the one to report.
            crate::engine::panics::survived(|| gathered.state.discard());
        }
        // Copies between tensors that were made as copies of each other.
        let saved = std::mem::take(&mut self.saved_buffers);
        tch::no_grad(|| {
            for ((_, buffer), saved) in self.buffers.iter().zip(&saved) {
                let _ = buffer.shallow_clone().f_copy_(saved);
            }
        });
    }
}
