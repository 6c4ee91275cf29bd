//! Times given by flags: the same for every device.

use gpipe_partitioner::{
    Bytes, Costs, DeviceId, Machine, Micros, Placement, Shape, StageId, StageMemory, StageTimes,
    VOTES, When,
};

use super::memory::Limits;
use super::workload::{Predicted, Refusal, computed, links};

/// Costs of one micro-batch on one device.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) forward: Micros,
    pub(super) input: Micros,
    pub(super) weight: Micros,
    pub(super) activation: Bytes,
    /// Bytes passed to the next device.
    pub(super) output: Bytes,
    /// Bytes of the gradients of its parameters.
    pub(super) gradients: Bytes,
    pub(super) recompute: When,
    pub(super) offload: When,
    pub(super) machine: Machine,
}

impl Given {
    pub(super) fn words(&self) -> String {
        let output = match self.output {
            Bytes::ZERO => String::new(),
            output => format!(", and it hands on {output}"),
        };
        let activation = match self.activation {
            Bytes::ZERO => "what it keeps until its backward is not counted".to_owned(),
            activation => format!("it keeps {activation} until its backward"),
        };
        format!(
            "assumed, not measured: each device takes {} for the forward of a micro-batch, {} for the input \
             half of its backward and {} for the weight half; {activation}{output}; {}",
            self.forward,
            self.input,
            self.weight,
            links(&self.machine)
        )
    }

    /// Returns the costs of `shape`: a chunk has 1/v of everything except the output.
    pub(super) fn costs(
        &self,
        shape: Shape,
        trains: bool,
        device: impl Fn(StageId) -> DeviceId,
    ) -> Costs {
        let share = 1.0 / shape.chunks as f64;
        let times = [self.forward, self.input, self.weight].map(|time| time * share);
        let part = |bytes: Bytes| Bytes(bytes.get() / shape.chunks as u64);
        let memory = self.memory(part(self.activation), trains);
        let mut costs = Costs::uniform(shape.stages(), times[0], times[1], times[2]);
        if self.recompute == When::Always {
            let again = StageTimes {
                backward: times[0] + times[1] + times[2],
                input: times[0] + times[1],
                ..costs.stage(StageId(0))
            };
            costs = Costs::new(vec![again; shape.stages()]);
        }
        if let Some(cores) = self.machine.cores() {
            costs = costs.with_cores(cores);
        }
        if let Some(cards) = self.machine.cards() {
            costs = costs.with_cards(cards);
        }
        if let Some(joins) = self.machine.joins(VOTES) {
            costs = costs.with_joins(joins);
        }
        for stage in (0..shape.stages()).map(StageId) {
            let next = StageId(stage.index() + 1);
            if next.index() < shape.stages() {
                let times = self
                    .machine
                    .transfer(device(stage), device(next), self.output);
                costs = costs.with_edge(stage, times);
            }
            if self.machine.replicas() > 1 {
                let times = self.machine.exchange(device(stage), part(self.gradients));
                costs = costs.with_exchange(stage, times);
            }
            costs = costs.with_memory(stage, memory);
            if let Some(link) = self.machine.host_link() {
                costs = match self.offload {
                    When::Never => costs,
                    When::Auto => {
                        costs.with_single_offload(stage, link.transfer(memory.offloadable, 1))
                    }
                    When::Always => costs.with_offload(stage, link.transfer(memory.offloaded, 1)),
                };
            }
        }
        costs
    }

    /// Returns the memory of a stage that stores `activation` bytes per micro-batch. A recompute
    /// starts from the output of the stage before.
    fn memory(&self, activation: Bytes, trains: bool) -> StageMemory {
        let again = activation - self.output;
        let memory = StageMemory {
            activation,
            sent: self.output,
            ..StageMemory::default()
        };
        if !trains && self.output > Bytes::ZERO {
            // Without a backward, a stage stores only its input and its output.
            let activation = activation.min(self.output + self.output);
            return StageMemory {
                activation,
                ..memory
            };
        }
        let memory = match self.recompute {
            When::Never => memory,
            When::Auto => StageMemory {
                recomputable: again,
                ..memory
            },
            When::Always => StageMemory {
                activation: activation - again,
                recomputed: again,
                ..memory
            },
        };
        match self.offload {
            When::Never => memory,
            When::Auto => StageMemory {
                offloadable: memory.activation,
                ..memory
            },
            When::Always => StageMemory {
                offloaded: memory.activation,
                recomputable: Bytes::ZERO,
                ..memory
            },
        }
    }

    pub(super) fn computed(&self, shape: Shape) -> Result<Predicted, Refusal> {
        let costs = |placement: Placement| {
            self.costs(shape, true, |stage| placement.device(stage, shape.devices))
        };
        let limits = Limits::of(&self.machine);
        if self.machine.nodes().is_none() {
            // All placements cost the same.
            return computed(shape, &costs(Placement::Loop), &limits, None);
        }
        let placements = [Placement::Loop, Placement::Vee].into_iter();
        let found = placements
            .map(|placement| computed(shape, &costs(placement), &limits, Some(placement)));
        // The first among equals.
        found
            .reduce(|best, other| match (&best, &other) {
                (Ok(a), Ok(b)) => {
                    let least = a.lower_bound.min(b.lower_bound);
                    let better = if b.makespan() < a.makespan() {
                        other
                    } else {
                        best
                    };
                    better.map(|better| Predicted {
                        lower_bound: least,
                        ..better
                    })
                }
                (Err(_), Ok(_)) => other,
                _ => best,
            })
            .unwrap_or_else(|| Err(Refusal::default()))
    }
}
