//! The thread of a device.

use super::device_stages::DeviceStages;
use super::event::{Events, Log};
use super::failure::{StageError, discard, guarded};
use super::message::{Command, Message, Reply, StepCommand, StepRecord};
use super::program::{Destination, Exit, Op};
use super::shared::Shared;
use super::stage::Stage;
use super::sync::SPIN;
use super::watchdog::Activity;
use gpipe_partitioner::{DeviceId, StageId};
use std::sync::Arc;

/// Builds the stages of one device, on the thread of that device.
pub type StageBuilder<S> = Box<dyn FnOnce() -> anyhow::Result<Vec<(StageId, S)>> + Send>;

/// The body of a device's thread.
pub(super) fn run_worker<S: Stage>(index: usize, shared: Arc<Shared<S>>, builder: StageBuilder<S>) {
    let device = shared.devices()[index];
    let mut guard = ExitGuard {
        device,
        shared: Arc::clone(&shared),
        lost: true,
    };
    let built = guarded(|| {
        let replica = shared.inboxes.mesh().named_replica(device);
        let stages = DeviceStages::new(builder()?, replica);
        let observers = stages.observers();
        Ok((stages, observers))
    });
    match built {
        Ok((stages, observers)) => {
            shared.report(device, Reply::Built(stages.ids(), observers));
            Worker::new(index, shared, stages).work();
        }
        Err(error) => shared.report(device, Reply::NotBuilt(error)),
    }
    guard.lost = false;
}

/// Reports to the caller if the thread ends without having been told to.
struct ExitGuard<S: Stage> {
    device: DeviceId,
    shared: Arc<Shared<S>>,
    lost: bool,
}

impl<S: Stage> Drop for ExitGuard<S> {
    fn drop(&mut self) {
        if self.lost {
            self.shared.report(self.device, Reply::Lost);
        }
    }
}

struct Worker<S: Stage> {
    device: DeviceId,
    /// Its index among the engine's devices.
    index: usize,
    shared: Arc<Shared<S>>,
    stages: DeviceStages<S>,
    /// Values that have arrived and are not yet consumed, by slot.
    table: Vec<Option<S::Value>>,
    /// Buffer for messages taken from the inbox.
    batch: Vec<Message<S>>,
    /// Command of the caller that is not yet carried out.
    command: Option<Command<S>>,
    /// A peer failed in the current step, or in the one about to begin.
    stopped: bool,
}

/// Why a step ends early on a device.
enum Halt {
    Failed(StageError),
    Stopped,
}

impl From<StageError> for Halt {
    fn from(error: StageError) -> Self {
        Self::Failed(error)
    }
}

impl<S: Stage> Worker<S> {
    fn new(index: usize, shared: Arc<Shared<S>>, stages: DeviceStages<S>) -> Self {
        let (table, batch) = (Vec::new(), Vec::new());
        Self {
            device: shared.devices()[index],
            index,
            shared,
            stages,
            table,
            batch,
            command: None,
            stopped: false,
        }
    }

    /// Carries out the caller's commands until it reads the one to exit.
    fn work(mut self) {
        loop {
            let reply = match self.next_command() {
                Command::Step(command) => self.step(command),
                Command::Abort => self.abort(),
                Command::Job(job) => {
                    self.note(Activity::Job);
                    job(&mut self.stages);
                    self.note(Activity::Idle);
                    Reply::JobDone
                }
                Command::Exit => break,
            };
            self.shared.report(self.device, reply);
        }
        self.clear();
    }

    fn next_command(&mut self) -> Command<S> {
        loop {
            if let Some(command) = self.command.take() {
                return command;
            }
            self.wait_for_mail();
        }
    }

    fn step(&mut self, command: StepCommand<S>) -> Reply<S::Value> {
        let mut exits = Vec::new();
        let performed = self.perform(&command, &mut exits);
        self.note(Activity::Idle);
        self.leave_turns();
        let reply = match performed {
            Ok(events) => Reply::Finished(StepRecord {
                exits: std::mem::take(&mut exits),
                events,
            }),
            Err(Halt::Stopped) => Reply::Stopped,
            Err(Halt::Failed(error)) => {
                self.shared.stop_all_but(self.device, &error);
                Reply::Failed(error)
            }
        };
        // Before the report, after which the caller may be the only owner of the program and the
        // settings.
        discard(command);
        exits.into_iter().for_each(discard);
        reply
    }

    /// Runs the device's part of a step and returns the log. The caller's values go to `exits`.
    fn perform(
        &mut self,
        command: &StepCommand<S>,
        exits: &mut Vec<(Exit, S::Value)>,
    ) -> Result<Events, Halt> {
        let program = command.program.device(self.device);
        let mut log = Log::new(command.epoch, program);
        self.reserve(program.slots);
        self.stages.ready();
        self.check_stop()?;
        self.note(Activity::Begin);
        self.stages.begin(&command.settings)?;
        self.note(Activity::Idle);
        for (at, op) in program.ops.iter().enumerate() {
            let inputs = self.inputs(op)?;
            if let Some(turns) = &self.shared.turns {
                turns.take(self.device);
            }
            self.note(Activity::Op(at));
            for &(local, hint) in &op.hints {
                self.stages.activation_hint(local, hint)?;
            }
            let destinations = program.destinations(op);
            let ran = self.stages.run(op, destinations.len(), inputs)?;
            self.note(Activity::Idle);
            log.add(op.task, ran.start, ran.end, ran.bytes);
            self.end_turn(destinations);
            self.send(op, destinations, ran.outputs, exits)?;
        }
        self.note(Activity::End);
        self.stages.end()?;
        Ok(log.into_events())
    }

    /// Returns the inputs of `op`; waits for those that have not arrived.
    fn inputs(&mut self, op: &Op) -> Result<Vec<S::Value>, Halt> {
        self.shared.inboxes.at(self.index).poll(&mut self.batch);
        self.sort_mail();
        for slot in op.inputs.clone() {
            while self.table[slot].is_none() && !self.must_leave() {
                self.wait_for_mail();
            }
        }
        self.check_stop()?;
        Ok(self.table[op.inputs.clone()]
            .iter_mut()
            .filter_map(Option::take)
            .collect())
    }

    /// Releases the core slot after a task whose outputs are sent next.
    fn end_turn(&self, destinations: &[Destination]) {
        if let Some(turns) = &self.shared.turns {
            let sent = destinations
                .iter()
                .filter_map(|destination| match destination {
                    Destination::To(place) => Some(*place),
                    Destination::Here(_) | Destination::Exit(_) => None,
                });
            turns.finish(self.device, sent);
        }
    }

    fn leave_turns(&self) {
        if let Some(turns) = &self.shared.turns {
            turns.leave(self.device);
        }
    }

    /// Sends every output to its destination. There are as many outputs as destinations.
    fn send(
        &mut self,
        op: &Op,
        destinations: &[Destination],
        outputs: Vec<S::Value>,
        exits: &mut Vec<(Exit, S::Value)>,
    ) -> Result<(), StageError> {
        for (destination, value) in destinations.iter().zip(outputs) {
            match *destination {
                Destination::Here(slot) => self.table[slot] = Some(value),
                Destination::To(to) => {
                    let sent = guarded(|| self.shared.send(to, value));
                    sent.map_err(|error| self.stages.not_sent(op, error))?;
                }
                Destination::Exit(exit) => exits.push((exit, value)),
            }
        }
        Ok(())
    }

    /// Undoes a failed step. Every worker had left the step before the command was given, so all
    /// messages of the step came before the command.
    fn abort(&mut self) -> Reply<S::Value> {
        self.clear();
        self.note(Activity::Abort);
        let failures = self.stages.abort();
        self.note(Activity::Idle);
        Reply::Aborted(failures)
    }

    fn note(&self, activity: Activity) {
        self.shared.notes[self.index].write(activity);
    }

    /// Drops the values of a step that arrived and were not consumed.
    fn clear(&mut self) {
        self.stopped = false;
        std::mem::take(&mut self.table)
            .into_iter()
            .for_each(discard);
    }

    fn check_stop(&self) -> Result<(), Halt> {
        if self.must_leave() {
            Err(Halt::Stopped)
        } else {
            Ok(())
        }
    }

    /// Whether a peer failed, or the caller abandoned the step and ends the engine.
    fn must_leave(&self) -> bool {
        self.stopped || self.command.is_some()
    }

    fn wait_for_mail(&mut self) {
        self.shared
            .inboxes
            .at(self.index)
            .wait(&mut self.batch, SPIN);
        self.sort_mail();
    }

    fn sort_mail(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for message in batch.drain(..) {
            match message {
                Message::Value { slot, value } => {
                    self.reserve(slot + 1);
                    self.table[slot] = Some(value);
                }
                Message::Stop => self.stopped = true,
                // A second command can only be `Exit`, which overrides all others.
                Message::Command(command) => self.command = Some(command),
            }
        }
        self.batch = batch;
    }

    fn reserve(&mut self, slots: usize) {
        if self.table.len() < slots {
            self.table.resize_with(slots, || None);
        }
    }
}

impl<S: Stage> Drop for Worker<S> {
    /// A thread that dies must not keep its core slot.
    fn drop(&mut self) {
        self.leave_turns();
    }
}
