//! Activation memory of a step, measured and as predicted by the schedule.

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Costs, DeviceId, StageId, StageMemory, StageTimes, simulate,
};

use super::Pipeline;
use crate::error::Error;
use crate::{MemoryLevels, StepMemory};
use gpipe_engine::Program;

/// Activation memory of a training step, measured and predicted: tensors that micro-batches leave
/// on stages for their backwards, and temporaries of actions. Parameters, their gradients and
/// optimizer state count in `total` only.
///
/// On the CPU, a value sent to another stage counts for the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// By stage; with several replicas, those of the first one. `None` for the stages of a CUDA
    /// device that has several: its allocator does not tell them apart.
    pub stages: Vec<Option<MemoryUse>>,
    /// By device. On a CUDA device all allocations of the process during the step count.
    pub devices: Vec<MemoryUse>,
    /// Bytes that a micro-batch of this step was measured to keep, by stage.
    pub micro_batches: Vec<StageMemory>,
}

/// Memory of activations on one stage or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Highest use at any time, including temporaries of running actions.
    pub peak: Bytes,
    /// Highest use between two actions: by the micro-batches in flight.
    pub held: Bytes,
    /// Predicted `held`: from the schedule's lists and the bytes that this step's micro-batches
    /// were measured to keep.
    pub predicted: Bytes,
    /// Bytes left after the step; 0 unless layers keep something.
    pub left: Bytes,
    /// Highest use at any time by everything: parameters, their gradients, optimizer state and
    /// activations.
    pub total: Bytes,
}

impl MemoryUse {
    fn new(used: MemoryLevels, predicted: Bytes) -> Self {
        Self {
            peak: used.peak,
            held: used.held,
            predicted,
            left: used.left,
            total: used.total,
        }
    }
}

impl Pipeline {
    /// Returns the memory use of the step that just ended; `None` if it is not measured.
    pub(super) fn memory(&mut self, program: &Program) -> Result<Option<MemoryReport>, Error> {
        if !self.measures_memory {
            return Ok(None);
        }
        let used = self.engine.on_all(|_, stage| stage.memory())?;
        let used: Option<Vec<StepMemory>> = used.into_iter().collect();
        Ok(used.map(|used| report(&program.schedule_for_now(), &used)))
    }
}

/// Builds the report; `used` has one entry per stage.
fn report(schedule: &CheckedSchedule, used: &[StepMemory]) -> MemoryReport {
    let costs = Costs::new(vec![StageTimes::default(); used.len()]);
    let costs = used
        .iter()
        .enumerate()
        .fold(costs, |costs, (stage, memory)| {
            costs.with_memory(StageId(stage), memory.micro_batch)
        });
    let micro_batches = used.iter().map(|memory| memory.micro_batch).collect();
    let simulation = simulate(schedule, &costs);
    let of_stages = used.iter().zip(simulation.stage_peak_bytes());
    let of_devices = simulation.peak_bytes().into_iter().enumerate();
    MemoryReport {
        micro_batches,
        stages: of_stages
            .map(|(memory, predicted)| Some(MemoryUse::new(memory.stage?, predicted)))
            .collect(),
        devices: of_devices
            .map(|(device, predicted)| {
                // All stages of a device share its meter.
                let stages = schedule.stages_on(DeviceId(device));
                let memory = stages.first().and_then(|stage| used.get(stage.index()));
                MemoryUse::new(
                    memory.map(|memory| memory.device).unwrap_or_default(),
                    predicted,
                )
            })
            .collect(),
    }
}
