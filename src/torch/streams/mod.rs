//! Streams and events: who waits for whom on devices that work by themselves.
//!
//! The host only puts work into a device's *streams*; work in one stream runs in
//! order, work in different streams as it comes. An *event* is a point in a stream
//! that another stream (or the host) can wait for. The rules that keep the numbers
//! right, and that [`Recorder`] checks:
//!
//! 1. A device's thread computes on a stream of its own, the *main* one.
//! 2. What leaves for another device is copied on a *side* stream, which first waits
//!    for the main one's event; the thread of the accelerator does it, as soon as the
//!    action that made the value is in the stream. What comes from the host is copied
//!    on another side stream when it is wanted, by way of page-locked memory.
//! 3. The stream that uses what arrived waits for the copy's event. The host does not,
//!    but for a stage that computes on the host itself.
//! 4. Memory belongs to the stream on which it was taken: the allocator gives it out
//!    again to that stream at once. So every other stream that uses it is told to the
//!    allocator, for what leaves (source) and what arrives (destination).
//! 5. Between two devices on the same accelerator nothing is copied: rules 3 and 4 hold
//!    for the tensor itself.
//! 6. A step, and every other task of the stages, starts behind what is on the caller's
//!    current streams, and what the caller does next comes behind it.
//!
//! 7. What a stage keeps for its backwards may be on the host meanwhile. It goes and
//!    comes on two more side streams, and rule 4 holds by waiting instead of telling: what
//!    has left is held until the main stream has waited for the copy, at the end of the
//!    device's next action, and what comes back is copied behind what the main stream has
//!    in it by then. So memory is free in the order in which the host works, however far
//!    ahead of the device it is; the allocator would let go of what it was told of only
//!    when it finds the other stream's event over.
//! 8. While a thread captures a graph, nothing is told to its main stream but what the
//!    stage computes: no event, no copy from elsewhere, no note to the allocator. A graph
//!    is replayed on the main stream, where rules 2 to 4 hold for what goes in and out.
//!
//! 9. "A graph is being captured" is true of a device, not of a stream or a thread: what
//!    the allocator is told meanwhile of other streams' uses it forgets when the capture
//!    ends, and libtorch gives out a stream again after 32. So who tells a device something
//!    shares it, and who captures has it alone (`capture_lock.rs`).
//!
//! The CPU has no streams: there, nothing of this happens.

mod backend;
mod capture_lock;
mod captures;
mod device_streams;
mod in_transit;
mod lost;
mod offload;
mod recorder;
mod side_stream;
mod task_events;

pub use recorder::{Disorder, Recorder, Summary};

pub(crate) use backend::{Backend, Event, MemorySpace, Stream};
pub(crate) use captures::{CapturedGraph, GraphPool, can_capture};
pub(crate) use device_streams::{DeviceStreams, Route};
pub(crate) use in_transit::InTransit;
pub(crate) use offload::PendingH2D;
pub(crate) use task_events::{CallerEvents, TaskEvents, TaskLog};
