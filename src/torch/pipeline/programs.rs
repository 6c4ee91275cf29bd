//! Schedules compiled for the numbers of micro-batches that occur.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, Costs, DeviceId, MicroId, Micros, Placement, Schedule,
    ScheduleError, ScheduleKind, Shape, StageId, auto,
};

use super::wiring::{Purpose, Wiring};
use crate::Recompute;
use crate::error::{Error, Setting, SettingsError, SettingsRule};
use gpipe_engine::{Mesh, Program};

/// Rounds of an exchange between replicas: a reduce-scatter and an all-gather.
const ROUNDS: usize = 2;

/// Most actions of all devices for which a schedule is kept: about two MiB.
const KEPT: usize = 1 << 16;

/// Source of schedules.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Generated for any number of micro-batches.
    Kind(ScheduleKind),
    /// Given by the user for a fixed number of micro-batches.
    Fixed(CheckedSchedule),
}

/// A schedule's programs, made when first needed: a batch with fewer samples
/// than micro-batches runs in fewer.
#[derive(Debug)]
pub(super) struct Programs {
    maker: Arc<Maker>,
    mesh: Mesh,
    wiring: Wiring,
    /// Whether each device, over all replicas, is in this process.
    here: Vec<bool>,
    made: HashMap<(Purpose, usize), Arc<Program>>,
}

/// Generator of the schedules.
#[derive(Debug, Clone)]
struct Maker {
    source: Source,
    /// Devices and chunks of a replica, and micro-batches of all replicas.
    shape: Shape,
    replicas: usize,
    /// Device of each stage within a replica.
    placement: Vec<DeviceId>,
    recompute: Recompute,
    /// Whether each stage has layers that recompute.
    recomputing: Vec<bool>,
    /// Measured costs for a computed schedule, once known.
    measured: Option<Costs>,
    /// Rounds of the exchange between replicas.
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
            // Sized for the last replica, which has the most micro-batches.
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
        };
        let input_gradient = false;
        programs.get(Purpose::Train { input_gradient }, shape.micro_batches)?;
        Ok(programs)
    }

    /// Returns the micro-batches of a full step, of all replicas.
    pub(super) fn micro_batches(&self) -> usize {
        self.maker.shape.micro_batches
    }

    /// Returns the requested name of the schedule; a computed one may be known under another name.
    pub(super) fn name(&self) -> &str {
        match &self.maker.source {
            Source::Kind(kind) => kind.name(),
            Source::Fixed(schedule) => schedule.schedule().name(),
        }
    }

    pub(super) fn recompute(&self) -> &Recompute {
        &self.maker.recompute
    }

    /// Returns the device of each stage within a replica.
    pub(super) fn placement(&self) -> &[DeviceId] {
        &self.maker.placement
    }

    /// Maps the devices of all copies, by stage, then by replica.
    pub(super) fn copies<T>(&self, of_device: impl Fn(usize) -> T) -> Vec<Vec<T>> {
        let of_stage = |device: &DeviceId| {
            let replicas = 0..self.mesh.replicas();
            let copies = replicas.map(|replica| self.mesh.device(*device, replica));
            copies.map(|copy| of_device(copy.index())).collect()
        };
        self.placement().iter().map(of_stage).collect()
    }

    /// Returns the devices of all processes.
    pub(super) fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// Returns the program for this many micro-batches.
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
                // Succeeds again, as it did the first time.
                again.ok().flatten().expect("it was made before")
            });
        }
        let program = Arc::new(program);
        self.made
            .insert((purpose, micro_batches), Arc::clone(&program));
        Ok(program)
    }

    /// Learns the measured costs of a full step. Computed schedules are computed for these costs
    /// from now on; others ignore them.
    ///
    /// # Errors
    /// Those of `costs`.
    pub(super) fn learn(
        &mut self,
        costs: impl FnOnce() -> Result<Costs, Error>,
    ) -> Result<(), Error> {
        if self.learns() {
            Arc::make_mut(&mut self.maker).measured = Some(costs()?);
            self.made
                .retain(|(purpose, _), _| *purpose == Purpose::Infer);
        }
        Ok(())
    }

    /// Returns whether [`Programs::learn`] would use the costs.
    pub(super) fn learns(&self) -> bool {
        let maker = &self.maker;
        matches!(maker.source, Source::Kind(ScheduleKind::Auto)) && maker.measured.is_none()
    }

    /// Returns whether a program drops its schedules: if most of their actions are for devices
    /// elsewhere, they are long, and they can be generated again without a search.
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
    /// Makes the schedule of a replica, if it has any of the micro-batches.
    fn make(
        &self,
        purpose: Purpose,
        replica: usize,
        micro_batches: usize,
    ) -> Result<Option<CheckedSchedule>, Error> {
        // The micro-batches of the replica's leaves.
        let start = |replica: usize| replica * micro_batches / self.replicas;
        let share = start(replica)..start(replica + 1);
        let schedule = match purpose {
            _ if share.is_empty() => return Ok(None),
            Purpose::Infer => self.inference(share.len())?,
            Purpose::Train { .. } => self.training(share, micro_batches)?,
        };
        Ok(Some(schedule))
    }

    /// Makes the training schedule of a replica with this share of a step's micro-batches.
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

    /// Inserts recomputes into a schedule.
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

    /// Returns the input of a computed schedule: equal times, unless a step has been measured.
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

    /// Makes a schedule of forwards only: each device does the micro-batches of its first stage,
    /// then those of the next.
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

    /// One rank of 64 used to hold the lists of all of them in memory.
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
