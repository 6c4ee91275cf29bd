//! Schedules compiled for the numbers of micro-batches that occur.

mod in_a_row;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, Costs, DeviceId, MicroId, Micros, Placement, Schedule,
    ScheduleError, ScheduleKind, Shape, StageId, auto,
};

use super::wiring::{Purpose, Wiring};
use crate::engine::{Mesh, Program};
use crate::error::{Error, Setting, SettingsError, SettingsRule};
use crate::torch::Recompute;
use in_a_row::InARow;

/// Rounds of an exchange between replicas: a reduce-scatter and an all-gather.
const ROUNDS: usize = 2;

/// Actions of all devices that a schedule may have so that it is kept: some two MiB.
const KEPT: usize = 1 << 16;

/// Where schedules come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Made for any number of micro-batches.
    Kind(ScheduleKind),
    /// One that the user gave, for its own number of micro-batches.
    Fixed(CheckedSchedule),
}

/// A schedule's programs, made when first needed: a batch with fewer samples
/// than micro-batches runs in fewer.
#[derive(Debug)]
pub(super) struct Programs {
    maker: Arc<Maker>,
    mesh: Mesh,
    wiring: Wiring,
    /// By device, of those of all replicas: whether it is in this process.
    here: Vec<bool>,
    made: HashMap<(Purpose, usize), Arc<Program>>,
    /// The last one of several steps in a row.
    row: Option<InARow>,
}

/// Makes the schedules.
#[derive(Debug, Clone)]
struct Maker {
    source: Source,
    /// Devices and chunks of a replica, and micro-batches of all replicas.
    shape: Shape,
    replicas: usize,
    /// The device of each stage, of those of a replica.
    placement: Vec<DeviceId>,
    recompute: Recompute,
    /// Whether each stage has layers that recompute.
    recomputing: Vec<bool>,
    /// What a computed schedule is computed for, once it is known.
    measured: Option<Costs>,
    /// Of the exchange between replicas.
    rounds: usize,
}

impl Programs {
    /// # Errors
    /// The schedule does not exist for these numbers, or cannot train.
    pub(super) fn new(
        source: Source,
        (shape, mesh): (Shape, Mesh),
        wiring: Wiring,
        recompute: Recompute,
        recomputing: Vec<bool>,
        (here, exchanges): (Vec<bool>, bool),
    ) -> Result<Self, Error> {
        let full = match &source {
            // The last replica has the most.
            Source::Kind(kind) => kind.generate(Shape {
                micro_batches: shape.micro_batches.div_ceil(mesh.replicas()),
                ..shape
            })?,
            Source::Fixed(schedule) => schedule.clone(),
        };
        check_trains(&full)?;
        let placement = (0..shape.stages())
            .map(|stage| full.device_of(StageId(stage)))
            .collect();
        let maker = Maker {
            source,
            shape,
            replicas: mesh.replicas(),
            placement,
            recompute: recompute.in_a_word(),
            recomputing,
            measured: None,
            rounds: if exchanges { ROUNDS } else { 0 },
        };
        let mut programs = Self {
            maker: Arc::new(maker),
            mesh,
            wiring,
            here,
            made: HashMap::new(),
            row: None,
        };
        let input_gradient = false;
        programs.get(Purpose::Train { input_gradient }, shape.micro_batches)?;
        Ok(programs)
    }

    /// Micro-batches of a full step, of all replicas.
    pub(super) fn micro_batches(&self) -> usize {
        self.maker.shape.micro_batches
    }

    /// What the schedule is called by whoever asked for it; a computed one may be that of another
    /// name.
    pub(super) fn name(&self) -> &str {
        match &self.maker.source {
            Source::Kind(kind) => kind.name(),
            Source::Fixed(schedule) => schedule.schedule().name(),
        }
    }

    pub(super) fn recompute(&self) -> &Recompute {
        &self.maker.recompute
    }

    /// The device of each stage, of those of a replica.
    pub(super) fn placement(&self) -> &[DeviceId] {
        &self.maker.placement
    }

    /// By stage, then by replica: what is said of the copy's device.
    pub(super) fn copies<T>(&self, of_device: impl Fn(usize) -> T) -> Vec<Vec<T>> {
        let of_stage = |device: &DeviceId| {
            let replicas = 0..self.mesh.replicas();
            let copies = replicas.map(|replica| self.mesh.device(*device, replica));
            copies.map(|copy| of_device(copy.index())).collect()
        };
        self.placement().iter().map(of_stage).collect()
    }

    /// The devices, in all processes.
    pub(super) fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// The program for this many micro-batches.
    pub(super) fn get(
        &mut self,
        purpose: Purpose,
        micro_batches: usize,
    ) -> Result<Arc<Program>, Error> {
        if let Some(program) = self.made.get(&(purpose, micro_batches)) {
            return Ok(Arc::clone(program));
        }
        let replicas = 0..self.mesh.replicas();
        let schedules = replicas.map(|replica| self.maker.make(purpose, replica, micro_batches));
        let schedules = schedules.collect::<Result<Vec<_>, Error>>()?;
        let lets_go = self.lets_go(&schedules);
        let here = |device: DeviceId| self.here[device.index()];
        let topology = self.wiring.topology(purpose)?;
        let mut program = Program::replicated(schedules, &topology, self.maker.rounds, here)?;
        if lets_go {
            let maker = Arc::clone(&self.maker);
            program = program.without_schedules(move |replica| {
                let again = maker.make(purpose, replica, micro_batches);
                // As the first time, when there was one.
                again.ok().flatten().expect("it was made before")
            });
        }
        let program = Arc::new(program);
        self.made
            .insert((purpose, micro_batches), Arc::clone(&program));
        Ok(program)
    }

    /// Tells what a full step was measured to cost. A computed schedule is computed
    /// for these costs from now on; the others do not care.
    ///
    /// # Errors
    /// That of the costs.
    pub(super) fn learn(
        &mut self,
        costs: impl FnOnce() -> Result<Costs, Error>,
    ) -> Result<(), Error> {
        if self.learns() {
            Arc::make_mut(&mut self.maker).measured = Some(costs()?);
            self.made
                .retain(|(purpose, _), _| *purpose == Purpose::Infer);
            self.row = None;
        }
        Ok(())
    }

    /// Whether [`Programs::learn`] would.
    pub(super) fn learns(&self) -> bool {
        let maker = &self.maker;
        matches!(maker.source, Source::Kind(ScheduleKind::Auto)) && maker.measured.is_none()
    }

    /// Whether a program of these schedules is to keep none of them: where the most of what they
    /// say is for devices elsewhere, it is long, and it can be made again without searching.
    fn lets_go(&self, schedules: &[Option<CheckedSchedule>]) -> bool {
        let actions = |own: &CheckedSchedule| {
            let lists = own.schedule().iter();
            lists.map(|(_, list)| list.len()).sum::<usize>()
        };
        let computed = match &self.maker.source {
            Source::Kind(kind) => *kind == ScheduleKind::Auto,
            Source::Fixed(_) => true,
        };
        let elsewhere = self.here.iter().filter(|here| !**here).count();
        let long = schedules.iter().flatten().map(actions).sum::<usize>() > KEPT;
        long && !computed && 2 * elsewhere > self.here.len()
    }
}

impl Maker {
    /// The schedule of a replica, where it has any of the micro-batches.
    fn make(
        &self,
        purpose: Purpose,
        replica: usize,
        micro_batches: usize,
    ) -> Result<Option<CheckedSchedule>, Error> {
        // Those of the replica's leaves.
        let start = |replica: usize| replica * micro_batches / self.replicas;
        let share = start(replica)..start(replica + 1);
        let schedule = match purpose {
            _ if share.is_empty() => return Ok(None),
            Purpose::Infer => self.inference(share.len())?,
            Purpose::Train { .. } => self.training(share, micro_batches)?,
        };
        Ok(Some(schedule))
    }

    /// That of a replica that has this share of all micro-batches of a step.
    fn training(&self, share: Range<usize>, all: usize) -> Result<CheckedSchedule, Error> {
        let micro_batches = share.len();
        let schedule = match &self.source {
            Source::Fixed(schedule) if all == self.shape.micro_batches => schedule.clone(),
            Source::Fixed(schedule) => {
                let own = schedule.schedule();
                let rule = SettingsRule::OtherSchedule {
                    schedule: own.name().to_owned(),
                    devices: own.devices(),
                    stages: own.stages(),
                    micro_batches: self.shape.micro_batches,
                    given: all,
                };
                return Err(SettingsError::new(Setting::Batch, rule).into());
            }
            Source::Kind(ScheduleKind::Auto) => self.computed(micro_batches)?,
            Source::Kind(kind) => kind.generate(Shape {
                micro_batches,
                ..self.shape
            })?,
        };
        self.with_recomputes(schedule, share, all)
    }

    /// The same with recomputes in their places.
    fn with_recomputes(
        &self,
        schedule: CheckedSchedule,
        share: Range<usize>,
        all: usize,
    ) -> Result<CheckedSchedule, Error> {
        if self.recomputing.contains(&true) {
            let wanted = |stage: StageId, MicroId(micro)| {
                let micro = MicroId(share.start + micro);
                self.recomputing[stage.index()] && self.recompute.applies(micro, all)
            };
            let schedule = schedule.schedule().clone().with_recomputes(wanted);
            return Ok(schedule.check().map_err(ScheduleError::from)?);
        }
        Ok(schedule)
    }

    fn computed(&self, micro_batches: usize) -> Result<CheckedSchedule, Error> {
        let (shape, costs, placement) = self.to_compute(micro_batches);
        Ok(auto(shape, &costs, &[], placement)?.schedule)
    }

    /// What a schedule is computed for: equal times, unless a step has been measured.
    fn to_compute(&self, micro_batches: usize) -> (Shape, Costs, Option<Placement>) {
        let shape = Shape {
            micro_batches,
            ..self.shape
        };
        let unit = Micros::new(1.0).unwrap_or_default();
        let equal = || Costs::uniform(shape.stages(), unit, unit, unit);
        let costs = self.measured.clone().unwrap_or_else(equal);
        let placement = [Placement::Loop, Placement::Vee]
            .into_iter()
            .find(|placement| placement.devices(shape) == self.placement);
        (shape, costs, placement)
    }

    /// Forwards only: each device does the micro-batches of its first stage, then
    /// those of the next.
    fn inference(&self, micro_batches: usize) -> Result<CheckedSchedule, Error> {
        let mut lists = vec![Vec::new(); self.shape.devices];
        for (stage, device) in self.placement.iter().enumerate() {
            let forwards = (0..micro_batches).map(|m| Action::new(stage, ActionKind::Forward, m));
            lists[device.index()].extend(forwards);
        }
        let stages = self.shape.stages();
        let schedule = Schedule::new("forward-only", stages, micro_batches, lists);
        Ok(schedule.check().map_err(ScheduleError::from)?)
    }
}

fn check_trains(schedule: &CheckedSchedule) -> Result<(), Error> {
    let name = schedule.schedule().name();
    if !schedule.is_training() {
        let why = format!(
            "the schedule `{name}` has no backward, so nothing can be trained with it: choose \
             another (inference needs no choice, it always runs forwards only)"
        );
        return Err(SettingsError::invalid(Setting::Schedule, why).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpipe_partitioner::Partition;

    use super::*;

    fn programs(devices: usize, micro_batches: usize, here: usize) -> Programs {
        let partition = Partition::from_balance(devices, &vec![1; devices]).unwrap();
        Programs::new(
            Source::Kind(ScheduleKind::OneFOneB),
            (Shape::new(devices, micro_batches), Mesh::new(devices, 1)),
            Wiring::new(&partition, &[]),
            Recompute::Never,
            vec![false; devices],
            ((0..devices).map(|device| device < here).collect(), true),
        )
        .unwrap()
    }

    /// A rank of 64 had the lists of all of them in memory.
    #[test]
    fn a_long_schedule_that_is_mostly_of_devices_elsewhere_is_let_go() {
        let purpose = Purpose::Train {
            input_gradient: false,
        };
        for (devices, micro_batches, here, keeps) in [
            (64, 1024, 1, false),
            (64, 1024, 64, true),
            (64, 16, 1, true),
        ] {
            let program = programs(devices, micro_batches, here).get(purpose, micro_batches);
            let program = program.unwrap();
            let again = program.schedule_for_now();
            let again = again.schedule();
            assert_eq!((again.name(), again.stages()), ("1f1b", devices));
            assert_eq!(again.micro_batches(), micro_batches);
            assert_eq!(program.keeps_schedule(), keeps, "{micro_batches} {here}");
        }
    }
}
