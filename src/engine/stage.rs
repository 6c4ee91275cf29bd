//! What the engine runs.

use gpipe_partitioner::Action;
use std::sync::Arc;

/// Names, on any thread and at any time, the layer that a stage is running.
pub type Observer = Box<dyn Fn() -> Option<String> + Send>;

/// What a stage has to know before an action of what becomes of activations. The engine
/// compiles this from the schedule, so that a stage need not know the schedule.
///
/// Each names an `R`, `B` or `I` of the stage, which consumes the activations that the
/// stage's forward has stored for the micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "offload")]
#[doc(alias = "prefetch")]
pub enum ActivationHint {
    /// The forward ran before: its activations, where they were offloaded, can be copied
    /// back while the action runs, which is of any of the device's stages.
    Prefetch(Action),
    /// The action about to run is that forward: offloading its activations would gain
    /// nothing, or the schedule has others offloaded.
    Keep(Action),
    /// The action about to run is that forward, whose activations this `R` computes once
    /// more: the stage need keep only its inputs.
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

/// What a device's thread runs: one stage of the model.
///
/// A stage is built on the thread of its device, lives there and is dropped
/// there, so it need not be `Send`. The engine calls `begin`, then `run` once for
/// every action of the schedule in the schedule's order, then `end`; a step that
/// fails anywhere ends with `abort` on every stage that began it.
pub trait Stage: 'static {
    /// What travels along one edge for one micro-batch.
    type Value: Send + 'static;
    /// Settings of one step, shared by all stages (loss function, train or eval, …).
    type Step: Send + Sync + 'static;

    /// A step starts: nothing of it has run on this device yet.
    ///
    /// # Errors
    /// Any error fails the step.
    fn begin(&mut self, step: &Arc<Self::Step>) -> anyhow::Result<()>;

    /// Called before an action if the one after it, on the same device, consumes
    /// activations of this stage, and before a forward that an `R` follows. A stage that
    /// neither offloads nor recomputes ignores it.
    ///
    /// # Errors
    /// Any error fails the step.
    fn activation_hint(&mut self, hint: ActivationHint) -> anyhow::Result<()> {
        let _ = hint;
        Ok(())
    }

    /// Runs one action.
    ///
    /// What an action takes and returns follows from the [`Topology`]:
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

    /// Exchanges what this copy of the stage has accumulated in the step with its copies in the
    /// other replicas. The engine calls it for each round from 0 to the number of rounds that
    /// the [`Program`](super::Program::replicated) has, in training and where there are several
    /// replicas: round 0 directly after the stage's last `B` or `W` of the step, the others
    /// after all actions of the device. Two rounds are a reduce-scatter and an all-gather.
    ///
    /// Round 0 takes nothing, the last one returns nothing. In between, what a round returns is
    /// one value for each other replica, in their order, and the next round takes one from
    /// each, in the same order. A replica without micro-batches takes part as well: its round 0
    /// comes after `begin`.
    ///
    /// # Errors
    /// Any error, and any panic, fails the step; so does a wrong number of values. A stage that
    /// has no exchange cannot be one of several replicas in training.
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

    /// The stage's last action of one of several steps in a row is done
    /// ([`Program::in_a_row`](super::Program::in_a_row)), so that its gradients of the step are
    /// whole: it updates its weights, and gets ready for the next step, of which its next action
    /// is, if there is one. `step` counts from 0. Other stages may still be at this step, or may
    /// be at the next one already; if one of them fails, `abort` follows, and what the stage has
    /// updated since `begin` does not count.
    ///
    /// # Errors
    /// Any error, and any panic, fails all of the steps. A stage that does not say how fails.
    #[doc(alias = "post-validation")]
    fn close_step(&mut self, step: usize) -> anyhow::Result<()> {
        anyhow::bail!("it cannot go from step {step} to the next one without an end of the step")
    }

    /// The last action of the step on this device is done; other devices may
    /// still be at work.
    ///
    /// # Errors
    /// Any error fails the step.
    fn end(&mut self) -> anyhow::Result<()>;

    /// The step failed somewhere: drop what is in flight and undo what the step
    /// accumulated. Called once in a failed step if `begin` was called in it, even
    /// if that failed, and even if `end` was reached: another device may still
    /// have been at work.
    fn abort(&mut self);

    /// The layer being run, for errors and panics.
    fn layer(&self) -> Option<String> {
        None
    }

    /// Names the layer from another thread, while the stage's own thread is busy; none
    /// where that is not possible. Called once, when the stage has been built.
    fn observer(&self) -> Option<Observer> {
        None
    }

    /// Bytes of the activations that the stage stores for micro-batches in flight.
    fn bytes_in_flight(&self) -> u64 {
        0
    }
}
