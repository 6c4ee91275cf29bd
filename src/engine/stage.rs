//! What the engine runs.

use gpipe_partitioner::Action;
use std::sync::Arc;

/// Tells, on any thread and at any time, which layer a stage is running.
pub type Observer = Box<dyn Fn() -> Option<String> + Send>;

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

    /// Told before an action is run: directly after it the device takes up what this
    /// stage's forward has left for a micro-batch (`next` is an `R`, `B` or `I` of the
    /// stage; the action to be run is of any of the device's stages). What that needs can
    /// be made ready meanwhile.
    ///
    /// # Errors
    /// Any error fails the step.
    fn ahead(&mut self, next: Action) -> anyhow::Result<()> {
        let _ = next;
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

    /// What tells the same while the stage's own thread is busy, where that is possible;
    /// asked for once, when the stage is built.
    fn observer(&self) -> Option<Observer> {
        None
    }

    /// Bytes of the activations that the stage holds for micro-batches in flight.
    fn bytes_in_flight(&self) -> u64 {
        0
    }
}
