//! Runs a checked schedule over stages of any kind, one thread per device.
//!
//! A [`CheckedSchedule`](gpipe_partitioner::CheckedSchedule) says what each device
//! does, in which order; a [`Topology`] says which values travel between the
//! stages; [`Program`] is the one compiled against the other. An [`Engine`] owns
//! the [`Stage`]s and runs programs over them, a step at a time.
//!
//! ```
//! use gpipe_engine::{EdgeId, Engine, Entry, Program, Stage, StageBuilder, Topology};
//! use gpipe_partitioner::{Action, MicroId, ScheduleKind, Shape, StageId};
//! use std::sync::Arc;
//!
//! /// Adds a number.
//! struct Add(i64);
//!
//! impl Stage for Add {
//!     type Value = i64;
//!     type Step = ();
//!     fn begin(&mut self, _: &Arc<()>) -> anyhow::Result<()> { Ok(()) }
//!     fn run(&mut self, _: Action, inputs: Vec<i64>) -> anyhow::Result<Vec<i64>> {
//!         Ok(inputs.into_iter().map(|x| x + self.0).collect())
//!     }
//!     fn end(&mut self) -> anyhow::Result<()> { Ok(()) }
//!     fn abort(&mut self) {}
//! }
//!
//! let build = |device: usize| {
//!     let build = move || Ok(vec![(StageId(device), Add(10))]);
//!     Box::new(build) as StageBuilder<Add>
//! };
//! let mut engine = Engine::new(vec![build(0), build(1)])?;
//!
//! let shape = Shape { devices: 2, chunks: 1, micro_batches: 3 };
//! let schedule = ScheduleKind::ForwardOnly.generate(shape)?;
//! let program = Arc::new(Program::new(schedule, &Topology::chain(2))?);
//! let entry = |m| Entry { edge: EdgeId(0), micro: MicroId(m), value: m as i64 };
//! let outcome = engine.step(&program, Arc::new(()), (0..3).map(entry).collect())?;
//! assert_eq!(outcome.exits.into_values().collect::<Vec<_>>(), [20, 21, 22]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Protocol
//!
//! **Who shares what.** An engine with p devices has p worker threads and p + 1
//! mailboxes: one inbox per worker, and one for the reports to the caller. Nothing
//! else is shared but what never changes (the program, the step's settings) and, where
//! devices take turns, whose turn it is. A
//! mailbox is a locked queue with any number of writers and a single reader.
//!
//! **A step.** The caller puts into every inbox, under one lock, the order to run
//! the step followed by the caller's own values for that device. A worker calls
//! `begin` on its stages and goes through its list of actions. Each action's
//! inputs have numbered places, *slots*, in the worker's private table; the worker
//! empties its inbox into the table until all slots of the action are filled, runs
//! the action, and posts each value that it made straight to the slot of the
//! action that will take it: in its own table, in another worker's inbox, or in
//! its report. After the last action it calls `end` and reports. `step` returns
//! when p reports are in.
//!
//! **Early and late messages.** Arrival order does not matter, since a value goes
//! to its slot and a slot is filled once in a step. A worker that has not heard of
//! a step yet may already get values of it, from a peer that was faster: they go
//! to their slots all the same, because nothing of the step before can still be
//! there or still arrive. That is so because a step is bounded on both sides: it
//! starts after every worker reported the end of the one before, a worker posts
//! nothing after its report, and a step that went well used up every value that
//! was posted (each is taken by exactly one action).
//!
//! **Failure.** An error or a panic is caught at the border of the stage. The
//! worker posts a stop notice to every peer, then reports. A worker notices stop
//! notices before each action and while it waits for inputs; it leaves the step
//! and reports that. The first failure in the caller's mailbox is the step's. When
//! all p reports are in, nobody will post another value; only then the caller
//! orders all workers to abort, and since an inbox keeps its order, a worker that
//! reads this order has everything that was posted before it: it drops all of it,
//! forgets the stop notice, lets the stages that began the step abort, and
//! reports. When these reports are in, no trace of the step is left.
//!
//! **End.** The order to exit may come at any time, even in the middle of a step
//! that the caller has given up (by unwinding): a worker treats it like a stop
//! notice, drops its stages and ends. Dropping the engine posts it to every inbox
//! and joins every thread. Should a worker's thread die by itself, a guard on its
//! stack reports that; the call in progress returns
//! [`WorkerLost`](EngineError::WorkerLost), and the engine refuses further calls.
//!
//! **Turns.** Where devices share fewer cores than they are
//! ([`Engine::taking_turns`]), a worker that has the inputs of an action waits for a place
//! to run it at. The turns know the program: whoever has done an action tells them what it
//! is about to send and gives its place back, and in the same moment, under the same lock,
//! every free place goes to the most urgent device whose next action then has all it
//! needs, awake or not. A worker gives its place back after every action, at the end of
//! the step, and when it fails; a value that was told is sent without fail. So who has a
//! place works or is about to, and everybody's turn comes.
//!
//! **Waiting.** No thread waits for another except in `Mailbox::wait`, on the
//! condition variable of its own mailbox, and for its turn; it holds no lock while a
//! stage runs: so there is no cycle of locks. Before a worker sleeps there it watches its
//! mailbox for a moment, since most waits inside a step are shorter than a wake-up;
//! only speed depends on that. A wake-up cannot be lost: the reader announces
//! that it sleeps under the lock under which it found the queue empty, and a
//! writer that appends under the same lock sees the announcement and notifies.
//! That a reader waits for something that will be posted follows from the
//! schedule: it was proved free of deadlock with every dependency from one stage
//! to the next, and the edges of a topology only lead to later stages.
//!
//! **Patience.** A thread cannot be taken out of the code of a stage that blocks. Where the
//! caller has patience for a limited time ([`Engine::set_patience`]), it looks at the workers' notes
//! while it waits for reports: a worker notes what it is about to do before it calls a stage, and
//! that it does nothing afterwards. If a note has stood for too long, the caller posts a stop
//! notice to everybody, waits for the reports of all others, and returns
//! [`Stalled`](EngineError::Stalled). The missing reports are owed: the next call begins by waiting for
//! them, in the same way, and by ordering all workers to abort, as after any failure. A call that was no
//! step cannot be undone, and leaves the engine broken. Dropping the engine joins no thread that
//! still owes a report: it finds the order to exit should it ever come back.
//!
//! **Memory order.** All values pass through the mutex of a mailbox: what a writer
//! did before it posted happens before what the reader does after it took. No value
//! goes through the turns, and none through the notes. The only other shared variable is a
//! mailbox's hint that something is there; it is read and written relaxed, because a late `false` costs a
//! look under the lock, a late `true` costs a lock for nothing, and nobody sleeps on its
//! account.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod device_stages;
mod entry;
mod event;
mod failure;
mod gather;
mod handle;
mod mailbox;
mod message;
pub mod panics;
mod program;
mod recovery;
mod shared;
mod sharing;
mod spin;
mod stage;
mod sync;
mod topology;
mod turns;
mod watchdog;
mod worker;

#[cfg(test)]
#[path = "tests/inside/lost_thread.rs"]
mod lost_thread;

pub use entry::{EdgeValues, Entry, EntryError, StepOutcome};
pub use event::ActionEvent;
pub use failure::{EngineError, Panicked, Phase, StageError};
pub use handle::Engine;
pub use program::Program;
pub use sharing::{Affinity, Sharing, Unpinned};
pub use stage::{Observer, OffloadHint, Stage};
pub use topology::{Edge, EdgeId, End, Topology, TopologyError};
pub use watchdog::Stall;
pub use worker::StageBuilder;
