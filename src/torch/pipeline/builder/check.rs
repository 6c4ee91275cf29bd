//! Checks that settings fit each other, without any layer, tensor or thread.

use gpipe_partitioner::tree::{MOST_LEAVES, can_have_leaves};
use gpipe_partitioner::{Bytes, Partition, ScheduleKind, Shape};
use tch::Device;

use super::PipelineBuilder;
use super::devices::Limit;
use crate::error::{Error, Setting, SettingsError, SettingsRule, StageCount};
use crate::pipeline::loss_scale::Scaler;
use crate::pipeline::programs::Source;
use crate::{OuterStep, Precision, Recompute, Sequential, Skip};

impl PipelineBuilder {
    /// Checks that the settings fit each other and the model, as [`PipelineBuilder::build`] does
    /// first. Builds nothing, makes no tensor, and does not look for the devices. Takes the time of
    /// generating the schedule; [`ScheduleKind::Auto`] is not computed, as it exists for all
    /// numbers.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Partition`] and [`Error::Schedule`].
    pub fn check(&self) -> Result<(), Error> {
        let shape = self.shape()?;
        match self.schedule {
            Source::Kind(ScheduleKind::Auto) | Source::Fixed(_) => {}
            // The most micro-batches that a replica has.
            Source::Kind(kind) => drop(kind.generate(Shape {
                micro_batches: shape.micro_batches.div_ceil(self.replicas),
                ..shape
            })?),
        }
        self.check_fit(shape)?;
        check_model(&self.model)?;
        Ok(())
    }

    /// Returns the micro-batches of a mini-batch.
    fn micro_batches_of_step(&self) -> usize {
        match (self.micro_batches, &self.schedule) {
            (Some(own), _) => own,
            (None, Source::Fixed(own)) => own.schedule().micro_batches() * self.replicas,
            (None, Source::Kind(_)) => 1,
        }
    }

    /// Returns the devices of a replica, its chunks, and the micro-batches of all replicas; none
    /// may be zero.
    pub(super) fn shape(&self) -> Result<Shape, Error> {
        for (setting, is_none) in [
            (Setting::Model, self.model.is_empty()),
            (Setting::Devices, self.devices.is_empty()),
            (Setting::Replicas, self.replicas == 0),
            (Setting::MicroBatches, self.micro_batches_of_step() == 0),
            (Setting::Chunks, self.chunks == Some(0)),
            (Setting::ThreadsPerStage, self.threads_per_stage == Some(0)),
            (
                Setting::Patience,
                self.patience.is_some_and(|patience| patience.is_zero()),
            ),
        ] {
            if is_none {
                return Err(SettingsError::new(setting, SettingsRule::None).into());
            }
        }
        let made = self.stage_count()?;
        let micro_batches = self.micro_batches_of_step();
        Ok(Shape::new(made.devices, micro_batches).with_chunks(made.chunks))
    }

    /// Returns the devices of all processes, which replicas share evenly.
    fn devices_of_all(&self) -> Result<usize, SettingsError> {
        // Until the others are known, assume as many in each process as in this one.
        let processes = self.world.as_ref().map_or(1, |world| world.size());
        let devices = self.device_count.unwrap_or(self.devices.len() * processes);
        let (replicas, leaves) = (self.replicas, self.tree);
        // An invalid number of leaves is reported elsewhere.
        let few = can_have_leaves(leaves) && leaves < replicas;
        if replicas.is_power_of_two() && devices.is_multiple_of(replicas) && !few {
            return Ok(devices);
        }
        let rule = SettingsRule::Replicas {
            given: replicas,
            devices,
            leaves,
        };
        Err(SettingsError::new(Setting::Replicas, rule))
    }

    fn stage_count(&self) -> Result<StageCount, SettingsError> {
        let all = self.devices_of_all()?;
        let (devices, replicas) = (all / self.replicas, self.replicas);
        let schedule = match &self.schedule {
            Source::Kind(kind) => {
                return Ok(StageCount {
                    devices,
                    chunks: self.chunks.unwrap_or_else(|| kind.default_chunks()),
                    by: self.chunks.is_none().then_some(*kind),
                });
            }
            Source::Fixed(schedule) => schedule.schedule(),
        };
        let (wanted, stages) = (schedule.devices(), schedule.stages());
        let chunks = self.chunks.filter(|chunks| chunks * wanted != stages);
        let uneven = (!stages.is_multiple_of(devices)).then_some(devices);
        let different = [
            (
                Setting::MicroBatches,
                (self.micro_batches).filter(|own| *own != schedule.micro_batches() * replicas),
            ),
            (Setting::Chunks, chunks),
            (Setting::Devices, Some(devices).filter(|own| *own != wanted)),
            (Setting::Schedule, uneven),
        ];
        for (setting, given) in different {
            if let Some(given) = given {
                let rule = SettingsRule::OtherSchedule {
                    schedule: schedule.name().to_owned(),
                    devices: wanted,
                    stages,
                    micro_batches: schedule.micro_batches() * replicas,
                    given,
                };
                return Err(SettingsError::new(setting, rule));
            }
        }
        Ok(StageCount {
            devices,
            chunks: stages / devices,
            by: None,
        })
    }

    /// Checks that settings per stage, layer and device match their numbers.
    pub(super) fn check_fit(&self, shape: Shape) -> Result<(), Error> {
        let stages = shape.stages();
        match &self.balance {
            Some(balance) if balance.len() != stages => {
                let (given, made) = (balance.len(), self.stage_count()?);
                let rule = SettingsRule::Stages { given, made };
                return Err(SettingsError::new(Setting::Balance, rule).into());
            }
            Some(balance) => drop(Partition::from_balance(self.model.len(), balance)?),
            None => drop(Partition::uniform(self.model.len(), stages)?),
        }
        self.check_recompute(stages)?;
        if let Some(&stage) = self.offload.iter().find(|stage| **stage >= stages) {
            let rule = SettingsRule::NoStage { stage, stages };
            return Err(SettingsError::new(Setting::Offload, rule).into());
        }
        self.check_local_steps()?;
        self.memory_of_devices()?;
        if !can_have_leaves(self.tree) {
            let (given, most) = (self.tree, MOST_LEAVES);
            let rule = SettingsRule::Leaves { given, most };
            return Err(SettingsError::new(Setting::Tree, rule).into());
        }
        if self.precision == Precision::Fp16 {
            Scaler::new(self.loss_scale)?;
        }
        Ok(())
    }

    /// Checks that local steps fit the other settings.
    fn check_local_steps(&self) -> Result<(), SettingsError> {
        let Some(steps) = self.local_steps else {
            return Ok(());
        };
        let wrong = |setting, why: String| Err(SettingsError::invalid(setting, why));
        if steps == 0 {
            let why = "0 local steps: a round has at least one".to_owned();
            return wrong(Setting::LocalSteps, why);
        }
        if self.replicas < 2 {
            let why = "local steps are those of replicas, of which there is 1: ask for several, or \
                       for no local steps";
            return wrong(Setting::LocalSteps, why.to_owned());
        }
        if self.shard_optimizer {
            let why = "local steps leave each replica an optimizer state of its own, which cannot \
                       be shared (`shard_optimizer`): choose one of the two";
            return wrong(Setting::LocalSteps, why.to_owned());
        }
        let OuterStep {
            learning_rate,
            momentum,
        } = self.outer;
        if !(learning_rate > 0.0 && learning_rate.is_finite()) {
            let why = format!("an outer learning rate of {learning_rate}: it must be above 0");
            return wrong(Setting::Outer, why);
        }
        if !(0.0..1.0).contains(&momentum) {
            let why = format!("an outer momentum of {momentum}: it must be at least 0 and below 1");
            return wrong(Setting::Outer, why);
        }
        Ok(())
    }

    fn check_recompute(&self, stages: usize) -> Result<(), SettingsError> {
        let (each, given, wanted) = match &self.recompute {
            Recompute::Stages(flags) => ("stage", flags.len(), stages),
            Recompute::Layers(flags) => ("layer", flags.len(), self.model.len()),
            _ => return Ok(()),
        };
        if given == wanted {
            return Ok(());
        }
        let rule = SettingsRule::Count {
            given,
            wanted,
            each,
        };
        Err(SettingsError::new(Setting::Recompute, rule))
    }

    /// Returns the memory limit of each CUDA device that has one.
    pub fn memory_of_devices(&self) -> Result<Vec<(Device, Bytes)>, SettingsError> {
        match &self.memory_limit {
            None => Ok(Vec::new()),
            Some(Limit::OfEach(limit)) => limits_of_each(&self.devices, *limit),
            Some(Limit::OfEntries(limits)) => limits_of_entries(&self.devices, limits),
        }
    }
}

/// Returns a model's skips; refuses a model without layers or with duplicate names.
pub(crate) fn check_model(model: &Sequential) -> Result<Vec<Skip>, SettingsError> {
    if model.is_empty() {
        return Err(SettingsError::new(Setting::Model, SettingsRule::None));
    }
    if let Some(name) = model.duplicate_name() {
        let (what, name) = ("layer", name.to_owned());
        let rule = SettingsRule::Duplicate { what, name };
        return Err(SettingsError::new(Setting::Model, rule));
    }
    let skips = model.skips();
    skips.map_err(|why| SettingsError::invalid(Setting::Model, why))
}

/// Gives each CUDA device the same limit.
fn limits_of_each(devices: &[Device], limit: Bytes) -> Result<Vec<(Device, Bytes)>, SettingsError> {
    let cards = devices.iter().filter(|device| device.is_cuda());
    let limits: Vec<_> = cards.map(|card| (*card, limit)).collect();
    if limits.is_empty() {
        return Err(of_memory(SettingsRule::NoCudaDevice));
    }
    Ok(limits)
}

/// Adds up the limits of all entries on each CUDA device.
fn limits_of_entries(
    devices: &[Device],
    limits: &[Option<Bytes>],
) -> Result<Vec<(Device, Bytes)>, SettingsError> {
    let (given, wanted) = (limits.len(), devices.len());
    if given != wanted {
        return Err(of_memory(SettingsRule::Count {
            given,
            wanted,
            each: "device",
        }));
    }
    let has_card = devices.iter().any(|device| device.is_cuda());
    if !has_card && limits.iter().any(Option::is_some) {
        return Err(of_memory(SettingsRule::NoCudaDevice));
    }
    let mut sums: Vec<(Device, Option<Bytes>)> = Vec::new();
    for (place, (device, limit)) in devices.iter().zip(limits).enumerate() {
        if let (Device::Cpu, &Some(limit)) = (device, limit) {
            return Err(of_memory(SettingsRule::LimitOfCpu { place, limit }));
        }
        match sums.iter_mut().find(|(own, _)| own == device) {
            None => sums.push((*device, *limit)),
            Some((_, sum)) if sum.is_some() != limit.is_some() => {
                let device = *device;
                return Err(of_memory(SettingsRule::LimitedAndNot { device }));
            }
            Some((_, sum)) => {
                let add = |(sum, limit): (Bytes, Bytes)| Bytes(sum.0.saturating_add(limit.0));
                *sum = sum.zip(*limit).map(add);
            }
        }
    }
    let limited = |(device, limit): (Device, Option<Bytes>)| Some((device, limit?));
    Ok(sums.into_iter().filter_map(limited).collect())
}

fn of_memory(rule: SettingsRule) -> SettingsError {
    SettingsError::new(Setting::MemoryLimits, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_on_one_card_may_hold_what_they_may_hold_together() {
        let (zero, one, cpu) = (Device::Cuda(0), Device::Cuda(1), Device::Cpu);
        let [four, six] = [4, 6].map(|count| Some(Bytes(count)));
        let devices = [zero, one, cpu, zero];
        let limits = limits_of_entries(&devices, &[four, four, None, six]);
        assert_eq!(limits, Ok(vec![(zero, Bytes(10)), (one, Bytes(4))]));
        let limits = limits_of_entries(&devices, &[four, None, None, six]);
        assert_eq!(limits, Ok(vec![(zero, Bytes(10))]));
        for (limits, wanted) in [
            (
                &[four][..],
                SettingsRule::Count {
                    given: 1,
                    wanted: 4,
                    each: "device",
                },
            ),
            (
                &[four, None, six, six],
                SettingsRule::LimitOfCpu {
                    place: 2,
                    limit: Bytes(6),
                },
            ),
            (
                &[four, None, None, None],
                SettingsRule::LimitedAndNot { device: zero },
            ),
        ] {
            let error = limits_of_entries(&devices, limits).unwrap_err();
            assert_eq!(error, of_memory(wanted));
        }
        let limits = limits_of_entries(&[cpu, cpu], &[None, four]);
        assert_eq!(limits, Err(of_memory(SettingsRule::NoCudaDevice)));
    }
}
