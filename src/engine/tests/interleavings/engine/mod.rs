//! The engine's own files, compiled against a model checker's locks and threads.

#[path = "../../../carrier.rs"]
mod carrier;
#[path = "../../../compile.rs"]
mod compile;
#[path = "../../../device_stages.rs"]
mod device_stages;
#[path = "../../../entry.rs"]
mod entry;
#[path = "../../../event.rs"]
mod event;
#[path = "../../../failure.rs"]
mod failure;
#[path = "../../../gather.rs"]
mod gather;
#[path = "../../../handle.rs"]
mod handle;
#[path = "../../../in_memory.rs"]
mod in_memory;
#[path = "../../../inboxes.rs"]
mod inboxes;
#[path = "../../../mailbox.rs"]
mod mailbox;
#[path = "../../../mesh.rs"]
mod mesh;
#[path = "../../../message.rs"]
mod message;
#[path = "../../../part.rs"]
mod part;
#[path = "../../../placement.rs"]
mod placement;
#[path = "../../../program.rs"]
mod program;
#[path = "../../../recovery.rs"]
mod recovery;
#[path = "../../../replicas.rs"]
mod replicas;
#[path = "../../../schedules.rs"]
mod schedules;
#[path = "../../../sequence.rs"]
mod sequence;
#[path = "../../../shared.rs"]
mod shared;
#[path = "../../../spin.rs"]
mod spin;
#[path = "../../../stage.rs"]
mod stage;
#[path = "../../../state.rs"]
mod state;
#[path = "../../../step_result.rs"]
mod step_result;
mod sync;
#[path = "../../../task.rs"]
mod task;
#[path = "../../../topology.rs"]
mod topology;
#[path = "../../../turns.rs"]
mod turns;
#[path = "../../../uses.rs"]
mod uses;
#[path = "../../../watchdog.rs"]
mod watchdog;
#[path = "../../../worker.rs"]
mod worker;

pub use carrier::Carrier;
pub use entry::Entry;
pub use failure::EngineError;
pub use handle::Engine;
pub use in_memory::InMemory;
pub use mesh::Mesh;
pub use program::Program;
pub use stage::Stage;
pub use step_result::Settled;
pub use topology::{EdgeId, Topology};
pub use turns::{Sharing, Unpinned};
pub use worker::StageBuilder;
