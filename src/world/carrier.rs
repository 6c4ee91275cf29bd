//! Values of an engine's steps, from process to process.
//!
//! A value is a [header](crate::torch::wire) of fixed size, then its memories. The receives of
//! all headers of a step are begun when the step begins; a thread for each device elsewhere
//! waits for them in the order in which that device sends (module `arrivals`), so that it never
//! waits for one while another is there.
//!
//! A step that fails anywhere ends the world's generation, with its reason: that frees whoever
//! waits for a transfer, and is the vote of all who have not voted. A vote that comes to its end
//! is one in which all have done their part.

mod arrivals;
mod between;
mod headers;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use gpipe_partitioner::DeviceId;
use parking_lot::Mutex;

use super::{Group, Lost, Transfer, World};
use crate::engine::{self, Address, Ballot, Carrier, Door, Program, Verdict};
use crate::tch::{Device, Kind, Tensor};
use crate::torch::Values;
use crate::torch::wire::{FIRST, Outgoing, memories_behind};
use arrivals::{Arrivals, Expected, Stopped};
pub(crate) use between::gather_once;
use headers::Headers;

/// Tags of votes, above all those of values.
const UP: u32 = i32::MAX as u32;
const DOWN: u32 = UP - 1;

/// What a [`WorldCarrier`] takes to other processes.
pub trait Payload: Send + 'static {
    /// Itself as values in the host's memory.
    ///
    /// # Errors
    /// They cannot be brought there.
    fn into_values(self) -> anyhow::Result<Values>;

    /// What has arrived.
    fn from_values(values: Values) -> Self;
}

impl Payload for Values {
    fn into_values(self) -> anyhow::Result<Values> {
        Ok(self)
    }

    fn from_values(values: Values) -> Self {
        values
    }
}

/// A [`Carrier`] between the processes of a [`World`].
///
/// Values may have any kinds, shapes and strides, and other ones in each micro-batch; they arrive
/// as they are, to the bit.
#[doc(alias = "p2p")]
#[doc(alias = "gloo")]
pub struct WorldCarrier<V: Payload> {
    shared: Arc<Shared<V>>,
    /// By device: the process that has it.
    rank_of: Vec<usize>,
    /// By device elsewhere: what its thread is to receive next.
    orders: Vec<Option<Sender<Order>>>,
    sends: Option<Sender<Vec<Transfer>>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<V> {
    world: Arc<World>,
    /// No value has more bytes.
    limit: u64,
    state: Mutex<State<V>>,
}

struct State<V> {
    group: Arc<Group>,
    /// Steps that have begun.
    begun: u64,
    /// The step that is under way.
    open: Option<Open<V>>,
    /// Votes that have ended in this generation.
    votes: u64,
    /// Headers of what was sent in this generation, and of what came.
    sent: Arc<Headers>,
    received: Arc<Headers>,
}

struct Open<V> {
    program: Arc<Program>,
    door: Arc<dyn Door<V>>,
}

/// The values of a step from one device.
struct Order {
    step: u64,
    from: usize,
    arrivals: Arrivals,
}

impl<V: Payload> WorldCarrier<V> {
    /// Connects all processes of a world, for a pipeline whose device d is in process
    /// `rank_of[d]`; all of them call this. A value that has more than `limit` bytes is refused.
    ///
    /// # Errors
    /// A process is lost, or the operating system gives no thread.
    pub fn connect(world: &Arc<World>, rank_of: Vec<usize>, limit: u64) -> Result<Self, Lost> {
        let shared = Arc::new(Shared {
            world: Arc::clone(world),
            limit,
            state: Mutex::new(State {
                group: Arc::new(world.group()?),
                begun: 0,
                open: None,
                votes: 0,
                sent: Arc::default(),
                received: Arc::default(),
            }),
        });
        listen(&shared);
        let mut own = Self {
            shared,
            orders: rank_of.iter().map(|_| None).collect(),
            rank_of,
            sends: None,
            threads: Vec::new(),
        };
        let started = own.start();
        started.map_err(|error| world.lose(&format!("no thread for transfers: {error}")))?;
        Ok(own)
    }

    fn world(&self) -> &World {
        &self.shared.world
    }

    /// That of this generation.
    fn group(&self) -> Arc<Group> {
        Arc::clone(&self.shared.state.lock().group)
    }

    fn start(&mut self) -> std::io::Result<()> {
        for device in 0..self.rank_of.len() {
            if self.rank_of[device] != self.shared.world.rank() {
                let (orders, work) = unbounded::<Order>();
                let shared = Arc::clone(&self.shared);
                let receive = move || work.iter().for_each(|order| shared.receive(order));
                self.thread(format!("from-{device}"), receive)?;
                self.orders[device] = Some(orders);
            }
        }
        let (sends, transfers): (_, Receiver<Vec<Transfer>>) = unbounded();
        // The tensors stay until the others have them.
        let keep = move || {
            for transfer in transfers.iter().flatten() {
                // Who failed is heard by those who wait for the step.
                let _ = transfer.wait();
            }
        };
        self.thread("sends".to_owned(), keep)?;
        self.sends = Some(sends);
        Ok(())
    }

    fn thread(
        &mut self,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name);
        self.threads.push(thread.spawn(body)?);
        Ok(())
    }

    /// Begins to receive the headers of what a device sends.
    fn order(
        &self,
        program: &Program,
        device: usize,
        (step, group): (u64, &Arc<Group>),
    ) -> Result<Order, Lost> {
        let from = self.rank_of[device];
        let expected = |to| {
            let tag = tag_of(program, to);
            let header = group.receive(&[FIRST as i64], Kind::Uint8, from, tag)?;
            Ok(Expected { to, tag, header })
        };
        let all = program.sends(DeviceId(device)).map(expected);
        let all = all.collect::<Result<_, Lost>>()?;
        let headers = Arc::clone(&self.shared.state.lock().received);
        Ok(Order {
            step,
            from,
            arrivals: Arrivals::new((group, from), all, self.shared.limit, headers),
        })
    }
}

/// Of a value's header; what follows has the next one.
fn tag_of(program: &Program, address: Address) -> u32 {
    2 * program.number(address) as u32
}

impl<V: Payload> Carrier<V> for WorldCarrier<V> {
    fn begin(&self, program: &Arc<Program>, door: Arc<dyn Door<V>>) -> Result<(), engine::Lost> {
        let step = self.shared.open(program, door);
        for (device, orders) in self.orders.iter().enumerate() {
            let Some(orders) = orders else { continue };
            match self.order(program, device, (step.0, &step.1)) {
                // Its thread ends after this carrier.
                Ok(order) => drop(orders.send(order)),
                Err(lost) if lost.gone => return Err(told(&lost)),
                // The step has failed elsewhere before it has begun here.
                Err(_) => break,
            }
        }
        self.shared.stop_if_failed();
        Ok(())
    }

    fn send(&self, to: Address, value: V) -> anyhow::Result<()> {
        let Some((group, tag)) = self.shared.way(to) else {
            anyhow::bail!("no step is under way");
        };
        let rank = self.rank_of[to.device.index()];
        let outgoing = Outgoing::new(&value.into_values()?)?;
        let mut transfers = Vec::new();
        for (message, tag) in self.shared.messages(&outgoing, rank, tag)? {
            match group.send(&message, rank, tag) {
                Ok(transfer) => transfers.push(transfer),
                // Somebody has failed, and all are told to stop.
                Err(_) => return Ok(()),
            }
        }
        if let Some(sends) = &self.sends {
            // As in `begin`.
            let _ = sends.send(transfers);
        }
        Ok(())
    }

    fn stop(&self, why: &str) {
        self.shared.fail(why);
    }

    fn vote(&self, ballot: Ballot) -> Result<Verdict, engine::Lost> {
        self.shared.vote(&ballot)
    }

    fn renew(&self) -> Result<(), engine::Lost> {
        let renewed = self.shared.renew();
        renewed.map_err(|lost| told(&lost))?;
        listen(&self.shared);
        Ok(())
    }

    fn lose(&self, why: &str) {
        self.shared.world.lose(why);
    }
}

impl<V: Payload> Shared<V> {
    /// Lets values in. *Returns* the step's number, and the group that its values come by.
    fn open(&self, program: &Arc<Program>, door: Arc<dyn Door<V>>) -> (u64, Arc<Group>) {
        let mut state = self.state.lock();
        state.begun += 1;
        let program = Arc::clone(program);
        state.open = Some(Open { program, door });
        (state.begun, Arc::clone(&state.group))
    }

    /// By which group a value goes, and under which tag.
    fn way(&self, to: Address) -> Option<(Arc<Group>, u32)> {
        let state = self.state.lock();
        let open = state.open.as_ref()?;
        Some((Arc::clone(&state.group), tag_of(&open.program, to)))
    }

    /// Has the devices here leave the step, where one is under way and the generation is at its
    /// end.
    fn stop_if_failed(&self) {
        let state = self.state.lock();
        if let (Some(open), Some(_)) = (&state.open, self.world.lost()) {
            open.door.stop();
        }
    }

    fn fail(&self, why: &str) -> Lost {
        let votes = self.state.lock().votes;
        self.world.abort_at(votes, why)
    }

    /// What is sent of a value, and under which tags.
    fn messages(
        &self,
        value: &Outgoing,
        to: usize,
        tag: u32,
    ) -> anyhow::Result<Vec<(Tensor, u32)>> {
        let bytes = |bytes: &[u8]| Tensor::f_from_slice(bytes);
        let (first, rest) = value.header().split_at(FIRST);
        let mut messages = vec![(bytes(first)?, tag)];
        let sent = Arc::clone(&self.state.lock().sent);
        // What the receiver expects as it was the last time.
        let before = sent.of(to, tag).filter(|before| before != value.header());
        for _ in 0..before.map_or(Ok(0), |before| memories_behind(&before))? {
            messages.push((bytes(&[])?, tag + 1));
        }
        sent.remember(to, tag, value.header().to_vec());
        if !rest.is_empty() {
            messages.push((bytes(rest)?, tag + 1));
        }
        let memories = value
            .memories()
            .map(|memory| (memory.shallow_clone(), tag + 1));
        messages.extend(memories);
        Ok(messages)
    }

    /// Receives what an order says, one after another.
    fn receive(&self, order: Order) {
        let Order {
            step,
            from,
            mut arrivals,
        } = order;
        loop {
            let delivered = arrivals.next().and_then(|next| {
                let Some((to, values)) = next else {
                    return Ok(false);
                };
                self.deliver(step, to, values).map(|()| true)
            });
            match delivered {
                Ok(true) => {}
                Ok(false) | Err(Stopped::Lost) => return,
                Err(Stopped::Wrong(why)) => {
                    self.fail(&format!("what rank {from} has sent: {why}"));
                    return;
                }
            }
        }
    }

    fn deliver(&self, step: u64, to: Address, values: Values) -> Result<(), Stopped> {
        let state = self.state.lock();
        let open = state.open.as_ref().filter(|_| state.begun == step);
        let door = &open.ok_or(Stopped::Lost)?.door;
        let delivered = door.deliver(to, V::from_values(values));
        delivered.map_err(|unwanted| Stopped::Wrong(unwanted.to_string()))
    }

    fn vote(&self, ballot: &Ballot) -> Result<Verdict, engine::Lost> {
        let (group, votes) = {
            let state = self.state.lock();
            (Arc::clone(&state.group), state.votes)
        };
        let agreed = match ballot {
            Ballot::Done => agree(&group, self.world.rank(), self.world.size()),
            Ballot::Failed(why) => Err(self.fail(why)),
            // Only a failure elsewhere has it leave.
            Ballot::Left => {
                let lost = self.world.lost();
                Err(lost.unwrap_or_else(|| self.fail("it left the step")))
            }
        };
        let mut state = self.state.lock();
        state.open = None;
        match agreed {
            Err(lost) if lost.gone => Err(told(&lost)),
            // It failed in this step, and not in one after a vote whose end was not heard of.
            Err(lost) if lost.at == votes => {
                let engine::Lost { rank, why } = told(&lost);
                Ok(Verdict::Failed { rank, why })
            }
            Err(_) | Ok(()) => {
                state.votes += 1;
                Ok(Verdict::Done)
            }
        }
    }

    fn renew(&self) -> Result<(), Lost> {
        self.world.renew()?;
        let group = Arc::new(self.world.group()?);
        let mut state = self.state.lock();
        (state.votes, state.open) = (0, None);
        (state.sent, state.received) = Default::default();
        let before = std::mem::replace(&mut state.group, group);
        drop(state);
        // It closes its connections, which may take a moment.
        drop(before);
        Ok(())
    }
}

/// Has the devices here leave the step that is under way when this generation ends.
fn listen<V: Payload>(shared: &Arc<Shared<V>>) {
    let own = Arc::downgrade(shared);
    shared.world.on_abort(move |_| {
        if let Some(own) = own.upgrade() {
            own.stop_if_failed();
        }
    });
}

/// Comes to its end in all processes if all come here, along a binary tree: up to rank 0, and
/// down again.
///
/// *Complexity*: 2 log2(size) messages one after another.
fn agree(group: &Group, rank: usize, size: usize) -> Result<(), Lost> {
    let word = Tensor::zeros([1], (Kind::Uint8, Device::Cpu));
    let receive = |from, tag| group.receive(&[1], Kind::Uint8, from, tag);
    let children = [2 * rank + 1, 2 * rank + 2];
    let children = || children.into_iter().filter(|child| *child < size);
    let up: Vec<_> = children()
        .map(|child| receive(child, UP))
        .collect::<Result<_, _>>()?;
    let parent = rank.checked_sub(1).map(|before| before / 2);
    let down = parent.map(|parent| receive(parent, DOWN)).transpose()?;
    for transfer in up {
        let _ = transfer.wait()?;
    }
    let sent = parent
        .map(|parent| group.send(&word, parent, UP))
        .transpose()?;
    for transfer in sent.into_iter().chain(down) {
        let _ = transfer.wait()?;
    }
    let sent = children().map(|child| group.send(&word, child, DOWN));
    for transfer in sent.collect::<Result<Vec<_>, _>>()? {
        let _ = transfer.wait()?;
    }
    Ok(())
}

/// In the engine's words.
fn told(lost: &Lost) -> engine::Lost {
    engine::Lost {
        rank: lost.rank.unwrap_or_default(),
        why: format!("{} (on `{}`)", lost.why, lost.host),
    }
}

impl<V: Payload> Drop for WorldCarrier<V> {
    fn drop(&mut self) {
        self.orders.clear();
        self.sends = None;
        let threads = std::mem::take(&mut self.threads);
        // Where a step is under way its transfers never end, unless the world does.
        let idle = self.shared.state.lock().open.is_none() || self.shared.world.lost().is_some();
        if idle {
            for thread in threads {
                // One that panicked has nothing to say here.
                drop(thread.join());
            }
        }
        self.shared.world.retire(self.group());
    }
}

impl<V: Payload> fmt::Debug for WorldCarrier<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorldCarrier")
            .field("rank_of", &self.rank_of)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
