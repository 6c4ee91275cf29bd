//! The interface of stages.

use gpipe_partitioner::Action;
use std::sync::Arc;

/// Names the layer that a stage is running; callable on any thread at any time.
pub type Observer = Box<dyn Fn() -> Option<String> + Send>;

/// Hint to a stage, before an action, about the use of activations. The engine compiles hints from
/// the schedule, so a stage need not know the schedule.
///
/// Each names an `R`, `B` or `I` of the stage, which consumes the activations that the stage's
/// forward stored for the micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "offload")]
#[doc(alias = "prefetch")]
pub enum ActivationHint {
    /// The forward ran earlier: its activations, if offloaded, can be copied back during the
    /// current action, which may be of any of the device's stages.
    Prefetch(Action),
    /// The action about to run is that forward: offloading its activations would gain nothing, or
    /// the schedule does not offload them.
    Keep(Action),
    /// The action about to run is that forward, whose activations this `R` recomputes: the stage
    /// need keep only its inputs.
    #[doc(alias = "activation checkpointing")]
    Recompute(Action),
}

impl ActivationHint {
    /// The `R`, `B` or `I` that consumes the activations.
    pub const fn consumer(self) -> Action {
        match self {
            Self::Prefetch(next) | Self::Keep(next) | Self::Recompute(next) => next,
        }
    }
}

/// One stage of the model, run by a device's thread.
///
/// A stage is built on the thread of its device, lives there and is dropped
/// there, so it need not be `Send`. The engine calls `begin`, then `run` once for
/// every action of the schedule in the schedule's order, then `end`; a step that
/// fails anywhere ends with `abort` on every stage that began it.
pub trait Stage: 'static {
    /// Value that travels along one edge for one micro-batch.
    type Value: Send + 'static;
    /// Settings of one step, shared by all stages (loss function, training or evaluation, …).
    type Step: Send + Sync + 'static;

    /// Starts a step, before any of its actions has run on this device.
    ///
    /// # Errors
    /// Any error fails the step.
    fn begin(&mut self, step: &Arc<Self::Step>) -> anyhow::Result<()>;

    /// Called before an action if the next one on the same device consumes activations of this
    /// stage, and before a forward that an `R` follows or whose activations stay on the device. A
    /// stage that neither offloads nor recomputes ignores it.
    ///
    /// # Errors
    /// Any error fails the step.
    fn activation_hint(&mut self, hint: ActivationHint) -> anyhow::Result<()> {
        let _ = hint;
        Ok(())
    }

    /// Runs one action.
    ///
    /// The [`Topology`] determines the inputs and outputs of an action:
    ///
    /// | action | takes one value per | returns one value per |
    /// |---|---|---|
    /// | `F` | edge into the stage | edge out of the stage |
    /// | `B`, `I` | gradient edge out of the stage | gradient edge into the stage |
    /// | `W`, `R` | nothing | nothing |
    ///
    /// each in the order of the edges, those from and to the caller included.
    ///
    /// # Errors
    /// Any error, and any panic, fails the step; so does a wrong number of values.
    ///
    /// [`Topology`]: super::Topology
    fn run(&mut self, action: Action, inputs: Vec<Self::Value>)
    -> anyhow::Result<Vec<Self::Value>>;

    /// Exchanges the gradients that this copy of the stage accumulated in the step with its copies
    /// in the other replicas. In training with several replicas, the engine calls it for each round
    /// from 0 to the number of rounds of the [`Program`](super::Program::replicated): round 0
    /// directly after the stage's last `B` or `W` of the step, the others after all actions of the
    /// device. Two rounds are a reduce-scatter and an all-gather.
    ///
    /// Round 0 takes nothing, the last one returns nothing. In between, a round returns one value
    /// for each other replica, in their order, and the next round takes one from each, in the same
    /// order. A replica without micro-batches takes part as well: its round 0 comes after `begin`.
    ///
    /// # Errors
    /// Any error, and any panic, fails the step; so does a wrong number of values. A stage without
    /// an exchange cannot train in several replicas.
    #[doc(alias = "all-reduce")]
    #[doc(alias = "data parallel")]
    fn exchange(
        &mut self,
        round: usize,
        from: Vec<Self::Value>,
    ) -> anyhow::Result<Vec<Self::Value>> {
        let _ = (round, from);
        anyhow::bail!("it has no exchange, without which replicas cannot train")
    }

    /// Ends the step on this device, after its last action; other devices may still be at work.
    ///
    /// # Errors
    /// Any error fails the step.
    fn end(&mut self) -> anyhow::Result<()>;

    /// Drops what is in flight and undoes what the step accumulated, after a failure anywhere.
    /// Called once in a failed step if `begin` was called in it, even if that failed, and even
    /// after `end`: another device may still have been at work.
    fn abort(&mut self);

    /// The layer being run, for errors and panics.
    fn layer(&self) -> Option<String> {
        None
    }

    /// Returns an observer that names the layer from another thread, while the stage's own thread
    /// is busy; none if that is impossible. Called once, after the stage has been built.
    fn observer(&self) -> Option<Observer> {
        None
    }

    /// Bytes of the activations that the stage stores for micro-batches in flight.
    fn bytes_in_flight(&self) -> u64 {
        0
    }
}
