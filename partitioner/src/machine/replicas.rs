//! Placement of replicas, and the times of their all-reduce.

use std::str::FromStr;

use super::{Machine, MachineError};
use crate::cost::EdgeTimes;
use crate::ids::DeviceId;
use crate::machine::Way;
use crate::units::{Bytes, Micros};
use crate::value_error::ValueError;

/// Order of neighbouring devices if there are several replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "rank order")]
pub enum Neighbours {
    /// Replicas of a stage, as in Megatron-LM: device i of replica r is number i · d + r. Gradients
    /// stay within a node if possible, and the pipeline goes from node to node.
    #[default]
    Replicas,
    /// Stages of a replica: device i of replica r is number r · p + i. Pipelines stay within a node
    /// if possible, and gradients go from node to node.
    Stages,
}

impl Neighbours {
    /// Name on the command line: `replicas` or `stages`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::Stages => "stages",
        }
    }
}

impl FromStr for Neighbours {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "replicas" => Ok(Self::Replicas),
            "stages" => Ok(Self::Stages),
            _ => Err(ValueError::Parse {
                text: text.chars().take(40).collect(),
                expected: "one of replicas, stages",
            }),
        }
    }
}

/// Method of the all-reduce of gradients over replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "reduce-scatter")]
pub enum AllReduce {
    /// Each replica sends a part to every other one, which adds the parts in a fixed order and
    /// sends the sum to all, as in this project's training. With d replicas each sends 2(d − 1)/d
    /// of the bytes, in two rounds. Parts for replicas on the same node use the link within it, the
    /// others the link between nodes, at the same time.
    #[default]
    Direct,
    /// Rings by level, as in NCCL: a reduce-scatter within each node, an all-reduce of each part
    /// between the nodes, an all-gather within each node. With k replicas on each of n nodes, each
    /// sends 2(k − 1)/k of the bytes over the link within the node, and then 2(n − 1)/n of a k-th
    /// over the link between nodes, in 2(k − 1) and 2(n − 1) steps.
    Levels,
}

impl FromStr for AllReduce {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "direct" => Ok(Self::Direct),
            "levels" => Ok(Self::Levels),
            _ => Err(ValueError::Parse {
                text: text.chars().take(40).collect(),
                expected: "one of direct, levels",
            }),
        }
    }
}

impl Machine {
    /// Sets the order of neighbours.
    ///
    /// # Errors
    /// [`MachineError::Neighbours`] if stages are neighbours and replicas are placed differently:
    /// each node must have the same number of devices, and one of this number and p must be a
    /// multiple of the other.
    pub fn with_neighbours(mut self, neighbours: Neighbours) -> Result<Self, MachineError> {
        self.neighbours = neighbours;
        self.check_neighbours()
    }

    /// Sets the method of all-reduce.
    #[must_use]
    pub fn with_all_reduce(mut self, all_reduce: AllReduce) -> Self {
        self.all_reduce = all_reduce;
        self
    }

    pub(super) fn check_neighbours(self) -> Result<Self, MachineError> {
        let Some(nodes) = self.nodes.as_ref().filter(|nodes| nodes.count() > 1) else {
            return Ok(self);
        };
        let (devices, alike) = (self.devices.len(), nodes.devices());
        let each = alike[0];
        let even = alike.iter().all(|own| *own == each);
        let fits = even && (each.is_multiple_of(devices) || devices.is_multiple_of(each));
        if self.neighbours == Neighbours::Stages && self.replicas > 1 && !fits {
            let each = if even { each } else { 0 };
            return Err(MachineError::Neighbours { devices, each });
        }
        Ok(self)
    }

    /// Order of neighbouring devices.
    pub fn neighbours(&self) -> Neighbours {
        self.neighbours
    }

    /// Method of all-reduce over replicas.
    pub fn all_reduce(&self) -> AllReduce {
        self.all_reduce
    }

    /// Number of a replica's device among all.
    pub(super) fn number(&self, device: usize, replica: usize) -> usize {
        match self.neighbours {
            Neighbours::Replicas => device * self.replicas + replica,
            Neighbours::Stages => replica * self.devices.len() + device,
        }
    }

    /// Numbers of a pipeline's device among all, one for each replica, in order.
    pub(super) fn each(&self, device: DeviceId) -> impl Iterator<Item = usize> + '_ {
        (0..self.replicas).map(move |replica| self.number(device.index(), replica))
    }

    /// Times of the all-reduce of `bytes` of gradients over the replicas of a device's stage: a
    /// reduce-scatter and an all-gather, by the method of
    /// [`with_all_reduce`](Self::with_all_reduce). Zero for one replica.
    #[doc(alias = "all-reduce")]
    pub fn exchange(&self, device: DeviceId, bytes: Bytes) -> EdgeTimes {
        if self.replicas == 1 || bytes == Bytes::ZERO {
            return EdgeTimes::default();
        }
        let here = self.on_each_node(device);
        match self.all_reduce {
            AllReduce::Direct => self.direct(&here, bytes),
            AllReduce::Levels => self.by_level(&here, bytes),
        }
    }

    /// Number of replicas of a device on each node that has any.
    fn on_each_node(&self, device: DeviceId) -> Vec<usize> {
        let Some(nodes) = &self.nodes else {
            return vec![self.replicas];
        };
        let mut counts: Vec<(usize, usize)> = Vec::new();
        for node in self.each(device).map(|one| nodes.of(one)) {
            match counts.last_mut() {
                Some((last, count)) if *last == node => *count += 1,
                _ => counts.push((node, 1)),
            }
        }
        counts.into_iter().map(|(_, count)| count).collect()
    }

    fn direct(&self, here: &[usize], bytes: Bytes) -> EdgeTimes {
        let part = |share: usize| fraction(bytes, 2 * share, self.replicas);
        let most = here.iter().copied().max().unwrap_or(1);
        let within = self.over(Way::Inside, part(most - 1));
        let away = |&count: &usize| self.sending(count) * (self.replicas - count);
        let away = here.iter().map(away).max().unwrap_or(0);
        let mut times = within;
        if away > 0 {
            let between = self.over(Way::Between { sharing: 1 }, part(away));
            times = EdgeTimes {
                occupancy: between.occupancy.max(within.occupancy),
                latency: between.latency.max(within.latency),
            };
        }
        EdgeTimes {
            latency: times.latency * 2.0,
            ..times
        }
    }

    fn by_level(&self, here: &[usize], bytes: Bytes) -> EdgeTimes {
        let most = here.iter().copied().max().unwrap_or(1);
        let least = here.iter().copied().min().unwrap_or(1);
        let ring = |way, bytes, members: usize, sharing: usize| {
            let times = self.over(way, fraction(bytes, 2 * (members - 1), members));
            let steps = 2.0 * (members - 1) as f64;
            (times.occupancy * sharing as f64, times.latency * steps)
        };
        let within = ring(Way::Inside, bytes, most, 1);
        let mut times = within;
        if here.len() > 1 {
            let part = fraction(bytes, 1, least);
            let way = Way::Between { sharing: 1 };
            let between = ring(way, part, here.len(), self.sending(least));
            times = (within.0 + between.0, within.1 + between.1);
        }
        let (occupancy, latency): (Micros, Micros) = times;
        EdgeTimes { occupancy, latency }
    }

    /// Number of senders that share a network card, of `count` replicas on a node.
    fn sending(&self, count: usize) -> usize {
        let own = self
            .nodes
            .as_ref()
            .is_none_or(|nodes| nodes.nic_per_device());
        if own { 1 } else { count }
    }
}

/// `bytes · share / whole`, rounded down.
fn fraction(bytes: Bytes, share: usize, whole: usize) -> Bytes {
    let part = u128::from(bytes.get()) * share as u128 / whole as u128;
    Bytes(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Link;
    use crate::machine::Nodes;

    /// One byte per microsecond and 3 µs within a node, ten times these times between nodes.
    fn machine(devices: usize, replicas: usize, nodes: &[usize], nic_per_device: bool) -> Machine {
        let link = |text: &str| text.parse::<Link>().unwrap();
        let nodes = Nodes::new(nodes.to_vec(), link("100kB/s,30us")).unwrap();
        let machine = Machine::new(devices).unwrap().with_link(link("1MB/s,3us"));
        let machine = machine.with_replicas(replicas).unwrap();
        let nodes = nodes.with_nic_per_device(nic_per_device);
        machine.with_nodes(nodes).unwrap()
    }

    fn exchange(machine: &Machine, bytes: u64) -> (f64, f64) {
        let times = machine.exchange(DeviceId(0), Bytes(bytes));
        (times.occupancy.get(), times.latency.get())
    }

    #[test]
    fn rings_go_over_each_level_once() {
        let levels = |machine: Machine| machine.with_all_reduce(AllReduce::Levels);
        // One node of four: 2 · 3/4 · 12 bytes, six steps.
        let alone = levels(machine(1, 4, &[4], false));
        assert_eq!(exchange(&alone, 12), (18.0, 18.0));
        // Two on each of two nodes: 2 · 1/2 · 12 bytes within, then 2 · 1/2 · 6 bytes between, of
        // which both send as much.
        let two = |own| levels(machine(1, 4, &[2, 2], own));
        assert_eq!(exchange(&two(true), 12), (12.0 + 60.0, 6.0 + 60.0));
        assert_eq!(exchange(&two(false), 12), (12.0 + 120.0, 66.0));
    }

    #[test]
    fn stages_that_are_neighbours_leave_gradients_to_the_network() {
        let by_replicas = machine(2, 2, &[2, 2], true);
        let by_stages = by_replicas.clone().with_neighbours(Neighbours::Stages);
        let by_stages = by_stages.unwrap();
        let hop = |machine: &Machine| {
            let times = machine.transfer(DeviceId(0), DeviceId(1), Bytes(12));
            times.occupancy.get()
        };
        assert_eq!((hop(&by_replicas), hop(&by_stages)), (120.0, 12.0));
        assert_eq!(exchange(&by_replicas, 12), (12.0, 6.0));
        assert_eq!(exchange(&by_stages, 12), (120.0, 60.0));
    }

    #[test]
    fn replicas_that_are_not_alike_are_refused() {
        let stages = |devices, replicas, nodes: &[usize]| {
            let machine = machine(devices, replicas, nodes, true);
            machine.with_neighbours(Neighbours::Stages)
        };
        assert!(stages(2, 4, &[4, 4]).is_ok());
        assert!(stages(4, 2, &[2, 2, 2, 2]).is_ok());
        let error = stages(3, 2, &[2, 2, 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "replicas of 3 devices do not lie alike on nodes of 2: where stages are neighbours \
             one must be a multiple of the other"
        );
        assert!(stages(2, 2, &[3, 1]).is_err());
    }
}
