//! Costs of stages with given layers: in total for the simulator, per layer for the searches.

use super::memory::{AWAY, Memory, PLAIN, REDO};
use super::{Problem, When};
use crate::cost::{Costs, StageMemory, StageTimes};
use crate::ids::StageId;
use crate::machine::{VOTES, Way};
use crate::partition::Partition;
use crate::profile::LayerCost;
use crate::units::{Bytes, Micros};

impl Problem {
    /// Returns the costs of a cut for the simulator, given which stages recompute and offload:
    /// times per stage and per edge, memory, hosts and offload.
    ///
    /// A stage that recomputes does so at the start of its backward. For a stage that keeps its
    /// activations a schedule may recompute or offload single micro-batches, unless the rule is
    /// `Never`.
    pub fn stage_costs(
        &self,
        partition: &Partition,
        recompute: &[bool],
        offload: &[bool],
    ) -> Costs {
        let stage = |stage: usize| self.times(partition, recompute[stage], stage);
        let mut costs = Costs::new((0..partition.stages()).map(stage).collect());
        if let Some(cores) = self.machine.cores() {
            costs = costs.with_cores(cores);
        }
        if let Some(cards) = self.machine.cards() {
            costs = costs.with_cards(cards);
        }
        if let Some(joins) = self.machine.joins(VOTES) {
            costs = costs.with_joins(joins);
        }
        let memory = self.memory();
        for (stage, &redo) in recompute.iter().enumerate().take(partition.stages()) {
            let range = partition.range(StageId(stage));
            let device = self.stages[stage].device;
            if stage > 0 {
                let (before, output) = (self.stages[stage - 1].device, range.start - 1);
                let output = self.costs[output].output;
                let times = self.machine.transfer(before, device, output);
                costs = costs.with_edge(StageId(stage - 1), times);
            }
            let away = offload.get(stage) == Some(&true);
            let graphs = self.captures(range.clone(), redo || away);
            let mode = if redo { REDO } else { PLAIN } | if away { AWAY } else { PLAIN };
            let mut bytes = if graphs {
                memory.stage_in_graphs(self.stages[stage].held, range.clone())
            } else {
                memory.stage(mode, range.clone())
            };
            if self.training && self.recompute != When::Never && mode == PLAIN && !graphs {
                bytes.recomputable = memory.recomputable(range.clone());
            }
            if self.offload != When::Never && mode == PLAIN && !graphs {
                bytes.offloadable = bytes.activation;
            }
            if self.training && self.machine.replicas() > 1 {
                let times = self.machine.exchange(device, bytes.gradients);
                costs = costs.with_exchange(StageId(stage), times);
            }
            costs = self.with_host(costs, StageId(stage), (range, redo, graphs));
            costs = self.with_way(costs, StageId(stage), partition, bytes);
        }
        costs
    }

    /// Whether a stage of these layers has CUDA graphs.
    fn captures(&self, range: std::ops::Range<usize>, moves: bool) -> bool {
        let all = || self.costs[range].iter().all(|cost| cost.captures);
        self.replay.is_some() && !moves && all()
    }

    /// Adds the host's times, if known.
    fn with_host(
        &self,
        costs: Costs,
        stage: StageId,
        (range, redo, graphs): (std::ops::Range<usize>, bool, bool),
    ) -> Costs {
        let layers = &self.costs[range];
        if layers.iter().all(|cost| cost.host == StageTimes::default()) {
            return costs;
        }
        let sum = |of: fn(&StageTimes) -> Micros| {
            let replay = self.replay.filter(|_| graphs);
            replay.unwrap_or_else(|| layers.iter().map(|cost| of(&cost.host)).sum())
        };
        let again = sum(|host| host.recompute);
        let extra = if redo { again } else { Micros::ZERO };
        let times = StageTimes {
            forward: sum(|host| host.forward),
            backward: sum(|host| host.backward) + extra,
            input: sum(|host| host.input) + extra,
            weight: sum(|host| host.weight),
            recompute: again,
        };
        costs.with_host(stage, times)
    }

    /// Adds memory, and the transfers of offloads.
    fn with_way(
        &self,
        costs: Costs,
        stage: StageId,
        partition: &Partition,
        memory: StageMemory,
    ) -> Costs {
        let costs = costs.with_memory(stage, memory);
        let pieces = partition.range(stage).len() as u32;
        match self.machine.host_link() {
            Some(link) if memory.offloadable > Bytes::ZERO => {
                costs.with_single_offload(stage, link.transfer(memory.offloadable, pieces))
            }
            Some(link) if memory.offloaded > Bytes::ZERO => {
                // The inputs of a recompute are ready at once.
                let whole = memory.recomputed > Bytes::ZERO;
                let pieces = if whole { 1 } else { pieces };
                costs.with_offload(stage, link.transfer(memory.offloaded, pieces))
            }
            _ => costs,
        }
    }

    fn times(&self, partition: &Partition, recompute: bool, stage: usize) -> StageTimes {
        let layers = &self.costs[partition.range(StageId(stage))];
        let device = self.stages[stage].device;
        let speed = self.machine.devices()[device.0].speed;
        let sum = |of: fn(&LayerCost) -> Micros| {
            let total: f64 = layers.iter().map(|cost| of(cost).get()).sum();
            Micros::saturating(total / speed)
        };
        let again = sum(|cost| cost.recompute);
        let extra = if recompute { again } else { Micros::ZERO };
        StageTimes {
            forward: sum(|cost| cost.forward),
            backward: sum(|cost| cost.backward) + extra,
            input: sum(|cost| cost.input) + extra,
            weight: sum(|cost| cost.weight),
            recompute: again,
        }
    }

    /// Returns the permitted combinations of recompute and offload.
    pub(crate) fn ways(&self) -> Vec<(bool, bool)> {
        let modes = self.modes().into_iter();
        modes
            .map(|mode| (mode & REDO != 0, mode & AWAY != 0))
            .collect()
    }

    #[cfg(test)]
    pub(super) fn with_graphs_on(&self) -> bool {
        self.replay.is_some()
    }

    /// Returns the permitted modes of stages, less costly ones first.
    pub(super) fn modes(&self) -> Vec<usize> {
        let redo: &[usize] = match self.recompute {
            _ if !self.training => &[PLAIN],
            When::Never => &[PLAIN],
            When::Always => &[REDO],
            When::Auto => &[PLAIN, REDO],
        };
        let away: &[usize] = match self.offload {
            When::Never => &[PLAIN],
            When::Always => &[AWAY],
            When::Auto => &[PLAIN, AWAY],
        };
        let both = redo
            .iter()
            .flat_map(|redo| away.iter().map(move |away| redo | away));
        both.collect()
    }

    pub(super) fn memory(&self) -> Memory {
        let graphs = self.replay.is_some();
        let throughout = (self.state, self.sets, graphs);
        Memory::new(&self.costs, self.input, self.ways, throughout)
    }

    /// Returns the host's time to submit a layer's passes of one micro-batch, as a lower bound of a
    /// stage; zero with graphs.
    pub(super) fn submits(&self, cost: &LayerCost, split: bool, redo: bool) -> Micros {
        if self.replay.is_some() {
            return Micros::ZERO;
        }
        let host = &cost.host;
        let backward = if split {
            host.input + host.weight
        } else {
            host.backward
        };
        let again = if redo { host.recompute } else { Micros::ZERO };
        host.forward + backward + again
    }

    /// Returns the transfer time of a layer's activations of one micro-batch, on the slower of the
    /// links between device and host.
    pub(super) fn moves(&self, cost: &LayerCost) -> Micros {
        let times = self
            .machine
            .host_link()
            .map(|link| link.transfer(cost.activations, 1));
        times.map_or(Micros::ZERO, |times| {
            times.to_host.occupancy.max(times.to_device.occupancy)
        })
    }

    /// Returns the distinct links between devices, and for each stage the link to the next one;
    /// none on the same device, or for the last stage.
    pub(super) fn links(&self) -> (Vec<Way>, Vec<Option<usize>>) {
        let mut ways = vec![Way::Inside];
        let next = self.stages.iter().skip(1).map(Some).chain([None]);
        let of_stage = self.stages.iter().zip(next).map(|(stage, next)| {
            let way = self.machine.way(stage.device, next?.device)?;
            Some(ways.iter().position(|own| *own == way).unwrap_or_else(|| {
                ways.push(way);
                ways.len() - 1
            }))
        });
        let of_stage = of_stage.collect();
        (ways, of_stage)
    }

    /// Returns, for a cut after a layer over this link, the total time of one micro-batch's
    /// transfers, and the time that they occupy the link in one direction.
    pub(super) fn transfer_at(&self, cost: &LayerCost, way: Way) -> (Micros, Micros) {
        let times = self.machine.over(way, cost.output);
        let ways = if self.training { 2.0 } else { 1.0 };
        ((times.occupancy + times.latency) * ways, times.occupancy)
    }
}
