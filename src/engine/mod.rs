//! Runs a checked schedule over stages of any kind, one thread per device.

mod crew;
mod entry;
mod event;
mod failure;
mod handle;
mod mailbox;
mod message;
mod program;
mod stage;
mod sync;
mod topology;
mod worker;

pub use entry::{Entry, EntryError, Outcome, Values};
pub use event::Event;
pub use failure::{EngineError, Panicked, Phase, StageError};
pub use handle::Engine;
pub use program::Program;
pub use stage::Stage;
pub use topology::{Edge, EdgeId, End, Topology, TopologyError};
pub use worker::StageBuilder;
