//! Values of an engine's steps, from process to process.
//!
//! A value is a [header](crate::torch::wire) of fixed size, then its memories. The receives of
//! all headers of a step are begun when the step begins; a thread for each device elsewhere
//! waits for them in the order in which that device sends (module `arrivals`), so that it never
//! waits for one while another is there. Which way a message goes is its group's affair.
//!
//! What a GPU has may go to another process's GPU by itself (module `channels`); its header goes as
//! any other. What leaves a GPU by either way is sent by threads of their own (module `departures`).
//!
//! All processes make the same calls. Each value carries a mark of the call in which it was sent, and
//! each vote its name, so that nobody takes what belongs to another call.
//!
//! A step that fails anywhere ends the world's generation, with its reason: that frees whoever
//! waits for a transfer, and is the vote of all who have not voted. A vote that comes to its end
//! is one in which all have done their part.

mod agree;
mod arrivals;
mod between;
mod busy;
mod channels;
mod departures;
mod headers;
mod payload;
mod pending;
mod posted;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use gpipe_partitioner::DeviceId;

use super::{Group, Lost, Transfer, World};
use crate::engine::{self, Address, Ballot, Carrier, Door, Program, Verdict};
use crate::fail_point::fail_point;
use arrivals::{Arrivals, Expected, Place};
use busy::Piece;
use channels::Channels;
use departures::{Departures, Way};
use shared::{Shared, listen, told};

pub(crate) use between::gather_once;
pub(super) use between::tell_all;
pub use payload::{Parcel, Payload};

/// How often the channels between GPUs are asked whether something has failed.
const LOOK: Duration = Duration::from_millis(100);

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
    departures: Departures<V>,
    /// Ends the thread that looks after the channels.
    watch: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// The values of a step from one device.
struct Order {
    step: u64,
    from: usize,
    arrivals: Arrivals,
    /// Until the thread is done with it.
    piece: Piece,
}

impl<V: Payload> WorldCarrier<V> {
    /// Connects all processes of a world, for a pipeline whose device d is in process
    /// `rank_of[d]`; all of them call this. A value that has more than `limit` bytes is refused.
    /// All values go through the host's memory.
    ///
    /// # Errors
    /// A process is lost, or the operating system gives no thread.
    pub fn connect(world: &Arc<World>, rank_of: Vec<usize>, limit: u64) -> Result<Self, Lost> {
        Self::connect_gpus(world, rank_of, limit, &[])
    }

    /// The same, where what a GPU has goes to another process's GPU by NCCL, without the host's
    /// memory: `gpus[d]` is the CUDA device of the pipeline's device d, where that is here and has
    /// one. GPUs are connected when the first step begins that needs it. Values of two devices
    /// on one GPU go through the host's memory.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect); NCCL cannot be loaded.
    pub fn connect_gpus(
        world: &Arc<World>,
        rank_of: Vec<usize>,
        limit: u64,
        gpus: &[Option<usize>],
    ) -> Result<Self, Lost> {
        let channels = Channels::new(world.rank(), &rank_of, gpus);
        let channels = channels.map_err(|error| world.abort(&error.to_string()))?;
        let watched = channels.has_gpus();
        let shared = Shared::new(world, limit, channels)?;
        let mut own = Self {
            departures: Departures::new(&shared),
            shared,
            orders: rank_of.iter().map(|_| None).collect(),
            rank_of,
            watch: None,
            threads: Vec::new(),
        };
        let started = own.start().and_then(|()| own.start_watch(watched));
        started.map_err(|error| world.lose(&format!("no thread for transfers: {error}")))?;
        Ok(own)
    }

    /// Looks after the channels between GPUs, as long as this carrier is there.
    fn start_watch(&mut self, watched: bool) -> std::io::Result<()> {
        if !watched {
            return Ok(());
        }
        let (end, ended) = unbounded::<()>();
        let shared = Arc::downgrade(&self.shared);
        self.watch = Some(end);
        self.thread("nccl".to_owned(), move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(shared) = shared.upgrade() {
                    shared.look_after_channels();
                }
            }
        })
    }

    /// This process begins a call that all make; it does not wait for them. Whoever makes another
    /// one is named by an error in all: by what it sends in this call, by the next vote, or by the
    /// names that are compared where a call lasts.
    pub(crate) fn begin_call(&self, name: &str) {
        self.shared.begin_call(name);
    }

    /// That of this generation.
    fn group(&self) -> Arc<Group> {
        self.shared.group()
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
        self.shared.sends.set_thread(Some(sends));
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
        let posted = self.shared.posted();
        let expected = |to| {
            let tag = tag_of(program, to);
            let header = posted.take(group, from, tag)?;
            let place = Place { to, tag };
            Ok(Expected { place, header })
        };
        let all = program.sends(DeviceId(device)).map(expected);
        let all = all.collect::<Result<_, Lost>>()?;
        Ok(Order {
            step,
            from,
            arrivals: Arrivals::new(&self.shared, (group, from, device), all),
            piece: self.shared.busy.begin(),
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
        match self.shared.connect(program, &step.1) {
            Ok(()) => {}
            Err(lost) if lost.gone => return Err(told(&lost)),
            Err(_) => {
                self.shared.stop_if_failed();
                return Ok(());
            }
        }
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
        let Some((group, tag, mark)) = self.shared.way(to) else {
            anyhow::bail!("no step is under way");
        };
        let way = Way {
            generation: self.shared.world.generation(),
            group,
            to: to.device,
            rank: self.rank_of[to.device.index()],
            tag,
            mark,
        };
        let parcel = value.into_parcel()?;
        match parcel.0.on_accelerator() {
            Some(from) => {
                let piece = self.shared.busy.begin();
                self.departures.put((from, to.device), (way, parcel, piece))
            }
            None => self.shared.post(&way, &parcel.0.values),
        }
    }

    fn stop(&self, why: &str) {
        self.shared.fail(why);
    }

    fn vote(&self, ballot: Ballot) -> Result<Verdict, engine::Lost> {
        fail_point("vote");
        let voted = self.shared.vote(&ballot);
        fail_point("vote");
        voted
    }

    fn renew(&self) -> Result<(), engine::Lost> {
        let renewed = self.shared.renew();
        renewed.map_err(|lost| told(&lost))?;
        listen(&self.shared);
        Ok(())
    }

    fn rank(&self) -> Option<usize> {
        Some(self.shared.world.rank())
    }

    fn lose(&self, why: &str) {
        self.shared.world.lose(why);
    }
}

impl<V: Payload> Drop for WorldCarrier<V> {
    fn drop(&mut self) {
        self.orders.clear();
        self.watch = None;
        let departing = self.departures.close();
        let threads = std::mem::take(&mut self.threads);
        // Where a step is under way its transfers never end, unless the world does.
        let idle = self.shared.is_idle();
        // One that panicked has nothing to say here.
        let join = |thread: JoinHandle<()>| drop(thread.join());
        if idle {
            departing.into_iter().for_each(join);
        }
        self.shared.sends.give_up();
        self.shared.sends.set_thread(None);
        if idle {
            threads.into_iter().for_each(join);
            self.shared.channels.clear();
        } else {
            self.shared.channels.abort();
        }
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
