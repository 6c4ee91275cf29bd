//! What a step's activations took, beside what the schedule has them take.

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Costs, DeviceId, StageId, StageMemory, StageTimes, simulate,
};

use super::Pipeline;
use crate::engine::Program;
use crate::error::Error;
use crate::torch::{MemoryLevels, StepMemory};

/// Memory that a training step's activations took, measured and predicted: what
/// micro-batches leave on stages for their backwards, and what actions use for
/// themselves. Parameters, their gradients and optimizer state are in `total` only.
///
/// A value that a stage sends to another on the CPU counts for the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// By stage; of several replicas, those of the first one. `None` for the stages of a CUDA device that has several: its
    /// allocator does not tell them apart.
    pub stages: Vec<Option<MemoryUse>>,
    /// By device. Of a CUDA device, all that the process allocates there in the
    /// step counts.
    pub devices: Vec<MemoryUse>,
    /// By stage, what a micro-batch of this step was seen to keep.
    pub micro_batches: Vec<StageMemory>,
}

/// Memory of activations on one stage or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// The most at any time, with what actions need only while they run.
    pub peak: Bytes,
    /// The most between two actions: what micro-batches in flight held.
    pub held: Bytes,
    /// What `held` is on paper: the schedule's lists with the bytes that this
    /// step's micro-batches were seen to keep.
    pub predicted: Bytes,
    /// What was left when the step was over; 0 unless layers keep something.
    pub left: Bytes,
    /// The most at any time of all together: parameters, their gradients, optimizer
    /// state and activations.
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
    /// What the step that just ended used; `None` where nobody measures.
    pub(super) fn memory(&mut self, program: &Program) -> Result<Option<MemoryReport>, Error> {
        if !self.measures_memory {
            return Ok(None);
        }
        let used = self.engine.on_all(|_, stage| stage.memory())?;
        let used: Option<Vec<StepMemory>> = used.into_iter().collect();
        Ok(used.map(|used| report(&program.schedule_for_now(), &used)))
    }
}

/// `used` has one entry a stage.
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
