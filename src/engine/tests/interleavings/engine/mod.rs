//! The engine's own files, compiled against a model checker's locks and threads.

#[path = "../../../src/engine/crew.rs"]
mod crew;
#[path = "../../../src/engine/entry.rs"]
mod entry;
#[path = "../../../src/engine/event.rs"]
mod event;
#[path = "../../../src/engine/failure.rs"]
mod failure;
#[path = "../../../src/engine/gather.rs"]
mod gather;
#[path = "../../../src/engine/handle.rs"]
mod handle;
#[path = "../../../src/engine/mailbox.rs"]
mod mailbox;
#[path = "../../../src/engine/message.rs"]
mod message;
#[path = "../../../src/engine/patience.rs"]
mod patience;
#[path = "../../../src/engine/program.rs"]
mod program;
#[path = "../../../src/engine/settled.rs"]
mod settled;
#[path = "../../../src/engine/stage.rs"]
mod stage;
mod sync;
#[path = "../../../src/engine/topology.rs"]
mod topology;
#[path = "../../../src/engine/turns.rs"]
mod turns;
#[path = "../../../src/engine/watchdog.rs"]
mod watchdog;
#[path = "../../../src/engine/worker.rs"]
mod worker;

pub use entry::Entry;
pub use failure::EngineError;
pub use handle::Engine;
pub use message::Sharing;
pub use program::Program;
pub use stage::Stage;
pub use topology::{EdgeId, Topology};
pub use worker::StageBuilder;
