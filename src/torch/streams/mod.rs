//! Streams and events: the order of work on devices that run asynchronously.
//!
//! The host only submits work to a device's *streams*. Work in one stream runs in order;
//! different streams are independent. An *event* is a point in a stream that another stream
//! (or the host) can wait for. These rules keep the numbers right, and simulated GPUs check them
//! (`src/simulated_cuda/checks`):
//!
//! 1. A device's thread computes on a stream of its own, the *main* stream.
//! 2. A value for another device is copied (p2p) on a *side* stream, which first waits for
//!    the main stream's event. The sending accelerator's thread submits the copy as soon as
//!    the action that makes the value is submitted. A value from the host is copied on
//!    another side stream when it is needed, through page-locked memory.
//! 3. The stream that uses an arrived value waits for the copy's event. The host waits only
//!    for a stage that computes on the host itself.
//! 4. Memory belongs to the stream in which it was allocated: once freed, the allocator reuses
//!    it in that stream at once. So the allocator is told of every other stream that uses it
//!    (`record_stream`), at the source and at the destination of a copy.
//! 5. Between two devices on the same accelerator nothing is copied: rules 3 and 4 hold for
//!    the tensor itself.
//! 6. A step, and every other task of the stages, starts after the work in the caller's
//!    current streams, and what the caller submits next runs after the task. Where the caller
//!    changes its streams between two tasks, the new ones wait for the old ones.
//! 7. What a stage keeps for its backwards may be offloaded to the host meanwhile. Two more
//!    side streams copy it out (D2H) and prefetch it (H2D). Here rule 4 holds by waiting
//!    instead of by `record_stream`: offloaded memory is held until the main stream has waited
//!    for the copy, at the end of the device's next action, and a prefetch starts after what
//!    the main stream has in it by then. So memory is freed in the order in which the host
//!    works, however far it is ahead of the device. The allocator would free memory with a
//!    recorded stream only once it finds that stream's event complete.
//! 8. While a thread captures a graph, its main stream gets nothing but what the stage
//!    computes: no event, no copy from elsewhere, no note to the allocator. A graph is
//!    replayed on the main stream, where rules 2 to 4 hold for its inputs and outputs.
//! 9. A capture is a state of the whole device, not of a stream or a thread: the allocator
//!    forgets at the end of a capture which other streams used memory meanwhile, and libtorch
//!    hands out a stream again after 32. So a thread that submits work to a device shares the
//!    device, and a thread that captures has it alone (`submit.rs`; `held.rs` checks it).
//! 10. A value for another process's GPU goes through a `Channel`, whose stream is a side stream as
//!     any other: rules 2 to 4 hold at either end. NCCL puts a transfer into it some time after it is
//!     asked to, and until it has done so the thread that asked keeps the memory and the device.
//!     Through the host's memory it goes as it does for a stage on the host (`ToHost`).
//!
//! The CPU has no streams: for CPU stages none of this happens.

mod captures;
mod channel;
pub mod cuda;
mod device_streams;
mod held;
mod ids;
mod in_transit;
mod left_out;
pub(crate) mod lost;
mod offload;
mod pending;
mod side_stream;
mod submit;
mod task_events;

pub(crate) use captures::GraphPool;
pub(crate) use channel::{Channel, Interrupted};
pub(crate) use device_streams::{DeviceStreams, Route};
pub use ids::{Event, MemorySpace, Stream};
pub(crate) use in_transit::InTransit;
pub(crate) use in_transit::ToHost;
pub(crate) use pending::PendingH2D;
pub(crate) use task_events::{CallerEvents, TaskEvents, TaskLog};
