//! Replicas of a pipeline, on one engine or on several that stand for processes.

use super::leafy::{Fault, Leafy, SLICES, Settings, Sum, Value, When, gradient, leaf, node, plus};
use super::world::together;
use super::{How, chunked};
use gpipe_engine::{
    Carrier, EdgeId, Engine, EngineError, Entry, InMemory, Mesh, Program, Sharing, StageBuilder,
    StepOutcome, Topology, Unpinned,
};
use gpipe_partitioner::{CheckedSchedule, DeviceId, MicroId, ScheduleKind, StageId};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const LEAVES: usize = 4;

pub type Results = Vec<Result<StepOutcome<Value>, EngineError>>;

pub struct Replicas {
    pub ranks: Vec<Rank>,
    pub mesh: Mesh,
    /// The schedule of the first replica that has one.
    pub schedule: CheckedSchedule,
    /// Good steps so far.
    steps: usize,
}

pub struct Rank {
    pub engine: Engine<Leafy>,
    pub program: Arc<Program>,
}

/// Returns a schedule for each of d replicas with M micro-batches together, divided at leaves.
pub fn shares(
    kind: ScheduleKind,
    p: usize,
    d: usize,
    micros: usize,
) -> Vec<Option<CheckedSchedule>> {
    let of = |replica: usize| (replica + 1) * micros / d - replica * micros / d;
    let schedule = |m: usize| (m > 0).then(|| chunked(kind, p, m));
    (0..d).map(|replica| schedule(of(replica))).collect()
}

pub fn builder(stages: Vec<StageId>, replica: usize, replicas: usize) -> StageBuilder<Leafy> {
    let stage = move |id| (id, Leafy::new(id, (replica, replicas), LEAVES));
    Box::new(move || Ok(stages.into_iter().map(stage).collect()))
}

/// Returns the sum of a stage's gradients over a step, by the definition of the tree.
pub fn defined(stage: StageId, micros: usize) -> Vec<Option<Sum>> {
    let of = |slice: usize| {
        let sum = |j: usize| {
            let added = leaf(j, LEAVES, micros).map(|micro| Some(gradient(stage, micro, slice)));
            added.fold(None, plus)
        };
        node(&(0..LEAVES).map(sum).collect::<Vec<_>>())
    };
    (0..SLICES).map(of).collect()
}

impl Replicas {
    /// All replicas on one engine.
    pub fn whole(replicas: &[Option<CheckedSchedule>], turns: Option<usize>) -> Self {
        let (mesh, schedule) = mesh(replicas);
        let builders = (0..mesh.devices()).map(|device| of_device(mesh, &schedule, device).1);
        let sharing = turns.map(|max_concurrent| Sharing {
            devices: (0..mesh.devices()).map(DeviceId).collect(),
            max_concurrent,
            affinity: Arc::new(Unpinned),
        });
        let engine =
            Engine::replicated(mesh.replicas(), builders.collect(), sharing.as_ref()).unwrap();
        let topology = Topology::chain(schedule.schedule().stages());
        let program = Program::replicated(replicas.to_vec(), &topology, 2, |_| true);
        let program = Arc::new(program.unwrap());
        Self {
            ranks: vec![Rank { engine, program }],
            mesh,
            schedule,
            steps: 0,
        }
    }

    /// Device d of the mesh is in the engine of rank `rank_of[d]`.
    pub fn parts(replicas: &[Option<CheckedSchedule>], rank_of: &[usize]) -> Self {
        let (mesh, schedule) = mesh(replicas);
        assert_eq!(rank_of.len(), mesh.devices());
        let topology = Topology::chain(schedule.schedule().stages());
        let ranks = together(InMemory::new(rank_of).unwrap(), |rank, carrier| {
            let own = (0..rank_of.len()).filter(|device| rank_of[*device] == rank);
            let builders = own.map(|device| of_device(mesh, &schedule, device));
            let carrier = Arc::new(carrier) as Arc<dyn Carrier<Value>>;
            let engine = Engine::part(mesh, builders.collect(), None, carrier).unwrap();
            let here = |device: DeviceId| rank_of[device.index()] == rank;
            let program = Program::replicated(replicas.to_vec(), &topology, 2, here).unwrap();
            let program = Arc::new(program);
            Rank { engine, program }
        });
        Self {
            ranks,
            mesh,
            schedule,
            steps: 0,
        }
    }

    pub fn micros(&self) -> usize {
        self.ranks[0].program.micro_batches()
    }

    pub fn stages(&self) -> usize {
        self.schedule.schedule().stages()
    }

    pub fn settings(&self) -> Settings {
        Settings {
            micros: self.micros(),
            training: self.schedule.is_training(),
            ..Settings::default()
        }
    }

    pub fn step(&mut self, settings: &Settings) -> Results {
        let mesh = self.mesh;
        let first = self.schedule.device_of(StageId(0));
        together(&mut self.ranks, |_, Rank { engine, program }| {
            let replicas = 0..mesh.replicas();
            let device = |replica| mesh.device(first, replica);
            let copies: Vec<_> = engine.copies_of(StageId(0)).collect();
            let here = replicas.filter(|replica| copies.contains(&device(*replica)));
            let micros = here.flat_map(|replica| program.micro_batches_of(replica));
            let entry = |micro| Entry {
                edge: EdgeId(0),
                micro: MicroId(micro),
                value: Value::Number(100 * micro as i64),
            };
            let entries = micros.map(entry).collect();
            engine.step(program, Arc::new(settings.clone()), entries)
        })
    }

    /// Runs a step and checks it against one pipeline.
    pub fn good_step(&mut self) {
        let settings = self.settings();
        self.good_step_of(&settings);
    }

    pub fn good_step_of(&mut self, settings: &Settings) {
        let results = self.step(settings);
        let (mut exits, mut gradients) = (BTreeMap::new(), BTreeMap::new());
        for (rank, result) in self.ranks.iter().zip(results) {
            let outcome = result.unwrap();
            let exchanges = outcome.timeline.exchanges();
            let exchanging = self.schedule.is_training() && self.mesh.replicas() > 1;
            let wanted = if exchanging { rank.engine.stages() } else { 0 };
            assert_eq!(exchanges.len(), wanted);
            assert!(exchanges.is_sorted_by_key(|exchange| exchange.start));
            exits.extend(outcome.exits);
            gradients.extend(outcome.gradients);
        }
        let stages = self.stages();
        let all = |place: usize, sign: i64| {
            let number = move |m: usize| Value::Number(sign * (100 * m + place) as i64);
            let values = (0..self.micros()).map(move |m| ((EdgeId(place), MicroId(m)), number(m)));
            values.collect::<BTreeMap<_, _>>()
        };
        assert_eq!(exits, all(stages, 1));
        let training = self.schedule.is_training();
        assert_eq!(
            gradients,
            if training {
                all(0, -1)
            } else {
                BTreeMap::new()
            }
        );
        self.steps += usize::from(training);
        self.check_sums();
    }

    /// Checks that every copy of every stage has the sums of the good steps, and nothing else.
    fn check_sums(&mut self) {
        let (micros, steps) = (self.micros(), self.steps);
        let mut copies = 0;
        for rank in &mut self.ranks {
            let sums = rank
                .engine
                .on_each(|id, stage| Ok((id, stage.steps.clone())));
            for (id, sums) in sums.unwrap() {
                assert_eq!(sums, vec![defined(id, micros); steps], "stage {id}");
                copies += 1;
            }
        }
        assert_eq!(copies, self.stages() * self.mesh.replicas());
    }

    /// The rank that has a copy of a stage.
    pub fn rank_of(&self, stage: StageId, replica: usize) -> usize {
        let device = self.mesh.device(self.schedule.device_of(stage), replica);
        let has = |rank: &Rank| rank.engine.copies_of(stage).any(|own| own == device);
        self.ranks.iter().position(has).unwrap()
    }

    /// Runs a step that fails in `fault`; returns the error of the rank of the fault, and checks
    /// the errors of the others.
    pub fn bad_step(&mut self, fault: Fault) -> EngineError {
        let settings = Settings {
            fault: Some(fault),
            ..self.settings()
        };
        let failed = self.rank_of(fault.stage, fault.replica);
        let mut errors: Vec<_> = self
            .step(&settings)
            .into_iter()
            .map(Result::unwrap_err)
            .collect();
        let own = errors.remove(failed);
        for error in errors {
            match error {
                EngineError::Elsewhere { rank, why } => {
                    assert_eq!((rank, why), (failed, own.to_string()));
                }
                other => panic!("{other}"),
            }
        }
        own
    }

    /// Returns every place in which a copy of a stage can fail.
    pub fn places(&self) -> Vec<(StageId, usize, When)> {
        let mut places = Vec::new();
        let program = &self.ranks[0].program;
        for replica in 0..self.mesh.replicas() {
            let first = program.micro_batches_of(replica).start;
            let schedule = program.schedule_of(replica).map(CheckedSchedule::schedule);
            for action in schedule
                .iter()
                .flat_map(|own| own.iter())
                .flat_map(|(_, list)| list)
            {
                let micro = MicroId(first + action.micro.index());
                places.push((action.stage, replica, When::Action(action.kind, micro)));
            }
            for stage in (0..self.stages()).map(StageId) {
                places.extend([When::Begin, When::End].map(|when| (stage, replica, when)));
                let rounds = (0..3).map(|round| (stage, replica, When::Exchange(round)));
                places.extend(rounds.filter(|_| self.schedule.is_training()));
            }
        }
        places
    }
}

/// Returns a device of the mesh with the builder of its stages.
fn of_device(
    mesh: Mesh,
    schedule: &CheckedSchedule,
    device: usize,
) -> (DeviceId, StageBuilder<Leafy>) {
    let device = DeviceId(device);
    let stages = schedule.stages_on(mesh.of_pipeline(device));
    let build = builder(stages, mesh.replica_of(device), mesh.replicas());
    (device, build)
}

fn mesh(replicas: &[Option<CheckedSchedule>]) -> (Mesh, CheckedSchedule) {
    let schedule = replicas.iter().flatten().next().unwrap().clone();
    let mesh = Mesh::new(schedule.schedule().devices(), replicas.len());
    (mesh, schedule)
}

impl Fault {
    pub fn new((stage, replica, when): (StageId, usize, When), how: How) -> Self {
        Self {
            stage,
            replica,
            when,
            how,
        }
    }
}
