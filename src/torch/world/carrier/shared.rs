//! State shared by a carrier's threads: the running step, and how it ends.

use std::sync::Arc;

use gpipe_partitioner::DeviceId;
use parking_lot::Mutex;

use super::super::heartbeat::other_call;
use super::super::{Group, Lost, World};
use super::channels::{Channels, Unconnected};
use super::pending::Pending;
use super::receive_ahead::{Headers, Posted};
use super::vote::{Exchange, Stopped, TOLD, VOTES};
use super::work_counter::Busy;
use super::{Payload, tag_of};
use crate::Values;
use crate::wire::{Header, Outgoing};
use gpipe_engine::{Address, Ballot, Door, Program, UnwantedValue, Verdict};
use tch::Tensor;

pub(super) struct Shared<V> {
    pub(super) world: Arc<World>,
    /// Most bytes of a value.
    pub(super) limit: u64,
    pub(super) channels: Arc<Channels>,
    state: Mutex<State<V>>,
    /// Sends in progress.
    pub(super) sends: Pending,
    /// Work of this carrier's threads for the generation.
    pub(super) busy: Busy,
}

struct State<V> {
    group: Arc<Group>,
    /// Number of steps begun.
    begun: u64,
    /// The running step.
    open: Option<Open<V>>,
    /// The next vote, whose receives have begun.
    vote: Option<Exchange>,
    /// The current call of this process: all others are in the same, or an error is raised.
    call: Arc<str>,
    /// Headers of the values sent and received in this generation.
    sent: Arc<Headers>,
    received: Arc<Headers>,
    /// Receives posted for the next step.
    posted: Arc<Posted>,
}

struct Open<V> {
    program: Arc<Program>,
    door: Arc<dyn Door<V>>,
}

/// Route of a value to its process.
pub(super) struct Way {
    pub(super) generation: u64,
    pub(super) to: DeviceId,
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    /// Tag of its header.
    pub(super) tag: u32,
    /// Mark of the call in which it is sent.
    pub(super) mark: u64,
}

/// Returns whether a generation of a world has ended: a failure in it then has another cause.
pub(super) fn is_over(world: &World, generation: u64) -> bool {
    // In this order: a world that is not lost and still has this generation afterwards was running.
    world.lost().is_some() || world.generation() != generation
}

impl<V: Payload> Shared<V> {
    pub(super) fn new(
        world: &Arc<World>,
        limit: u64,
        channels: Channels,
    ) -> Result<Arc<Self>, Lost> {
        let group = Arc::new(world.group()?);
        let state = State {
            vote: Some(Exchange::begin(&group, place_in(world), VOTES)?),
            call: "".into(),
            group,
            begun: 0,
            open: None,
            sent: Arc::default(),
            received: Arc::default(),
            posted: Arc::default(),
        };
        let shared = Arc::new(Self {
            world: Arc::clone(world),
            limit,
            channels: Arc::new(channels),
            state: Mutex::new(state),
            sends: Pending::default(),
            busy: Busy::default(),
        });
        listen(&shared);
        Ok(shared)
    }

    /// Returns the group of this generation.
    pub(super) fn group(&self) -> Arc<Group> {
        Arc::clone(&self.state.lock().group)
    }

    /// Returns the headers of values received in this generation.
    pub(super) fn received(&self) -> Arc<Headers> {
        Arc::clone(&self.state.lock().received)
    }

    /// Returns this generation's receives posted for the next step.
    pub(super) fn posted(&self) -> Arc<Posted> {
        Arc::clone(&self.state.lock().posted)
    }

    /// Returns whether nothing is running that would never end.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().open.is_none() || self.world.lost().is_some()
    }

    /// Lets values in. *Returns* the step's number, and the group of its values.
    pub(super) fn open(&self, program: &Arc<Program>, door: Arc<dyn Door<V>>) -> (u64, Arc<Group>) {
        let mut state = self.state.lock();
        state.begun += 1;
        let program = Arc::clone(program);
        state.open = Some(Open { program, door });
        (state.begun, Arc::clone(&state.group))
    }

    /// Returns the group, tag and call mark by which a value is sent.
    pub(super) fn way(&self, to: Address) -> Option<(Arc<Group>, u32, u64)> {
        let state = self.state.lock();
        let open = state.open.as_ref()?;
        let group = Arc::clone(&state.group);
        Some((group, tag_of(&open.program, to), mark(&state.call)))
    }

    /// Begins a call of this process.
    pub(super) fn begin_call(&self, name: &str) {
        let name: Arc<str> = name.into();
        self.world.watch.begin_call(&name);
        self.state.lock().call = name;
    }

    /// Returns the mark that distinguishes the values of this call.
    pub(super) fn mark(&self) -> u64 {
        mark(&self.state.lock().call)
    }

    /// Makes the local devices leave the running step, if the generation has ended.
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

    /// Fails if a channel has failed in the background.
    pub(super) fn look_after_channels(&self) {
        let generation = self.world.generation();
        if let Some(why) = self.channels.failed() {
            self.fail_in(generation, &why);
        }
    }

    pub(super) fn fail(&self, why: &str) -> Lost {
        self.world.abort_at(self.world.watch.votes(), why)
    }

    /// Fails in the background, in a generation that may have ended: a failure after that is not
    /// one of the next generation.
    pub(super) fn fail_in(&self, generation: u64, why: &str) {
        let at = self.world.watch.votes();
        let _ = self.world.abort_in(generation, at, why);
    }

    /// Begins to send values in host memory.
    pub(super) fn post(&self, way: &Way, values: &Values) -> anyhow::Result<()> {
        self.post_all(way, &Outgoing::new(values, None)?).map(drop)
    }

    /// Begins to send a header, and the host's part of the values. *Returns* `None` if a process
    /// has failed, and all are told to stop.
    pub(super) fn post_all(&self, way: &Way, outgoing: &Outgoing) -> anyhow::Result<Option<()>> {
        for (message, tag) in self.messages(outgoing, way)? {
            match way.group.send(&message, way.rank, tag) {
                Ok(transfer) => self.sends.add(transfer, message.numel()),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(()))
    }

    /// Returns the messages of a value, with their tags.
    fn messages(
        &self,
        value: &Outgoing,
        &Way {
            rank, tag, mark, ..
        }: &Way,
    ) -> anyhow::Result<Vec<(Tensor, u32)>> {
        let mut messages = vec![(value.first(&mark.to_le_bytes())?, tag)];
        let sent = Arc::clone(&self.state.lock().sent);
        // The receiver's expectation, from the last value.
        let before = sent.of(rank, tag);
        if let Some(before) = before.filter(|before| before != value.header()) {
            let none = Tensor::f_from_slice::<u8>(&[])?;
            let expected = Header::read(&before, u64::MAX)?.received_ahead();
            messages.extend((0..expected).map(|_| (none.shallow_clone(), tag + 1)));
        }
        sent.remember(rank, tag, value.header().to_vec());
        let rest = value.rest()?.into_iter();
        messages.extend(rest.map(|message| (message, tag + 1)));
        Ok(messages)
    }

    /// Gives a value of a step to its device; `None` if the step has ended.
    pub(super) fn deliver(
        &self,
        step: u64,
        to: Address,
        value: V,
    ) -> Option<Result<(), UnwantedValue>> {
        let state = self.state.lock();
        let open = state.open.as_ref().filter(|_| state.begun == step)?;
        Some(open.door.deliver(to, value))
    }

    pub(super) fn vote(&self, ballot: &Ballot) -> Result<Verdict, gpipe_engine::Lost> {
        let agreed = match ballot {
            Ballot::Done(told) => self.done(told),
            Ballot::Failed(why) => Err(self.fail(why)),
            // It leaves only after a failure elsewhere.
            Ballot::Left => {
                let lost = self.world.lost();
                Err(lost.unwrap_or_else(|| self.fail("it left the step")))
            }
        };
        match agreed {
            // All values have arrived, since all processes have done their part.
            Ok(_) => self.sends.finish(),
            Err(_) => self.sends.give_up(),
        }
        // If the next vote has failed already, it finds out by itself.
        let next = agreed
            .is_ok()
            .then(|| Exchange::begin(&self.group(), place_in(&self.world), VOTES).ok());
        let mut state = self.state.lock();
        state.open = None;
        match agreed {
            Err(lost) if lost.gone => Err(told(&lost)),
            Err(lost) => {
                let gpipe_engine::Lost { rank, why } = told(&lost);
                Ok(Verdict::Failed { rank, why })
            }
            Ok(all) => {
                state.vote = next.flatten();
                self.world.watch.voted();
                Ok(Verdict::Done(all))
            }
        }
    }

    /// Votes that this process has done its part, with a message. *Returns* the messages of all.
    fn done(&self, told: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        let generation = self.world.generation();
        let finished = self.channels.finish(&|| is_over(&self.world, generation));
        finished.map_err(|error| self.unconnected(error))?;
        let begun = self.state.lock().vote.take();
        self.exchange(begun, VOTES, told)
    }

    /// See [`WorldCarrier::gather`](super::WorldCarrier::gather).
    pub(super) fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.exchange(None, TOLD, own)
    }

    /// Gathers the data of each process, in the order of ranks, if all are in the same call.
    fn exchange(
        &self,
        begun: Option<Exchange>,
        tag: u32,
        own: &[u8],
    ) -> Result<Vec<Vec<u8>>, Lost> {
        let (group, call) = {
            let state = self.state.lock();
            (Arc::clone(&state.group), Arc::clone(&state.call))
        };
        let votes = self.world.watch.votes();
        let begun =
            begun.map_or_else(|| Exchange::begin(&group, place_in(&self.world), tag), Ok)?;
        let length = (call.len() as u32).to_le_bytes();
        let own = [&length[..], call.as_bytes(), own].concat();
        // A process that fails after this vote had the ballots of all. So all have come here, and
        // still send all that the others need.
        let goes_on = |lost: &Lost| tag == VOTES && !lost.gone && lost.at > votes;
        let all = begun.finish(&own, &goes_on);
        let all = all.map_err(|odd| self.wrong(odd))?;
        let mut told = Vec::new();
        for (rank, theirs) in all.iter().enumerate() {
            let Some((name, rest)) = split(theirs) else {
                return Err(self.wrong(Stopped::Wrong(rank, "no call".to_owned())));
            };
            if name != call.as_bytes() {
                let name = String::from_utf8_lossy(name);
                let own = (self.world.rank(), &*call);
                return Err(self.fail(&other_call(own, (rank, &name))));
            }
            told.push(rest.to_vec());
        }
        Ok(told)
    }

    /// Loses the world: a rank that sent undecodable data has failed beyond recovery.
    pub(super) fn wrong(&self, odd: Stopped) -> Lost {
        match odd {
            Stopped::Lost(lost) => lost,
            Stopped::Wrong(from, why) => {
                let why = format!("what rank {from} has sent between steps: {why}");
                self.world.lose(&why)
            }
        }
    }

    pub(super) fn renew(&self) -> Result<(), Lost> {
        // Before the next generation, whose failure their end would look like, and whose values
        // they would take.
        self.channels.abort();
        self.busy.wait();
        self.channels.clear();
        self.world.renew()?;
        let group = Arc::new(self.world.group()?);
        let vote = Exchange::begin(&group, place_in(&self.world), VOTES).ok();
        let mut state = self.state.lock();
        (state.vote, state.open) = (vote, None);
        (state.sent, state.received, state.posted) = Default::default();
        let before = std::mem::replace(&mut state.group, group);
        drop(state);
        // Closing its connections may take a moment.
        drop(before);
        Ok(())
    }
}

/// Makes the local devices leave the running step when this generation ends.
pub(super) fn listen<V: Payload>(shared: &Arc<Shared<V>>) {
    let own = Arc::downgrade(shared);
    shared.world.on_abort(move |_| {
        if let Some(own) = own.upgrade() {
            // In this order: memory after an aborted transfer must not be read.
            own.stop_if_failed();
            own.channels.abort();
        }
    });
}

/// Returns rank and size.
fn place_in(world: &World) -> (usize, usize) {
    (world.rank(), world.size())
}

/// Splits a message into the name of the call and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Hashes a name (FNV-1a), equally in all processes.
fn mark(name: &str) -> u64 {
    let add = |mark: u64, byte: u8| (mark ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Converts to the engine's error.
pub(super) fn told(lost: &Lost) -> gpipe_engine::Lost {
    gpipe_engine::Lost {
        rank: lost.rank.unwrap_or_default(),
        why: format!("{} (on `{}`)", lost.why, lost.host),
    }
}
