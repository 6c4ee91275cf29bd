//! A pipeline over several engines, which stand for processes.

use super::affine::{Affine, Grads, Settings};
use super::{entries, oracle, watched};
use gpipe_engine::{
    Carrier, EdgeValues, End, Engine, EngineError, InMemory, Program, Sharing, StageBuilder,
    StepOutcome, Topology, Unpinned,
};
use gpipe_partitioner::{CheckedSchedule, DeviceId, StageId};
use std::sync::Arc;

/// Results of a step, by rank.
pub type Results = Vec<Result<StepOutcome<i64>, EngineError>>;

pub struct World {
    pub ranks: Vec<Rank>,
    schedule: CheckedSchedule,
    topology: Arc<Topology>,
    /// Gradients that every stage must have accumulated.
    sum: Vec<Grads>,
}

pub struct Rank {
    pub engine: Engine<Affine>,
    pub program: Arc<Program>,
    pub carrier: Arc<InMemory<i64>>,
}

pub fn builder(stages: Vec<StageId>, topology: &Arc<Topology>) -> StageBuilder<Affine> {
    let topology = Arc::clone(topology);
    let stage = move |id: StageId| (id, Affine::new(id, Arc::clone(&topology)));
    Box::new(move || Ok(stages.into_iter().map(stage).collect()))
}

/// Runs `work` for each item, all at the same time.
pub fn together<T: Send, R: Send>(
    all: impl IntoIterator<Item = T>,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let all = all.into_iter().enumerate();
        let threads: Vec<_> = all
            .map(|(rank, one)| scope.spawn(move || work(rank, one)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

impl World {
    /// Device d is in the engine of rank `rank_of[d]`; where `turns` says so, devices take
    /// turns on one core per engine.
    pub fn new(
        schedule: &CheckedSchedule,
        topology: &Arc<Topology>,
        rank_of: &[usize],
        turns: bool,
    ) -> Self {
        let carriers = InMemory::new(rank_of).unwrap();
        let devices = |rank: usize| {
            let all = rank_of.iter().enumerate();
            let own = all.filter(move |(_, other)| **other == rank);
            own.map(|(device, _)| DeviceId(device)).collect::<Vec<_>>()
        };
        let ranks = together(carriers, |rank, carrier| {
            let carrier = Arc::new(carrier);
            let own = devices(rank);
            let sharing = Sharing {
                devices: own.clone(),
                max_concurrent: 1,
                affinity: Arc::new(Unpinned),
            };
            let builders = own.iter().map(|&device| {
                let stages = schedule.stages_on(device);
                (device, builder(stages, topology))
            });
            let engine = Engine::part(
                rank_of.len(),
                builders.collect(),
                turns.then_some(&sharing),
                Arc::clone(&carrier) as Arc<dyn Carrier<i64>>,
            );
            let here = |device| own.contains(&device);
            let program = Program::part(schedule.clone(), topology, here).unwrap();
            Rank {
                engine: engine.unwrap(),
                program: Arc::new(program),
                carrier,
            }
        });
        Self {
            ranks,
            schedule: schedule.clone(),
            topology: Arc::clone(topology),
            sum: vec![Grads::default(); topology.stages()],
        }
    }

    /// Runs a step; `settings` gives those of each rank.
    pub fn step(&mut self, seed: i64, settings: impl Fn(usize) -> Settings + Sync) -> Results {
        together(
            &mut self.ranks,
            |rank,
             Rank {
                 engine, program, ..
             }| {
                let mut entries = entries(program, seed);
                let own = |edge| match program
                    .topology()
                    .outgoing(End::Caller)
                    .find(|(id, _)| *id == edge)
                {
                    Some((_, ends)) => match ends.to {
                        End::Stage(stage) => engine.device_of(stage).is_some(),
                        End::Caller => false,
                    },
                    None => false,
                };
                entries.retain(|entry| own(entry.edge));
                engine.step(program, Arc::new(settings(rank)), entries)
            },
        )
    }

    /// Runs a step that must succeed and agree with one engine.
    pub fn good_step(&mut self, seed: i64) {
        let results = self.step(seed, |_| Settings::default());
        let (micros, training) = (
            self.schedule.schedule().micro_batches(),
            self.schedule.is_training(),
        );
        let expected = oracle(&self.topology, micros, training, seed);
        let (mut exits, mut gradients) = (EdgeValues::new(), EdgeValues::new());
        for (rank, result) in self.ranks.iter().zip(results) {
            let outcome = result.unwrap();
            exits.extend(outcome.exits);
            gradients.extend(outcome.gradients);
            let devices = outcome.events.len();
            assert_eq!(devices, rank.engine.devices());
        }
        assert_eq!(exits, expected.exits);
        assert_eq!(gradients, expected.gradients);
        self.counts(seed);
        let mut now: Vec<(StageId, Grads)> = Vec::new();
        for rank in &mut self.ranks {
            let own = rank.engine.on_each(|id, stage| Ok((id, stage.grads)));
            now.extend(own.unwrap());
        }
        now.sort_by_key(|(id, _)| *id);
        let plain = |grads: &Grads| (grads.weight, grads.bias);
        let now: Vec<_> = now.iter().map(|(_, grads)| plain(grads)).collect();
        let sum: Vec<_> = self.sum.iter().map(plain).collect();
        assert_eq!(now, sum);
    }

    /// Notes that a step has counted.
    pub fn counts(&mut self, seed: i64) {
        let micros = self.schedule.schedule().micro_batches();
        let expected = oracle(&self.topology, micros, self.schedule.is_training(), seed);
        for (sum, step) in self.sum.iter_mut().zip(&expected.grads) {
            sum.weight = sum.weight.wrapping_add(step.weight);
            sum.bias = sum.bias.wrapping_add(step.bias);
        }
    }

    /// The rank that has `stage`.
    pub fn rank_of(&self, stage: StageId) -> usize {
        let has = |rank: &Rank| rank.engine.device_of(stage).is_some();
        self.ranks.iter().position(has).unwrap()
    }
}

/// Same as [`watched`], with a world.
pub fn in_world(
    schedule: CheckedSchedule,
    rank_of: &[usize],
    body: impl FnOnce(World) + Send + 'static,
) {
    let rank_of = rank_of.to_vec();
    watched(move || {
        let topology = Arc::new(Topology::chain(schedule.schedule().stages()));
        body(World::new(&schedule, &topology, &rank_of, false));
    });
}
