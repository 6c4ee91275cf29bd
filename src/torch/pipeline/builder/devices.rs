//! Settings of devices: streams, memory, determinism.

use gpipe_partitioner::{ActionKind, Bytes, DeviceId, LayerId, Partition, StageId};
use tch::Device;

use super::PipelineBuilder;
use crate::error::{Error, Setting, SettingsError};
use crate::pipeline::programs::Source;
use crate::pipeline::ranks::Members;
use crate::pipeline::stages::Accelerators;
use crate::streams::{MemorySpace, Route};
use crate::{Graphing, NonFinite, Skip};

/// Memory limits of CUDA devices.
#[derive(Debug, Clone)]
pub(super) enum Limit {
    /// The same for each device.
    OfEach(Bytes),
    /// One per entry of the list of devices.
    OfEntries(Vec<Option<Bytes>>),
}

impl PipelineBuilder {
    /// Limits the memory of each CUDA device, as if it had no more, for the whole process and from
    /// now on (see [`limit_device`](crate::memory::limit_device)). Exceeding it is an
    /// [`OutOfMemory`](crate::OutOfMemory) error.
    #[must_use]
    pub fn memory_limit(mut self, limit: Bytes) -> Self {
        self.memory_limit = Some(Limit::OfEach(limit));
        self
    }

    /// Sets a limit for each entry of the list of devices, as if each were a card of its own: the
    /// limits of several entries on one CUDA device add up. `None`: no limit, the only choice for a
    /// CPU.
    #[must_use]
    pub fn memory_limits(mut self, limits: &[Option<Bytes>]) -> Self {
        self.memory_limit = Some(Limit::OfEntries(limits.to_vec()));
        self
    }

    /// Sets the stages, by number, that keep in host memory, between forward and backward, the
    /// tensors that autograd saves, and the inputs of layers that recompute. On a GPU the copies
    /// run on side streams, through page-locked memory; on the CPU this only makes a copy. No
    /// number changes. Parameters and buffers stay on the device, and so does a micro-batch whose
    /// backward is the device's next action; data is prefetched while the device runs the action
    /// before, one micro-batch at most.
    #[must_use]
    pub fn offload(mut self, stages: &[usize]) -> Self {
        self.offload = stages.to_vec();
        self
    }

    /// Sets the size below which memory is not offloaded; 256 KiB by default, about the amount that
    /// a link moves in the latency of a copy.
    #[must_use]
    pub fn offload_at_least(mut self, bytes: Bytes) -> Self {
        self.offload_at_least = bytes;
        self
    }

    /// Sets whether matrix products and convolutions on CUDA devices may round their inputs to TF32
    /// (10 mantissa bits), which is several times as fast; off in PyTorch's defaults for matrix
    /// products. For the whole process.
    #[must_use]
    pub fn tf32(mut self, allow: bool) -> Self {
        self.numbers.get_or_insert((false, false)).0 = allow;
        self
    }

    /// Sets whether only operators with reproducible results are used; some of a CUDA device's
    /// fastest ones vary from run to run. An operator without such a form is an error. For the
    /// whole process. Extends the guarantee of equal bits over cuts and schedules to CUDA devices;
    /// on the CPU it holds anyway.
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.numbers.get_or_insert((false, false)).1 = deterministic;
        self
    }

    /// Sets whether stages on CUDA devices capture their forward and backward passes in CUDA
    /// graphs, which cost the host almost nothing; off by default. Useful for models of many small
    /// kernels, where the host is slower than the device
    /// ([`StepNumbers::is_host_bound`](crate::StepNumbers::is_host_bound)). No number changes: the
    /// same kernels run over the same values.
    ///
    /// The first steps run without graphs. A stage whose passes cannot be replayed (it is on the
    /// CPU, recomputes, draws random numbers, makes the host wait, or has a [`Layer`](crate::Layer)
    /// that is not [`graph_safe`](crate::Layer::graph_safe)) continues without graphs, and gives
    /// the reason ([`Pipeline::cuda_graphs`](crate::Pipeline::cuda_graphs)); so do micro-batches of
    /// a rarer shape. Every micro-batch in flight has memory of its own for its activations and for
    /// one set of parameter gradients. [`PipelineBuilder::deterministic`] and
    /// [`PipelineBuilder::tf32`] must not change afterwards, for all pipelines of the process.
    #[must_use]
    pub fn cuda_graphs(mut self, capture: bool) -> Self {
        self.cuda_graphs = capture;
        self
    }

    /// Makes a step fail if an operator makes the host wait for a CUDA device (a layer that reads a
    /// number, for example), with an error that names the layer: such waits leave the device idle.
    /// For debugging; the very first step may need some waits.
    #[must_use]
    pub fn forbid_host_waits(mut self, forbid: bool) -> Self {
        self.forbid_host_waits = forbid;
        self
    }

    /// Checks that graphs can be captured on the accelerators, if they are asked for.
    pub(super) fn check_graphs(&self) -> Result<(), Error> {
        if !self.cuda_graphs {
            return Ok(());
        }
        crate::has_cuda_graphs()
            .map_err(|why| SettingsError::unavailable(Setting::CudaGraphs, &why).into())
    }

    /// Returns whether a stage is to capture graphs.
    pub(super) fn graphing(
        &self,
        stage: usize,
        partition: &Partition,
        place: Option<MemorySpace>,
    ) -> Graphing {
        let refused = |why: &str| Graphing::Refused(why.to_owned());
        let layers = partition.range(StageId(stage));
        if !self.cuda_graphs {
            Graphing::Off
        } else if place == Some(MemorySpace::Host) {
            refused("it computes on the CPU, which has no graphs")
        } else if self.recompute.touches(stage, &layers) || self.recomputes_singly(stage) {
            refused("it recomputes activations")
        } else if self.offloads(stage) {
            refused("what it keeps goes to the host's memory")
        } else if self.non_finite == NonFinite::Fail {
            refused(
                "what its layers make is looked at as it is made, for numbers that are not finite",
            )
        } else if self.replicas > 1 {
            refused("its gradients are exchanged with its copies in other replicas")
        } else if self.measure_memory {
            refused("memory is measured, action by action")
        } else {
            Graphing::On
        }
    }

    /// Returns whether the stage offloads activations, of all micro-batches or of those that the
    /// schedule names.
    pub(super) fn offloads(&self, stage: usize) -> bool {
        let Source::Fixed(schedule) = &self.schedule else {
            return self.offload.contains(&stage);
        };
        let mut single = schedule.schedule().offloads().iter();
        self.offload.contains(&stage) || single.any(|(own, _)| own.index() == stage)
    }

    /// Returns whether the schedule recomputes single micro-batches of the stage.
    fn recomputes_singly(&self, stage: usize) -> bool {
        let Source::Fixed(schedule) = &self.schedule else {
            return false;
        };
        let mut actions = schedule.schedule().iter().flat_map(|(_, list)| list);
        actions.any(|action| action.kind == ActionKind::Recompute && action.stage.index() == stage)
    }

    pub(super) fn limit_memory(&self) -> Result<(), Error> {
        for (device, limit) in self.memory_of_devices()? {
            crate::memory::limit_device(device, limit)
                .map_err(|why| SettingsError::unavailable(Setting::MemoryLimits, &why))?;
        }
        Ok(())
    }

    /// Returns the devices with streams, if there are any.
    pub(super) fn accelerators(&self, members: &Members) -> Option<Accelerators> {
        // Data for another process goes through host memory.
        let place = |(number, device): (usize, &Device)| {
            if members.is_here(DeviceId(number)) {
                MemorySpace::of(*device)
            } else {
                MemorySpace::Host
            }
        };
        let places: Vec<MemorySpace> = members.devices.iter().enumerate().map(place).collect();
        if places.iter().all(|place| *place == MemorySpace::Host) {
            return None;
        }
        crate::tell_ends();
        let mut all = Accelerators::new(places);
        all.forbid_host_waits = self.forbid_host_waits;
        all.patience = self.patience;
        Some(all)
    }
}

/// Returns the route of a stage's outputs, given the memory space of each stage; data for a stage
/// without one stays in place.
pub(super) fn route(
    stage: usize,
    partition: &Partition,
    places: &[Option<MemorySpace>],
    skips: &[Skip],
) -> Route {
    let of = |layer: usize| partition.stage_of(LayerId(layer)).index();
    let place = |stage: usize| places.get(stage).copied().flatten();
    let leaving = skips
        .iter()
        .filter(|s| of(s.from) == stage && of(s.to) != stage);
    let coming = skips
        .iter()
        .filter(|s| of(s.to) == stage && of(s.from) != stage);
    let next = std::iter::once(place(stage + 1));
    let before = std::iter::once(stage.checked_sub(1).and_then(place));
    Route {
        forward: next.chain(leaving.map(|s| place(of(s.to)))).collect(),
        backward: before.chain(coming.map(|s| place(of(s.from)))).collect(),
        offload: None,
    }
}
