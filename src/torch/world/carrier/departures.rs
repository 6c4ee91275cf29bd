//! Sending values from a GPU.
//!
//! A stage's thread submits work and continues, so its values may not be ready for long. So a
//! thread for each route, from a local GPU to a remote device, waits for its values one after
//! another: those of other routes do not queue behind them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use gpipe_partitioner::DeviceId;
use parking_lot::Mutex;

use super::shared::{Shared, Way, is_over};
use super::work_counter::Piece;
use super::{Parcel, Payload};
use crate::caught;
use crate::streams::{Channel, InTransit, ToHost};
use crate::wire::Outgoing;
use tch::{Device, Tensor};

/// Sending GPU and receiving device.
type Ends = (usize, DeviceId);

/// A value for a thread to send.
type Leaving = (Way, Parcel, Piece);

/// The threads, started when first needed.
pub(super) struct Departures<V> {
    shared: Weak<Shared<V>>,
    threads: Mutex<BTreeMap<Ends, Departing>>,
}

struct Departing {
    parcels: Sender<Leaving>,
    thread: JoinHandle<()>,
}

impl<V: Payload> Departures<V> {
    pub(super) fn new(shared: &Arc<Shared<V>>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            threads: Mutex::default(),
        }
    }

    /// Queues a value on the thread of its route.
    pub(super) fn put(&self, ends: Ends, leaving: Leaving) -> anyhow::Result<()> {
        let mut threads = self.threads.lock();
        let thread = match threads.entry(ends) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(self.start(ends)?),
        };
        // The thread ends after this carrier.
        let _ = thread.parcels.send(leaving);
        Ok(())
    }

    fn start(&self, (from, to): Ends) -> std::io::Result<Departing> {
        let (parcels, work) = unbounded::<Leaving>();
        let shared = self.shared.clone();
        let send = move || {
            let mut to_host = ToHost::default();
            for (way, parcel, _piece) in work {
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                shared.depart(&way, parcel, &mut to_host);
            }
        };
        let thread = std::thread::Builder::new().name(format!("cuda-{from}-to-{}", to.index()));
        let thread = thread.spawn(send)?;
        Ok(Departing { parcels, thread })
    }

    /// Ends the threads, once they have sent their values.
    pub(super) fn close(&self) -> Vec<JoinHandle<()>> {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_values().map(|own| own.thread).collect()
    }
}

impl<V: Payload> Shared<V> {
    fn depart(&self, way: &Way, parcel: Parcel, to_host: &mut ToHost) {
        // A thread that died would leave the others waiting.
        let sent = caught(|| match self.channel_of(way, &parcel.0) {
            Some(channel) => self.by_channel(&channel, way, &parcel.0),
            None => self.through_host(way, parcel.0, to_host),
        });
        if let Err(error) = sent {
            let why = format!("a value for rank {}: {error}", way.rank);
            self.fail_in(way.generation, &why);
        }
    }

    fn through_host(&self, way: &Way, sent: InTransit, to_host: &mut ToHost) -> anyhow::Result<()> {
        self.post(way, &to_host.values(sent)?)
    }

    /// Returns the channel by which values can go; `None` if they are on several GPUs.
    fn channel_of(&self, way: &Way, sent: &InTransit) -> Option<Arc<Channel>> {
        let channel = self.channels.of_gpu(sent.on_accelerator()?, way.to)?;
        let here = [Device::Cpu, Device::Cuda(channel.device())];
        let mut present = sent.values.present();
        let all = present.all(|tensor| here.contains(&tensor.device()));
        all.then_some(channel)
    }

    /// Sends the header first, so that the receiver's GPU waits for a transfer no longer than
    /// necessary.
    fn by_channel(&self, channel: &Channel, way: &Way, sent: &InTransit) -> anyhow::Result<()> {
        let gpu = Some(channel.device());
        let outgoing = channel.behind(sent, |values| Ok(Outgoing::new(values, gpu)?))?;
        let memories = outgoing.gpu_memories().map(Tensor::shallow_clone);
        let memories: Vec<Tensor> = memories.collect();
        if self.post_all(way, &outgoing)?.is_some() && !memories.is_empty() {
            channel.send(&memories, || is_over(&self.world, way.generation))?;
        }
        Ok(())
    }
}
