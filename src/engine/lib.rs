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
//! **Threads and mailboxes.** An engine with p devices has p worker threads, `stage-0`,
//! `stage-1` and so on, and p + 1 mailboxes: an inbox per worker, and one for the reports to
//! the caller. A mailbox is a locked queue with any number of writers and a single reader.
//! A worker builds the stages of its device, keeps them, and drops them, all on its own
//! thread. The threads share nothing else but immutable data (the program, the settings of a
//! step), a note of what each worker is doing and, where devices take turns, the core slots.
//!
//! **A step.** The caller puts into every inbox, under one lock, the command to run the
//! step, followed by the caller's own values for that device. A worker calls `begin` on its
//! stages and goes through its list of actions. The inputs of each action have numbered
//! *slots* in the worker's private table. The worker empties its inbox into the table until
//! all slots of the action are filled, runs the action, and posts each output to the slot of
//! the action that consumes it: in its own table, in another worker's inbox, or in its
//! report. After the last action it calls `end` and reports. `step` returns when p reports
//! have arrived.
//!
//! **Early and late messages.** Arrival order does not matter, since every value has a slot
//! and a slot is filled once per step. A worker can receive values of a step before the
//! command to run it, from a peer that was faster. They go to their slots all the same,
//! because no value of the step before can still be in the table or in flight: a step begins
//! after every worker has reported the end of the one before, a worker posts nothing after
//! its report, and a successful step consumes every value that was posted, each by exactly
//! one action.
//!
//! **Failure.** An error or a panic of a stage is caught where the stage is called. The
//! worker posts a stop notice to every peer, then reports. A worker checks for stop notices
//! before each action and while it waits for inputs; it leaves the step and reports that.
//! The first failure in the caller's mailbox is the step's error. When all p reports have
//! arrived, no worker will post another value, and only then does the caller command all
//! workers to abort. An inbox keeps its order, so a worker that reads this command has
//! everything that was posted before it. It drops all of it, clears the stop notice, calls
//! `abort` on the stages that began the step, and reports. When these reports have arrived,
//! no trace of the step is left.
//!
//! **End.** The command to exit may come at any time, even in the middle of a step that the
//! caller has abandoned by unwinding: a worker treats it as a stop notice, drops its stages
//! and ends. Dropping the engine posts it to every inbox and joins every thread. If a
//! worker's thread dies unexpectedly, a guard on its stack reports that; the call in progress
//! returns [`WorkerLost`](EngineError::WorkerLost), and the engine refuses further calls.
//!
//! **Turns.** Where devices share fewer cores than there are devices
//! ([`Engine::taking_turns`]), a worker that has the inputs of an action waits for a core
//! slot. A worker that ends an action announces what it is about to send and releases its
//! slot; under the same lock, every free slot is granted to the most urgent device whose
//! next action then has all its inputs, whether its thread is awake or not. A worker releases
//! its slot after every action, at the end of the step, and when it fails; a value that was
//! announced is always sent. So a device that holds a slot runs or is about to run, and every
//! device gets its turn.
//!
//! **Waiting.** A thread waits for another only in `Mailbox::wait`, on the condition variable
//! of its own mailbox, and for its turn. It holds no other lock there and none while a stage
//! runs: so there is no cycle of locks. Before a worker sleeps it polls its mailbox for a
//! moment, since most waits inside a step are shorter than a wake-up; only speed depends on
//! that. A wake-up cannot be lost: the reader announces that it sleeps under the lock under
//! which it found the queue empty, and a writer that appends under the same lock sees the
//! announcement and notifies. That a reader waits for something that will be posted follows
//! from the schedule: it was proved free of deadlock with every dependency from one stage to
//! the next, and the edges of a topology only lead to later stages.
//!
//! **Stalls.** A thread cannot be taken out of the code of a stage that blocks. Where the
//! caller's patience is limited ([`Engine::set_patience`]), it polls the workers' notes while
//! it waits for reports: a worker notes what it is about to do before it calls a stage, and
//! that it is idle afterwards. If a note has not changed for too long, the caller posts a
//! stop notice to every worker, waits for the reports of all others, and returns
//! [`Stalled`](EngineError::Stalled). The missing reports are overdue: the next call begins by
//! waiting for them, with the same patience, and by commanding all workers to abort, as after
//! any failure. A call other than a step cannot be undone, and leaves the engine broken.
//! Dropping the engine does not join a thread whose report is overdue: that thread reads the
//! command to exit if the stage ever returns.
//!
//! **Several processes.** A pipeline may have devices in other processes: each has an engine of
//! its own devices ([`Engine::part`]), compiles the same program and calls `step` as the others
//! do. A value's device and slot are the same numbers everywhere, so a worker gives a value for
//! a device elsewhere to the [`Carrier`], which never makes it wait, and the carrier of that
//! process puts it into the inbox, through the [`Door`] that the engine opens when a step
//! begins. A worker that fails has the carrier stop the workers elsewhere. When the workers of
//! a process have reported ([`Engine::run`]), its caller *votes* and waits for all others
//! ([`Engine::settle`]): the step counts if all have done their part and can say what it came to.
//! The vote carries what they say, so that it needs no round of its own; that a vote which has
//! ended in one process comes to the same end in all is the carrier's promise. A vote is a barrier, so a fast process can send values of the next
//! step only when nobody waits for values of this one; the carrier keeps them until the door
//! opens again. If the vote fails, all *renew*, after which nothing of the failed step is on its
//! way any more, and only then command their workers to abort. A process that is lost fails the
//! votes of all others, and so does one whose call did not come to its end or whose stage
//! stalled: what it would have to undo, nobody can wait for.
//!
//! **Replicas.** A program may run several replicas of a pipeline ([`Program::replicated`]), each
//! on devices of its own, which a [`Mesh`] numbers; its micro-batches are numbered through all
//! replicas. Between them go only the values of exchanges ([`Stage::exchange`]), which are tasks
//! in the devices' lists as actions are: with slots, turns, notes and failures like those. A
//! stage's first round comes directly after its last backward and waits for nothing; its other
//! rounds come behind all actions of the device, ordered by round. So no action waits for an
//! exchange, and a round waits only for rounds before it, of all devices: there is no cycle.
//!
//! **Memory order.** All values pass through the mutex of a mailbox: what a writer did before
//! it posted happens before what the reader does after it took. No value goes through the
//! turns or the notes. The only other shared variable is a mailbox's hint that it is not
//! empty. It is read and written relaxed: a late `false` costs a look under the lock, a late
//! `true` costs a lock for nothing, and no thread sleeps because of it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod carrier;
mod compile;
mod device_stages;
mod entry;
mod event;
mod failure;
mod gather;
mod handle;
mod in_memory;
mod inboxes;
mod mailbox;
mod mesh;
mod message;
pub mod panics;
mod part;
mod placement;
mod program;
mod recovery;
mod replicas;
mod schedules;
mod sequence;
mod shared;
mod spin;
mod stage;
mod state;
mod step_result;
mod sync;
mod task;
mod topology;
mod turns;
mod uses;
mod watchdog;
mod worker;

#[cfg(test)]
#[path = "tests/inside/lost_thread.rs"]
mod lost_thread;

pub use carrier::{Ballot, Carrier, Door, Lost, UnwantedValue, Verdict};
pub use entry::{Entry, EntryError};
pub use event::ActionEvent;
pub use failure::{EngineError, Panicked, Phase, StageError, Stall};
pub use handle::Engine;
pub use in_memory::InMemory;
pub use mesh::Mesh;
pub use program::{Address, Program};
pub use stage::{ActivationHint, Observer, Stage};
pub use step_result::{EdgeValues, Ran, Settled, StepOutcome};
pub use topology::{Edge, EdgeId, End, Topology, TopologyError};
pub use turns::{Affinity, Sharing, Unpinned};
pub use worker::StageBuilder;
