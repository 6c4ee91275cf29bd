//! A carrier between engines of one process.

use super::carrier::{Ballot, Carrier, Door, Lost, Verdict};
use super::failure::discard;
use super::program::{Address, Program};
use super::sync::{Builder, Condvar, JoinHandle, Mutex, wait};
use std::collections::VecDeque;
use std::sync::Arc;

/// Takes values to other engines of the same process, which stand for the ranks of processes.
///
/// Each engine has a courier thread that gives values to its door, later than they were sent: any
/// delay of a network can occur here as well.
pub struct InMemory<V: Send + 'static> {
    rank: usize,
    hub: Arc<Hub<V>>,
    courier: Option<JoinHandle<()>>,
}

struct Hub<V> {
    state: Mutex<State<V>>,
    changed: Condvar,
}

struct State<V> {
    /// By device of the pipeline: its rank.
    rank_of: Vec<usize>,
    ranks: Vec<Rank<V>>,
    /// One per rank that has arrived at the current meeting.
    ballots: Vec<Option<Ballot>>,
    /// Number of meetings of all ranks that have ended.
    meetings: u64,
    /// Verdict of the last meeting.
    verdict: Verdict,
    lost: Option<Lost>,
}

struct Rank<V> {
    /// Door of the current step, until a vote has ended; values that arrive while there is none
    /// belong to the next step.
    door: Option<Arc<dyn Door<V>>>,
    /// Values on their way to the door.
    values: VecDeque<(Address, V)>,
    /// Whether to leave the current step, or the next one before it begins.
    stopping: bool,
    /// Whether the carrier was dropped.
    closed: bool,
}

/// Next thing that a courier does.
enum Errand<V> {
    Deliver(Arc<dyn Door<V>>, (Address, V)),
    Stop(Arc<dyn Door<V>>),
}

impl<V: Send + 'static> InMemory<V> {
    /// One carrier per rank, for a pipeline whose device d is in the engine of rank
    /// `rank_of[d]`.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn new(rank_of: &[usize]) -> std::io::Result<Vec<Self>> {
        let ranks = rank_of.iter().max().map_or(0, |last| last + 1);
        let rank = |_| Rank {
            door: None,
            values: VecDeque::new(),
            stopping: false,
            closed: false,
        };
        let hub = Arc::new(Hub {
            state: Mutex::new(State {
                rank_of: rank_of.to_vec(),
                ranks: (0..ranks).map(rank).collect(),
                ballots: vec![None; ranks],
                meetings: 0,
                verdict: Verdict::Done(Vec::new()),
                lost: None,
            }),
            changed: Condvar::new(),
        });
        let carrier = |rank| {
            let here = Arc::clone(&hub);
            let courier = Builder::new().name(format!("carrier-{rank}"));
            let courier = courier.spawn(move || here.carry(rank))?;
            Ok(Self {
                rank,
                hub: Arc::clone(&hub),
                courier: Some(courier),
            })
        };
        (0..ranks).map(carrier).collect()
    }

    fn own<'a>(&self, state: &'a mut State<V>) -> &'a mut Rank<V> {
        &mut state.ranks[self.rank]
    }

    /// Waits until all ranks have arrived; the last one runs `at_end` before any goes on.
    fn meet(&self, ballot: Ballot, at_end: impl FnOnce(&mut State<V>)) -> Result<Verdict, Lost> {
        let mut state = self.hub.state.lock();
        let meeting = state.meetings;
        state.ballots[self.rank] = Some(ballot);
        if state.ballots.iter().all(Option::is_some) {
            let ballots: Vec<_> = state.ballots.iter_mut().filter_map(Option::take).collect();
            state.verdict = Verdict::of(&ballots);
            state.meetings += 1;
            at_end(&mut state);
            self.hub.changed.notify_all();
        }
        while state.meetings == meeting {
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            state = wait(&self.hub.changed, state);
        }
        Ok(state.verdict.clone())
    }
}

impl<V: Send + 'static> Carrier<V> for InMemory<V> {
    fn begin(&self, _: &Arc<Program>, door: Arc<dyn Door<V>>) -> Result<(), Lost> {
        let mut state = self.hub.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let before = self.own(&mut state).door.replace(door);
        self.hub.changed.notify_all();
        drop(state);
        discard(before);
        Ok(())
    }

    fn send(&self, to: Address, value: V) -> anyhow::Result<()> {
        let mut state = self.hub.state.lock();
        let rank = state.rank_of.get(to.device.index()).copied();
        let rank = rank.and_then(|rank| state.ranks.get_mut(rank));
        let Some(rank) = rank else {
            anyhow::bail!("no process has device {}", to.device);
        };
        rank.values.push_back((to, value));
        self.hub.changed.notify_all();
        Ok(())
    }

    fn stop(&self, _: &str) {
        let mut state = self.hub.state.lock();
        for (rank, other) in state.ranks.iter_mut().enumerate() {
            other.stopping |= rank != self.rank;
        }
        self.hub.changed.notify_all();
    }

    fn vote(&self, ballot: Ballot) -> Result<Verdict, Lost> {
        self.meet(ballot, |state| {
            state.ranks.iter_mut().for_each(|rank| rank.door = None);
        })
    }

    fn renew(&self) -> Result<(), Lost> {
        let mut late = Vec::new();
        self.meet(Ballot::Done(Vec::new()), |state| {
            for rank in &mut state.ranks {
                rank.stopping = false;
                late.extend(rank.values.drain(..));
            }
        })?;
        discard(late);
        Ok(())
    }

    fn lose(&self, why: &str) {
        let lost = Lost {
            rank: self.rank,
            why: why.to_owned(),
        };
        self.hub.state.lock().lost.get_or_insert(lost);
        self.hub.changed.notify_all();
    }
}

impl<V: Send + 'static> Hub<V> {
    /// Body of a courier thread.
    fn carry(&self, rank: usize) {
        let mut state = self.state.lock();
        while !state.ranks[rank].closed {
            let Some(errand) = state.next(rank) else {
                state = wait(&self.changed, state);
                continue;
            };
            // Under the lock: after a renewal, nothing from before it is delivered.
            match errand {
                Errand::Stop(door) => door.stop(),
                Errand::Deliver(door, (to, value)) => {
                    // Cannot happen: both ends have the same program.
                    if let Err(unwanted) = door.deliver(to, value) {
                        let why = unwanted.to_string();
                        state.lost.get_or_insert(Lost { rank, why });
                        self.changed.notify_all();
                    }
                }
            }
            // Other threads may be waiting for the lock.
            drop(state);
            state = self.state.lock();
        }
    }
}

impl<V> State<V> {
    /// Takes the next errand of the courier of `rank`.
    fn next(&mut self, rank: usize) -> Option<Errand<V>> {
        let lost = self.lost.is_some();
        let rank = &mut self.ranks[rank];
        if lost {
            return rank.door.take().map(Errand::Stop);
        }
        let door = rank.door.clone()?;
        if std::mem::take(&mut rank.stopping) {
            return Some(Errand::Stop(door));
        }
        let value = rank.values.pop_front()?;
        Some(Errand::Deliver(door, value))
    }
}

impl<V: Send + 'static> Drop for InMemory<V> {
    fn drop(&mut self) {
        self.own(&mut self.hub.state.lock()).closed = true;
        self.hub.changed.notify_all();
        if let Some(courier) = self.courier.take() {
            // The result of a courier that panicked is of no use here.
            drop(courier.join());
        }
    }
}

impl<V: Send + 'static> std::fmt::Debug for InMemory<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InMemory")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}
