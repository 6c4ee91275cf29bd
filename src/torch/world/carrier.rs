//! Values of an engine's steps, from process to process.
//!
//! A value is a [header](crate::wire) of fixed size, then its memories. The receives of
//! all headers of a step are begun when the step begins; a thread for each device elsewhere
//! waits for them in the order in which that device sends (module `arrivals`), so that it never
//! waits for one while another is there. Which way a message goes is its group's affair.
//!
//! GPU values may go directly to another process's GPU (module `channels`); their headers go like any
//! other. Values that leave a GPU by either way are sent by separate threads (module `departures`).
//!
//! All processes make the same calls. Each value carries a mark of the call in which it was sent, and
//! each vote its name, so that nobody takes what belongs to another call.
//!
//! A step that fails anywhere ends the world's generation, with its reason: that frees whoever
//! waits for a transfer, and is the vote of all who have not voted. A vote that comes to its end
//! is one in which all have done their part.

mod arrivals;
mod between_steps;
mod channels;
mod departures;
mod payload;
mod pending;
mod receive_ahead;
mod shared;
mod vote;
mod work_counter;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use gpipe_partitioner::DeviceId;

use super::{Group, Lost, Transfer, World};
use crate::fail_point::fail_point;
use arrivals::{Arrivals, Expected, Place};
use channels::Channels;
use departures::Departures;
use gpipe_engine::{Address, Ballot, Carrier, Door, Program, Verdict};
use shared::{Shared, Way, listen, told};
use work_counter::Piece;

pub use between_steps::gather_once;
pub(super) use between_steps::tell_all;
pub use payload::{Parcel, Payload};

/// Interval of failure checks on the channels between GPUs.
const LOOK: Duration = Duration::from_millis(100);

/// A [`Carrier`] between the processes of a [`World`].
///
/// Values may have any kinds, shapes and strides, which may differ in each micro-batch; they arrive
/// unchanged, bit by bit.
#[doc(alias = "p2p")]
#[doc(alias = "gloo")]
pub struct WorldCarrier<V: Payload> {
    shared: Arc<Shared<V>>,
    /// Rank of each device.
    rank_of: Vec<usize>,
    /// By remote device: queue of the receives of its thread.
    orders: Vec<Option<Sender<Order>>>,
    departures: Departures<V>,
    /// Ends the thread that watches the channels.
    watch: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// The values of a step from one device.
struct Order {
    step: u64,
    from: usize,
    arrivals: Arrivals,
    /// Held until the thread has finished the order.
    piece: Piece,
}

impl<V: Payload> WorldCarrier<V> {
    /// Connects all processes of a world, for a pipeline whose device d is in process `rank_of[d]`;
    /// all of them call this. A value with more than `limit` bytes is refused. All values go
    /// through host memory.
    ///
    /// # Errors
    /// A process is lost, or the operating system provides no thread.
    pub fn connect(world: &Arc<World>, rank_of: Vec<usize>, limit: u64) -> Result<Self, Lost> {
        Self::connect_gpus(world, rank_of, limit, &[])
    }

    /// Connects as [`connect`](Self::connect), but values of a GPU go to another process's GPU by
    /// NCCL, bypassing host memory: `gpus[d]` is the CUDA device of the pipeline's device d, if
    /// that is local and has one. GPUs are connected at the first step that needs it. Values of two
    /// devices on one GPU go through host memory.
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

    /// Starts a thread that watches the channels between GPUs, as long as this carrier lives.
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

    /// Begins a call that all processes make; does not wait for them. A process in a different call
    /// is named by an error in all: found by its values in this call, by the next vote, or by
    /// comparing names if a call lasts.
    pub(crate) fn begin_call(&self, name: &str) {
        self.shared.begin_call(name);
    }

    /// Returns the group of this generation.
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
        // Keep the tensors until the others have received them.
        let keep = move || {
            for transfer in transfers.iter().flatten() {
                // The failure is reported to those waiting for the step.
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

    /// Begins to receive the headers of a device's values.
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

/// Returns the tag of a value's header; its memories have the next tag.
fn tag_of(program: &Program, address: Address) -> u32 {
    2 * program.number(address) as u32
}

impl<V: Payload> Carrier<V> for WorldCarrier<V> {
    fn begin(
        &self,
        program: &Arc<Program>,
        door: Arc<dyn Door<V>>,
    ) -> Result<(), gpipe_engine::Lost> {
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
                // The step failed elsewhere before it began here.
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

    fn vote(&self, ballot: Ballot) -> Result<Verdict, gpipe_engine::Lost> {
        fail_point("vote");
        let voted = self.shared.vote(&ballot);
        fail_point("vote");
        voted
    }

    fn renew(&self) -> Result<(), gpipe_engine::Lost> {
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
        // If a step is running, its transfers end only with the world.
        let idle = self.shared.is_idle();
        // A panic of the thread is not reported here.
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
