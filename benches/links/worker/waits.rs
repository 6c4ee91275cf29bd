//! A stage that waits instead of computing.

use std::sync::Arc;
use std::time::Duration;

use gpipe::Values;
use gpipe::engine::Stage;
use gpipe::partitioner::{Action, ActionKind, Bytes, StageTimes};
use gpipe::tch::{Device, Kind, Tensor};

/// Waits as long as each action takes, and returns the same values each time.
pub struct Waits {
    pub times: StageTimes,
    /// Output for the next stage, and gradient for the previous one.
    pub output: Tensor,
    pub gradient: Tensor,
}

impl Stage for Waits {
    type Value = Values;
    type Step = ();

    fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> {
        Ok(())
    }

    fn run(&mut self, action: Action, _: Vec<Values>) -> anyhow::Result<Vec<Values>> {
        let micros = self.times.of(action.kind).get();
        std::thread::sleep(Duration::from_secs_f64(micros / 1e6));
        let value = |own: &Tensor| vec![Values::from(own.shallow_clone())];
        Ok(match action.kind {
            ActionKind::Forward => value(&self.output),
            ActionKind::Backward | ActionKind::BackwardInput => value(&self.gradient),
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
        })
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// A tensor of `of` bytes, at least one.
pub fn bytes(of: Bytes) -> Tensor {
    Tensor::zeros([of.get().max(1) as i64], (Kind::Uint8, Device::Cpu))
}
