//! Building a pipeline from its settings, in one process or in several that agree on it.

use std::fmt;
use std::sync::Arc;

use gpipe_partitioner::{DeviceId, Partition, StageId};
use tch::Device;

use super::PipelineBuilder;
use super::check::check_model;
use super::engine::Parts;
use crate::error::{Error, Setting, SettingsError, SettingsRule};
use crate::pipeline::Pipeline;
use crate::pipeline::loss_scale::Scaler;
use crate::pipeline::programs::Programs;
use crate::pipeline::ranks::{Members, Ranks};
use crate::pipeline::ties::Ties;
use crate::pipeline::wiring::Wiring;
use crate::{Precision, Skip, Sums};
use gpipe_engine::Mesh;

/// Parts of a pipeline in this process.
struct Prepared {
    /// Device of each stage.
    devices: Vec<Device>,
    parts: Parts,
    partition: Partition,
    programs: Programs,
    scaler: Option<Scaler>,
}

impl PipelineBuilder {
    /// Cuts the model and builds each stage's layers on its device.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Partition`] and [`Error::Schedule`] if the settings conflict
    /// with each other, the model or the machine, [`Error::Build`] if a layer cannot be built.
    pub fn build(mut self) -> Result<Pipeline, Error> {
        let members = self.meet()?;
        self.device_count = Some(members.devices.len());
        let prepared = self.prepare(&members);
        let ranks = self.connect(&members, prepared.as_ref().ok())?;
        let prepared = match &ranks {
            Some(ranks) => ranks.agree_on_call("the building of a pipeline", prepared)?,
            None => prepared?,
        };
        let mesh = prepared.programs.mesh();
        let engine = self.engine(prepared.parts, mesh, ranks)?;
        let mut pipe = Pipeline {
            devices: prepared.devices,
            engine,
            partition: prepared.partition,
            programs: prepared.programs,
            ties: Ties::default(),
            precision: self.precision,
            scaler: prepared.scaler,
            non_finite: self.non_finite,
            measures_memory: self.measure_memory,
            threads: self.threads(&members),
            seed: self.seed,
            steps: 0,
        };
        let joined = pipe.join(&self.model);
        pipe.engine.conclude(joined)?;
        pipe.scale_by_device()?;
        Ok(pipe)
    }

    pub(super) fn threads(&self, members: &Members) -> usize {
        self.threads_per_stage
            .unwrap_or_else(|| crate::share_of_cores(&members.same_cores))
    }

    /// Finds out which process has which devices.
    fn meet(&self) -> Result<Members, Error> {
        let Some(world) = &self.world else {
            return Ok(Members::alone(&self.devices));
        };
        let own = if self.devices.is_empty() {
            Err(SettingsError::new(Setting::Devices, SettingsRule::None).into())
        } else {
            Ok(())
        };
        Members::meet(world, &self.devices, self.in_common(), own)
    }

    /// Returns the settings that must be equal in all processes, by name.
    fn in_common(&self) -> Vec<(String, String)> {
        let layers: Vec<&str> = self.model.names().collect();
        let all: [(&str, &dyn fmt::Debug); 21] = [
            ("the model's layers", &layers),
            ("`micro_batches`", &self.micro_batches),
            ("`replicas`", &self.replicas),
            ("`shard_optimizer`", &self.shard_optimizer),
            ("`local_steps`", &self.local_steps),
            ("`outer`", &self.outer),
            ("`tree`", &self.tree),
            ("`chunks`", &self.chunks),
            ("`balance`", &self.balance),
            ("`schedule`", &self.schedule),
            ("`recompute`", &self.recompute),
            ("`precision`", &self.precision),
            ("`kernels`", &self.kernels),
            ("`loss_scale`", &self.loss_scale),
            ("`on_non_finite`", &self.non_finite),
            ("`measure_memory`", &self.measure_memory),
            ("`seed`", &self.seed),
            ("`threads_per_stage`", &self.threads_per_stage),
            ("the numbers of CUDA devices", &self.numbers),
            ("`offload`", &self.offload),
            ("`cuda_graphs`", &self.cuda_graphs),
        ];
        let text = |(name, value): (&str, &dyn fmt::Debug)| (name.to_owned(), format!("{value:?}"));
        all.into_iter().map(text).collect()
    }

    /// Makes all parts that need no other process.
    fn prepare(&self, members: &Members) -> Result<Prepared, Error> {
        let shape = self.shape()?;
        self.check_fit(shape)?;
        let skips: Arc<[Skip]> = check_model(&self.model)?.into();
        let scaled = self.precision == Precision::Fp16;
        let scaler = scaled.then(|| Scaler::new(self.loss_scale)).transpose()?;
        let partition = self.partition(shape.stages())?;
        let here: Vec<Device> = members.here().map(|(_, device)| device).collect();
        crate::prepare(&here).map_err(|why| SettingsError::unavailable(Setting::Devices, &why))?;
        crate::keep_memory(&here);
        self.limit_memory()?;
        if let Some((tf32, deterministic)) = self.numbers {
            crate::set_numbers(tf32, deterministic)?;
        }
        let recomputing = (0..shape.stages())
            .map(|stage| {
                self.recompute
                    .touches(stage, &partition.range(StageId(stage)))
            })
            .collect();
        let mesh = Mesh::new(shape.devices, self.replicas);
        let is_here = (0..mesh.devices()).map(|device| members.is_here(DeviceId(device)));
        let programs = Programs::new(
            self.schedule.clone(),
            (shape, mesh),
            Wiring::new(&partition, &skips),
            self.recompute.clone(),
            recomputing,
            (is_here.collect(), self.sums() != Sums::Alone),
        )?;
        let devices = programs.placement().iter();
        Ok(Prepared {
            devices: devices
                .map(|device| members.devices[mesh.device(*device, 0).index()])
                .collect(),
            parts: self.parts(members, &partition, &programs, &skips)?,
            partition,
            programs,
            scaler,
        })
    }

    /// Connects to the other processes, if there are any.
    fn connect(
        &self,
        members: &Members,
        prepared: Option<&Prepared>,
    ) -> Result<Option<Ranks>, Error> {
        let Some(world) = &self.world else {
            return Ok(None);
        };
        let of_copies = prepared.map(|own| own.programs.copies(|device| members.rank_of[device]));
        let of_copies = of_copies.unwrap_or_default();
        let devices = (members.rank_of.clone(), &*members.gpus());
        Ranks::connect(world, devices, of_copies).map(Some)
    }

    /// Assigns layers to stages; the settings have been checked.
    fn partition(&self, stages: usize) -> Result<Partition, Error> {
        let layers = self.model.len();
        match &self.balance {
            Some(balance) => Ok(Partition::from_balance(layers, balance)?),
            None if stages == 1 || stages >= layers => Ok(Partition::uniform(layers, stages)?),
            None => {
                let bytes = self.model.parameter_bytes().map_err(Error::Build)?;
                Ok(Partition::by_weight(&bytes, stages)?)
            }
        }
    }
}
