//! From settings to an engine with its stages.

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gpipe_partitioner::{Partition, StageId};
use tch::Device;

use super::PipelineBuilder;
use super::devices::route;
use crate::engine::{Engine, StageBuilder};
use crate::error::{Error, Setting, SettingsError, SettingsRule};
use crate::pipeline::programs::Programs;
use crate::pipeline::stages::Stages;
use crate::torch::streams::{DeviceStreams, MemorySpace, Route};
use crate::torch::{self, DeviceMeter, Graphing, Skip, StageSpec, TorchError, TorchStage};

impl PipelineBuilder {
    pub(super) fn engine(
        &self,
        partition: &Partition,
        programs: &Programs,
        skips: &Arc<[Skip]>,
    ) -> Result<Stages, Error> {
        let threads = self
            .threads_per_stage
            .unwrap_or_else(|| torch::share_of_cores(&self.devices));
        let meters = self.meters()?;
        let accelerators = self.accelerators()?;
        if let Some(accelerators) = &accelerators {
            self.check_graphs(accelerators)?;
        }
        let places: Vec<MemorySpace> = programs
            .placement()
            .iter()
            .map(|device| match &accelerators {
                Some(all) => all.places[device.index()],
                None => MemorySpace::Host,
            })
            .collect();
        let builders = self.devices.iter().enumerate().map(|(number, &device)| {
            let own = |stage: &usize| programs.placement()[*stage].index() == number;
            let specs: Vec<StageSpec> = (0..partition.stages())
                .filter(own)
                .map(|stage| StageSpec {
                    meter: meters[number].clone(),
                    route: Route {
                        offload: (self.offload.contains(&stage)).then_some(self.offload_at_least.0),
                        ..route(stage, partition, &places, skips)
                    },
                    graphing: self.graphing(stage, partition, places[stage]),
                    ..self.spec(stage, partition, device, skips)
                })
                .collect();
            let opened = accelerators.as_ref().map(|all| {
                let (place, task_log) = (all.places[number], Arc::clone(&all.task_logs[number]));
                (all.backend.clone(), place, task_log)
            });
            let offloaded = meters[number].as_ref().and_then(DeviceMeter::offloaded);
            let build = move || {
                torch::prepare_thread(device, threads)?;
                let streams = match &opened {
                    Some((backend, place, task_log)) => {
                        DeviceStreams::open(backend, *place, task_log)?
                    }
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
            Box::new(build) as StageBuilder<TorchStage>
        });
        let builders = builders.collect();
        let mut engine = match torch::turns(&self.devices, threads) {
            Some(sharing) => Engine::taking_turns(builders, &sharing)?,
            None => Engine::new(builders)?,
        };
        engine.set_patience(self.patience);
        Stages::new(engine, accelerators)
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
        }
    }

    /// For each device, where its stages count their activations.
    fn meters(&self) -> Result<Vec<Option<DeviceMeter>>, Error> {
        let meters = |&device| {
            self.measure_memory
                .then(|| DeviceMeter::new(device))
                .transpose()
        };
        Ok(self
            .devices
            .iter()
            .map(meters)
            .collect::<Result<_, TorchError>>()?)
    }
}

/// Refuses two parameters or buffers of one name, which `a` with a part `b.weight`
/// and `a.b` with a `weight` make.
pub(super) fn check_names(engine: &mut Stages) -> Result<(), Error> {
    let names = engine.on_each(|_, stage| {
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
