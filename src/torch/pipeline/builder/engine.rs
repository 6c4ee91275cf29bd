//! Building the engine and its stages from the settings.

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gpipe_partitioner::{DeviceId, Partition, StageId};
use tch::Device;

use super::PipelineBuilder;
use super::devices::route;
use crate::error::{Error, Setting, SettingsError, SettingsRule};
use crate::pipeline::local_steps::LocalSteps;
use crate::pipeline::programs::Programs;
use crate::pipeline::ranks::{Members, Ranks};
use crate::pipeline::stages::{Accelerators, Stages};
use crate::streams::{DeviceStreams, MemorySpace, Route};
use crate::{Copies, DeviceMeter, Graphing, Skip, StageSpec, Sums, TorchError, TorchStage};
use gpipe_engine::{Engine, Mesh, Sharing, StageBuilder};

/// Parts of an engine in this process.
pub(super) struct Parts {
    builders: Vec<(DeviceId, StageBuilder<TorchStage>)>,
    sharing: Option<Sharing>,
    accelerators: Option<Accelerators>,
}

impl PipelineBuilder {
    /// Builds the local stages, on their threads.
    ///
    /// # Errors
    /// A stage cannot be built, here or in another process.
    pub(super) fn engine(
        &self,
        parts: Parts,
        mesh: Mesh,
        ranks: Option<Ranks>,
    ) -> Result<Stages, Error> {
        let Parts {
            builders,
            sharing,
            accelerators,
        } = parts;
        let sharing = sharing.as_ref();
        let here = builders.iter().map(|(device, _)| *device).collect();
        let mut engine = if let Some(ranks) = &ranks {
            Engine::part(mesh, builders, sharing, ranks.carrier())
                .or_else(|error| ranks.renew().and(Err(error.into())))?
        } else {
            let builders = builders.into_iter().map(|(_, builder)| builder).collect();
            Engine::replicated(mesh.replicas(), builders, sharing)?
        };
        engine.set_patience(self.patience);
        Stages::new(
            engine,
            accelerators,
            (ranks, here),
            (self.sums(), self.local()),
        )
    }

    /// Returns the builders of the local stages and the parts that they need.
    pub(super) fn parts(
        &self,
        members: &Members,
        partition: &Partition,
        programs: &Programs,
        skips: &Arc<[Skip]>,
    ) -> Result<Parts, Error> {
        let here: Vec<(DeviceId, Device)> = members.here().collect();
        let threads = self.threads(members);
        let accelerators = self.accelerators(members);
        if accelerators.is_some() {
            self.check_graphs()?;
        }
        let mesh = programs.mesh();
        // Memory of another process is reached through its carrier. By stage, then by replica.
        let place = |device: usize| {
            let place = accelerators.as_ref().map(|all| all.places[device]);
            let here = members.is_here(DeviceId(device));
            here.then(|| place.unwrap_or(MemorySpace::Host))
        };
        let copies = programs.copies(place);
        let builder = |&(number, device): &(DeviceId, Device)| {
            let meter = self.meter(device)?;
            let replica = mesh.replica_of(number);
            let places: Vec<Option<MemorySpace>> = copies.iter().map(|own| own[replica]).collect();
            let own = |stage: &usize| programs.placement()[*stage] == mesh.of_pipeline(number);
            let specs: Vec<StageSpec> = (0..partition.stages())
                .filter(own)
                .map(|stage| StageSpec {
                    meter: meter.clone(),
                    route: Route {
                        offload: (self.offloads(stage)).then_some(self.offload_at_least.0),
                        ..route(stage, partition, &places, skips)
                    },
                    graphing: self.graphing(stage, partition, places[stage]),
                    copies: Copies {
                        replica,
                        sums: self.sums(),
                        places: copies[stage].clone(),
                    },
                    ..self.spec(stage, partition, device, skips)
                })
                .collect();
            let opened = accelerators.as_ref().map(|all| {
                let number = number.index();
                let (place, task_log) = (all.places[number], Arc::clone(&all.task_logs[number]));
                (place, task_log)
            });
            let offloaded = meter.as_ref().and_then(DeviceMeter::offloaded);
            let kernels = self.kernels;
            let build = move || {
                crate::prepare_thread(device, threads)?;
                kernels.set_here(device)?;
                let streams = match &opened {
                    Some((place, task_log)) => DeviceStreams::open(*place, task_log)?,
                    None => DeviceStreams::host(),
                };
                let streams = Rc::new(streams.charging_host(offloaded));
                let _shared = streams.submit_scope();
                let stages = specs.iter();
                let stages = stages
                    .map(|spec| Ok((StageId(spec.number), TorchStage::build(spec, &streams)?)))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                streams.end_task()?;
                Ok(stages)
            };
            Ok((number, Box::new(build) as StageBuilder<TorchStage>))
        };
        Ok(Parts {
            builders: here.iter().map(builder).collect::<Result<_, Error>>()?,
            sharing: crate::turns(&here, &members.same_cores, threads),
            accelerators,
        })
    }

    /// Returns which replicas get the gradient sums.
    pub(super) fn sums(&self) -> Sums {
        if self.local_steps.is_some() {
            Sums::Alone
        } else if self.shard_optimizer && self.replicas > 1 {
            Sums::AtOwners
        } else {
            Sums::InAll
        }
    }

    fn local(&self) -> Option<LocalSteps> {
        Some(LocalSteps::new(self.local_steps?, self.outer))
    }

    fn spec(
        &self,
        number: usize,
        partition: &Partition,
        device: Device,
        skips: &Arc<[Skip]>,
    ) -> StageSpec {
        let range: Range<usize> = partition.range(StageId(number));
        StageSpec {
            number,
            last: number + 1 == partition.stages(),
            device,
            seed: self.seed,
            layers: self.model.builders()[range.clone()].to_vec(),
            range,
            skips: Arc::clone(skips),
            recompute: self.recompute.clone(),
            precision: self.precision,
            meter: None,
            route: Route::default(),
            graphing: Graphing::Off,
            tree: self.tree,
            copies: Copies::alone(),
        }
    }

    /// Returns the meter that a device's stages count their activations with.
    fn meter(&self, device: Device) -> Result<Option<DeviceMeter>, TorchError> {
        let wanted = self.measure_memory.then(|| DeviceMeter::new(device));
        wanted.transpose()
    }
}

/// Refuses duplicate names of parameters or buffers, as arise from a layer `a` with `b.weight` and
/// a layer `a.b` with `weight`.
pub(in crate::pipeline) fn check_names(engine: &mut Stages) -> Result<(), Error> {
    let names = engine.on_all(|_, stage| {
        let mut names: Vec<String> = stage
            .committed()?
            .parameters()
            .iter()
            .map(|(n, _)| n.clone())
            .collect();
        names.extend(stage.buffers()?.iter().map(|(name, _)| name.clone()));
        Ok(names)
    })?;
    let mut seen = HashSet::new();
    for name in names.into_iter().flatten() {
        if let Some(name) = seen.replace(name) {
            let what = "parameter";
            let rule = SettingsRule::Duplicate { what, name };
            return Err(SettingsError::new(Setting::Model, rule).into());
        }
    }
    Ok(())
}
