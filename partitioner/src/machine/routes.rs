//! Links that values and gradients use.
//!
//! Replicas do the same at the same time. If n of them share a network card, each takes n times as
//! long for its values, and the largest n determines all: they wait for each other at the end of
//! the step.

use super::{Machine, Neighbours};
use crate::cost::{Cards, EdgeTimes, Reach};
use crate::ids::DeviceId;
use crate::units::Bytes;

/// Link between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The link within a node.
    Inside,
    /// The link between nodes, with the number of replicas that share it.
    Between { sharing: usize },
}

impl Machine {
    /// Times of moving `bytes` from one device to another one, in every replica at the same time;
    /// zero within a device.
    pub fn transfer(&self, from: DeviceId, to: DeviceId, bytes: Bytes) -> EdgeTimes {
        let way = self.way(from, to);
        way.map_or_else(EdgeTimes::default, |way| self.over(way, bytes))
    }

    /// The network cards that values between nodes share; none if there are none, or if each device
    /// has its own.
    pub fn cards(&self) -> Option<Cards> {
        let nodes = self.nodes.as_ref()?;
        if nodes.nic_per_device() || nodes.count() == 1 {
            return None;
        }
        let reach = |device: usize| {
            let on = |replica| nodes.of(self.number(device, replica));
            match self.neighbours {
                // Devices are on nodes in order, and so are the replicas of one device.
                Neighbours::Replicas => Reach {
                    first: on(0),
                    last: on(self.replicas - 1),
                    exchanges: on(0) != on(self.replicas - 1),
                },
                // All replicas behave on their nodes as the first one on its own.
                Neighbours::Stages => Reach {
                    first: on(0),
                    last: on(0),
                    exchanges: on(0) != on(self.replicas - 1),
                },
            }
        };
        Some(Cards::new((0..self.devices.len()).map(reach).collect()))
    }

    /// Returns the link between two devices; none if they are the same.
    pub(crate) fn way(&self, from: DeviceId, to: DeviceId) -> Option<Way> {
        if from == to {
            return None;
        }
        let Some(nodes) = &self.nodes else {
            return Some(Way::Inside);
        };
        let sides = || self.each(from).zip(self.each(to));
        let (mut out, mut into) = (vec![0; nodes.count()], vec![0; nodes.count()]);
        for (from, to) in sides().map(|(from, to)| (nodes.of(from), nodes.of(to))) {
            if from != to {
                out[from] += 1;
                into[to] += 1;
            }
        }
        let sharing = out.into_iter().chain(into).max().unwrap_or(0);
        Some(match sharing {
            0 => Way::Inside,
            _ if nodes.nic_per_device() => Way::Between { sharing: 1 },
            _ => Way::Between { sharing },
        })
    }

    /// Returns the times of moving `bytes` over a link.
    pub(crate) fn over(&self, way: Way, bytes: Bytes) -> EdgeTimes {
        match (way, &self.nodes) {
            (Way::Between { sharing }, Some(nodes)) => {
                let alone = nodes.link().transfer(bytes);
                EdgeTimes {
                    occupancy: alone.occupancy * sharing as f64,
                    ..alone
                }
            }
            _ => (self.link).map_or_else(EdgeTimes::default, |link| link.transfer(bytes)),
        }
    }
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

    fn numbers(times: EdgeTimes) -> (f64, f64) {
        (times.occupancy.get(), times.latency.get())
    }

    #[test]
    fn values_take_the_link_of_both_ends() {
        let transfer = |machine: &Machine, from, to| {
            numbers(machine.transfer(DeviceId(from), DeviceId(to), Bytes(12)))
        };
        let alone = machine(4, 1, &[2, 2], false);
        assert_eq!(transfer(&alone, 0, 1), (12.0, 3.0));
        assert_eq!(transfer(&alone, 1, 2), (120.0, 30.0));
        assert_eq!(transfer(&alone, 2, 1), (120.0, 30.0));
        assert_eq!(transfer(&alone, 2, 2), (0.0, 0.0));
        // Stage 0 is on devices 0 and 1 and stage 1 on 2 and 3, all on node 0; the two replicas of
        // stage 1 send to those of stage 2 over one card.
        let twice = machine(4, 2, &[4, 4], false);
        assert_eq!(transfer(&twice, 0, 1), (12.0, 3.0));
        assert_eq!(transfer(&twice, 1, 2), (240.0, 30.0));
        let cards = machine(4, 2, &[4, 4], true);
        assert_eq!(transfer(&cards, 1, 2), (120.0, 30.0));
        // Of 0 -> 2 and 1 -> 3 only the second leaves node 0, and it determines the time.
        assert_eq!(
            transfer(&machine(2, 2, &[3, 1], false), 0, 1),
            (120.0, 30.0)
        );
    }

    #[test]
    fn gradients_go_twice_around() {
        let exchange =
            |machine: &Machine, device| numbers(machine.exchange(DeviceId(device), Bytes(12)));
        assert_eq!(exchange(&machine(4, 1, &[2, 2], false), 0), (0.0, 0.0));
        // 2 · 1/2 · 12 bytes within the node.
        assert_eq!(exchange(&machine(4, 2, &[4, 4], false), 1), (12.0, 6.0));
        // Four replicas, two on each node: each sends 2 · 2/4 · 12 = 12 bytes to the other node,
        // 24 over the card that two share, and 2 · 1/4 · 12 = 6 to its neighbour meanwhile.
        assert_eq!(exchange(&machine(1, 4, &[2, 2], false), 0), (240.0, 60.0));
        assert_eq!(exchange(&machine(1, 4, &[2, 2], true), 0), (120.0, 60.0));
        // Three and one: 3 · 2 · 1/4 · 12 bytes there, 1 · 2 · 3/4 · 12 back.
        assert_eq!(exchange(&machine(1, 4, &[3, 1], false), 0), (180.0, 60.0));
    }

    #[test]
    fn machines_without_nodes_have_one_link() {
        let machine = Machine::new(3)
            .unwrap()
            .with_link("1MB/s,3us".parse().unwrap());
        let times = machine.transfer(DeviceId(0), DeviceId(2), Bytes(12));
        assert_eq!(numbers(times), (12.0, 3.0));
        let four = machine.with_replicas(4).unwrap();
        // 2 · 3/4 · 12 bytes.
        assert_eq!(numbers(four.exchange(DeviceId(0), Bytes(12))), (18.0, 6.0));
        assert!(four.cards().is_none());
    }
}
