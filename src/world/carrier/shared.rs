//! What a carrier's threads share: the step that is under way, and how it ends.

use std::sync::Arc;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::super::{Group, Lost, Transfer, World};
use super::agree::agree;
use super::arrivals::Stopped;
use super::channels::{Channels, Unconnected};
use super::departures::Way;
use super::headers::Headers;
use super::{Order, Parcel, Payload, tag_of};
use crate::engine::{self, Address, Ballot, Door, Program, Verdict};
use crate::tch::Tensor;
use crate::torch::wire::{FIRST, Outgoing, is_inline, received_ahead};
use crate::torch::{Values, caught};

pub(super) struct Shared<V> {
    pub(super) world: Arc<World>,
    /// No value has more bytes.
    pub(super) limit: u64,
    pub(super) channels: Arc<Channels>,
    state: Mutex<State<V>>,
    /// What is being sent; none once the carrier goes.
    pub(super) sends: Mutex<Option<Sender<Vec<Transfer>>>>,
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

/// Whether a generation of a world has ended: what fails in it then is no failure of its own.
pub(super) fn is_over(world: &World, generation: u64) -> bool {
    // In this order: what has not ended, and is still there behind that, goes on.
    world.lost().is_some() || world.generation() != generation
}

impl<V: Payload> Shared<V> {
    pub(super) fn new(
        world: &Arc<World>,
        limit: u64,
        channels: Channels,
    ) -> Result<Arc<Self>, Lost> {
        let state = State {
            group: Arc::new(world.group()?),
            begun: 0,
            open: None,
            votes: 0,
            sent: Arc::default(),
            received: Arc::default(),
        };
        let shared = Arc::new(Self {
            world: Arc::clone(world),
            limit,
            channels: Arc::new(channels),
            state: Mutex::new(state),
            sends: Mutex::new(None),
        });
        listen(&shared);
        Ok(shared)
    }

    /// That of this generation.
    pub(super) fn group(&self) -> Arc<Group> {
        Arc::clone(&self.state.lock().group)
    }

    /// Headers of what has come in this generation.
    pub(super) fn received(&self) -> Arc<Headers> {
        Arc::clone(&self.state.lock().received)
    }

    /// Whether nothing is under way that would never end.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().open.is_none() || self.world.lost().is_some()
    }

    /// Lets values in. *Returns* the step's number, and the group that its values come by.
    pub(super) fn open(&self, program: &Arc<Program>, door: Arc<dyn Door<V>>) -> (u64, Arc<Group>) {
        let mut state = self.state.lock();
        state.begun += 1;
        let program = Arc::clone(program);
        state.open = Some(Open { program, door });
        (state.begun, Arc::clone(&state.group))
    }

    /// By which group a value goes, and under which tag.
    pub(super) fn way(&self, to: Address) -> Option<(Arc<Group>, u32)> {
        let state = self.state.lock();
        let open = state.open.as_ref()?;
        Some((Arc::clone(&state.group), tag_of(&open.program, to)))
    }

    /// Has the devices here leave the step, where one is under way and the generation is at its
    /// end.
    pub(super) fn stop_if_failed(&self) {
        let state = self.state.lock();
        if let (Some(open), Some(_)) = (&state.open, self.world.lost()) {
            open.door.stop();
        }
    }

    /// Makes the channels between GPUs that a program needs.
    pub(super) fn connect(&self, program: &Program, group: &Group) -> Result<(), Lost> {
        let generation = self.world.generation();
        let given_up = || is_over(&self.world, generation);
        let connected = self.channels.connect(program, group, &given_up);
        connected.map_err(|error| self.unconnected(error))
    }

    fn unconnected(&self, error: Unconnected) -> Lost {
        match error {
            Unconnected::Lost(lost) => lost,
            Unconnected::Refused(why) => self.fail(&why),
        }
    }

    /// Fails where something has in the background.
    pub(super) fn look_after_channels(&self) {
        let generation = self.world.generation();
        if let Some(why) = self.channels.failed()
            && !is_over(&self.world, generation)
        {
            self.fail(&why);
        }
    }

    pub(super) fn fail(&self, why: &str) -> Lost {
        let votes = self.state.lock().votes;
        self.world.abort_at(votes, why)
    }

    /// Begins to send values in the host's memory.
    pub(super) fn post(&self, way: &Way, values: &Values) -> anyhow::Result<()> {
        self.post_all(way, &Outgoing::new(values, None)?).map(drop)
    }

    /// Begins to send a header, and what the host has of the values. *Returns* none where
    /// somebody has failed, and all are told to stop.
    pub(super) fn post_all(&self, way: &Way, outgoing: &Outgoing) -> anyhow::Result<Option<()>> {
        let mut transfers = Vec::new();
        for (message, tag) in self.messages(outgoing, way.rank, way.tag)? {
            match way.group.send(&message, way.rank, tag) {
                Ok(transfer) => transfers.push(transfer),
                Err(_) => return Ok(None),
            }
        }
        if let Some(sends) = &*self.sends.lock() {
            // Its thread ends after this carrier.
            let _ = sends.send(transfers);
        }
        Ok(Some(()))
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
        let inline = is_inline(value.header())?;
        let mut first = vec![bytes(first)?];
        if inline {
            first.extend(value.memories().map(Tensor::shallow_clone));
        }
        let mut messages = vec![(Tensor::f_cat(&first, 0)?, tag)];
        let sent = Arc::clone(&self.state.lock().sent);
        // What the receiver expects as it was the last time.
        let before = sent.of(to, tag).filter(|before| before != value.header());
        for _ in 0..before.map_or(Ok(0), |before| received_ahead(&before))? {
            messages.push((bytes(&[])?, tag + 1));
        }
        sent.remember(to, tag, value.header().to_vec());
        if !rest.is_empty() {
            messages.push((bytes(rest)?, tag + 1));
        }
        let memories = value.memories().filter(|_| !inline);
        let memories = memories.map(|memory| (memory.shallow_clone(), tag + 1));
        messages.extend(memories);
        Ok(messages)
    }

    /// Receives what an order says, one after another.
    pub(super) fn receive(&self, order: Order) {
        let Order {
            step,
            from,
            mut arrivals,
        } = order;
        loop {
            // A thread that is gone would leave the others waiting.
            let delivered = caught(|| {
                let delivered = arrivals.next().and_then(|next| {
                    let Some((to, parcel)) = next else {
                        return Ok(false);
                    };
                    self.deliver(step, to, parcel).map(|()| true)
                });
                Ok(delivered)
            });
            let delivered =
                delivered.unwrap_or_else(|error| Err(Stopped::Wrong(error.to_string())));
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

    fn deliver(&self, step: u64, to: Address, parcel: Parcel) -> Result<(), Stopped> {
        let value = V::from_parcel(parcel);
        let value = value.map_err(|error| Stopped::Wrong(error.to_string()))?;
        let state = self.state.lock();
        let open = state.open.as_ref().filter(|_| state.begun == step);
        let door = &open.ok_or(Stopped::Lost)?.door;
        let delivered = door.deliver(to, value);
        delivered.map_err(|unwanted| Stopped::Wrong(unwanted.to_string()))
    }

    pub(super) fn vote(&self, ballot: &Ballot) -> Result<Verdict, engine::Lost> {
        let (group, votes) = {
            let state = self.state.lock();
            (Arc::clone(&state.group), state.votes)
        };
        let agreed = match ballot {
            Ballot::Done => self.done(&group),
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

    fn done(&self, group: &Group) -> Result<(), Lost> {
        let generation = self.world.generation();
        let finished = self.channels.finish(&|| is_over(&self.world, generation));
        finished.map_err(|error| self.unconnected(error))?;
        agree(group, self.world.rank(), self.world.size())
    }

    pub(super) fn renew(&self) -> Result<(), Lost> {
        // Before the next generation, whose failure their end would look like.
        self.channels.clear();
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
pub(super) fn listen<V: Payload>(shared: &Arc<Shared<V>>) {
    let own = Arc::downgrade(shared);
    shared.world.on_abort(move |_| {
        if let Some(own) = own.upgrade() {
            // In this order: what an aborted transfer leaves in memory is for nobody to look at.
            own.stop_if_failed();
            own.channels.abort();
        }
    });
}

/// In the engine's words.
pub(super) fn told(lost: &Lost) -> engine::Lost {
    engine::Lost {
        rank: lost.rank.unwrap_or_default(),
        why: format!("{} (on `{}`)", lost.why, lost.host),
    }
}
