//! How a step begins on a stage, and is undone.

use super::TorchStage;
use crate::torch::step::{Mode, StepSettings};

impl TorchStage {
    pub(super) fn begin_step(&mut self, step: &StepSettings) -> anyhow::Result<()> {
        self.streams.begin_task(step.caller_events.as_deref())?;
        // What an earlier step left must be out of reach of this one's abort.
        self.settle()?;
        self.saved_buffers.clear();
        if matches!(step.mode, Mode::Train { .. }) {
            self.set_aside()?;
            self.save_all_buffers()?;
            self.begin_graphs()?;
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.begin()?;
        }
        Ok(())
    }

    /// Leaves no trace of the last step.
    pub(super) fn undo_step(&mut self) {
        self.verdict = None;
        self.uncommitted = false;
        self.restore_gradients();
        for layer in &self.layers {
            // A layer that cannot even forget: no error is left to tell of it.
            crate::engine::panics::survived(|| layer.layer.discard());
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
