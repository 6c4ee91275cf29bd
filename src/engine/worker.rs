//! The life of a device's thread.

use super::crew::Crew;
use super::event::Log;
use super::failure::{StageError, discard, guarded};
use super::message::{Lines, Message, News, Order, Record, StepOrder};
use super::program::{Exit, Op, Way};
use super::stage::Stage;
use super::sync::PATIENCE;
use super::watchdog::Doing;
use gpipe_partitioner::{DeviceId, StageId};
use std::sync::Arc;

/// Builds the stages of one device, on the thread of that device.
pub type StageBuilder<S> = Box<dyn FnOnce() -> anyhow::Result<Vec<(StageId, S)>> + Send>;

/// The body of a device's thread.
pub(super) fn live<S: Stage>(device: DeviceId, lines: Arc<Lines<S>>, builder: StageBuilder<S>) {
    let mut obituary = Obituary {
        device,
        lines: Arc::clone(&lines),
        lost: true,
    };
    match guarded(builder) {
        Ok(stages) => Worker::new(device, lines, Crew::new(stages)).work(),
        Err(error) => lines.report(device, News::NotBuilt(error)),
    }
    obituary.lost = false;
}

/// Tells the caller when the thread ends without having been asked to.
struct Obituary<S: Stage> {
    device: DeviceId,
    lines: Arc<Lines<S>>,
    lost: bool,
}

impl<S: Stage> Drop for Obituary<S> {
    fn drop(&mut self) {
        if self.lost {
            self.lines.report(self.device, News::Lost);
        }
    }
}

struct Worker<S: Stage> {
    device: DeviceId,
    lines: Arc<Lines<S>>,
    crew: Crew<S>,
    /// Values that have arrived and that no action has taken yet, by slot.
    table: Vec<Option<S::Value>>,
    /// Buffer for messages on their way out of the inbox.
    batch: Vec<Message<S>>,
    /// The caller's order that is not carried out yet.
    order: Option<Order<S>>,
    /// A peer failed in the present step, or in the one about to come.
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
    fn new(device: DeviceId, lines: Arc<Lines<S>>, crew: Crew<S>) -> Self {
        let (table, batch) = (Vec::new(), Vec::new());
        Self {
            device,
            lines,
            crew,
            table,
            batch,
            order: None,
            stopped: false,
        }
    }

    /// Carries out the caller's orders until told to exit.
    fn work(mut self) {
        let built = News::Built(self.crew.ids(), self.crew.observers());
        self.lines.report(self.device, built);
        loop {
            let news = match self.next_order() {
                Order::Step(order) => self.step(order),
                Order::Abort => self.abort(),
                Order::Job(job) => {
                    self.note(Doing::Job);
                    job(&mut self.crew);
                    self.note(Doing::Nothing);
                    News::JobDone
                }
                Order::Exit => break,
            };
            self.lines.report(self.device, news);
        }
        self.clear();
    }

    fn next_order(&mut self) -> Order<S> {
        loop {
            if let Some(order) = self.order.take() {
                return order;
            }
            self.wait_for_mail();
        }
    }

    fn step(&mut self, order: StepOrder<S>) -> News<S::Value> {
        let performed = self.perform(&order);
        self.note(Doing::Nothing);
        self.leave_turns();
        let news = match performed {
            Ok(record) => News::Finished(record),
            Err(Halt::Stopped) => News::Stopped,
            Err(Halt::Failed(error)) => {
                self.lines.stop_all_but(self.device);
                News::Failed(error)
            }
        };
        // Before the report: after it the caller may count on being the only owner.
        discard(order);
        news
    }

    /// The device's part of a step.
    fn perform(&mut self, order: &StepOrder<S>) -> Result<Record<S::Value>, Halt> {
        let program = order.program.device(self.device);
        let mut log = Log::new(order.epoch, program.ops.len());
        let mut exits = Vec::new();
        self.reserve(program.slots);
        self.crew.ready();
        self.heed_stop()?;
        self.note(Doing::Begin);
        self.crew.begin(&order.settings)?;
        self.note(Doing::Nothing);
        for (at, op) in program.ops.iter().enumerate() {
            let inputs = self.inputs(op)?;
            if let Some(turns) = &self.lines.turns {
                turns.take(self.device);
            }
            self.note(Doing::Op(at));
            if let Some(next) = program.taken_up_after(at) {
                self.crew.ahead(next)?;
            }
            let ways = program.ways(op);
            let ran = self.crew.run(op, ways.len(), inputs)?;
            self.note(Doing::Nothing);
            log.add(op.action, ran.start, ran.end, ran.bytes);
            self.end_turn(ways);
            self.send(ways, ran.outputs, &mut exits);
        }
        self.note(Doing::End);
        self.crew.end()?;
        Ok(Record {
            exits,
            events: log.into_events(),
        })
    }

    /// The inputs of `op`, waiting for those that are not there yet.
    fn inputs(&mut self, op: &Op) -> Result<Vec<S::Value>, Halt> {
        self.lines.inbox(self.device).poll(&mut self.batch);
        self.sort_mail();
        for slot in op.takes.clone() {
            while self.table[slot].is_none() && !self.must_leave() {
                self.wait_for_mail();
            }
        }
        self.heed_stop()?;
        Ok(self.table[op.takes.clone()]
            .iter_mut()
            .filter_map(Option::take)
            .collect())
    }

    /// An action is done: what it made is sent the next moment.
    fn end_turn(&self, ways: &[Way]) {
        if let Some(turns) = &self.lines.turns {
            let sent = ways.iter().filter_map(|way| match way {
                Way::To(place) => Some(*place),
                Way::Here(_) | Way::Exit(_) => None,
            });
            turns.finish(self.device, sent);
        }
    }

    fn leave_turns(&self) {
        if let Some(turns) = &self.lines.turns {
            turns.leave(self.device);
        }
    }

    /// Sends every output on its way. There are as many outputs as ways.
    fn send(&mut self, ways: &[Way], outputs: Vec<S::Value>, exits: &mut Vec<(Exit, S::Value)>) {
        for (way, value) in ways.iter().zip(outputs) {
            match *way {
                Way::Here(slot) => self.table[slot] = Some(value),
                Way::To(place) => {
                    let message = Message::Value {
                        slot: place.slot,
                        value,
                    };
                    self.lines.inbox(place.device).post(message);
                }
                Way::Exit(exit) => exits.push((exit, value)),
            }
        }
    }

    /// Undoes a failed step. Everybody left it before the order was given, so all
    /// of its messages came before the order.
    fn abort(&mut self) -> News<S::Value> {
        self.clear();
        self.note(Doing::Abort);
        let failures = self.crew.abort();
        self.note(Doing::Nothing);
        News::Aborted(failures)
    }

    fn note(&self, doing: Doing) {
        self.lines.notes[self.device.index()].write(doing);
    }

    /// Drops what arrived for a step and was not taken.
    fn clear(&mut self) {
        self.stopped = false;
        discard(std::mem::take(&mut self.table));
    }

    fn heed_stop(&self) -> Result<(), Halt> {
        if self.must_leave() {
            Err(Halt::Stopped)
        } else {
            Ok(())
        }
    }

    /// Whether a peer failed, or the caller gave the step up and wants the exit.
    fn must_leave(&self) -> bool {
        self.stopped || self.order.is_some()
    }

    fn wait_for_mail(&mut self) {
        self.lines
            .inbox(self.device)
            .wait(&mut self.batch, PATIENCE);
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
                // A second order is only ever `Exit`, which overrides all others.
                Message::Order(order) => self.order = Some(order),
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
    /// A thread that dies must not take its turn with it.
    fn drop(&mut self) {
        self.leave_turns();
    }
}
