//! Assignment of a cluster's cards to replicas and devices.

use super::{Card, Cluster, ClusterError, NodeKind};
use crate::machine::{Machine, Neighbours, Nodes};
use crate::units::Bytes;
use crate::words::count;

/// With at most this many ways to select nodes of each kind all are tried, else all nodes of a kind or none.
const MOST_SELECTIONS: usize = 256;
/// With at most this many kinds of nodes all orders are tried, else one and its reverse.
const MOST_PERMUTED: usize = 3;

/// Some of a cluster's cards, as replicas of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The kinds of nodes that are used, in the order of cards, each with the number of nodes.
    pub nodes: Vec<(usize, usize)>,
    /// Cards used of each node; of nodes with fewer, all.
    pub per_node: usize,
    /// Devices of the pipeline (p).
    pub devices: usize,
    /// Number of replicas (d).
    pub replicas: usize,
    /// Order of neighbouring cards.
    pub neighbours: Neighbours,
}

impl Layout {
    /// Number of cards that it uses.
    pub fn cards(&self) -> usize {
        self.devices * self.replicas
    }

    /// Whether the order of neighbours matters: it does not on one node, nor on equal nodes with one card
    /// each.
    pub(crate) fn has_choice_of_neighbours(&self) -> bool {
        let nodes: usize = self.nodes.iter().map(|&(_, count)| count).sum();
        let places = nodes > 1 && (self.per_node > 1 || self.nodes.len() > 1);
        self.devices > 1 && self.replicas > 1 && places
    }
}

impl Cluster {
    /// Returns the machine of a pipeline in that layout: each device is as fast as the slowest card of its
    /// replicas, and has the least of their memories.
    ///
    /// # Errors
    /// [`ClusterError::Layout`] and [`ClusterError::Machine`].
    pub fn machine(&self, layout: &Layout) -> Result<Machine, ClusterError> {
        let nodes = self.node_list(layout)?;
        let cards: Vec<Card> = (nodes.iter())
            .flat_map(|&(count, card)| std::iter::repeat_n(card, count))
            .collect();
        let (devices, replicas) = (layout.devices, layout.replicas);
        if devices.checked_mul(replicas) != Some(cards.len()) || cards.is_empty() {
            return Err(ClusterError::Layout(format!(
                "{replicas} of {devices} are not its {} cards",
                cards.len(),
                replicas = count(replicas, "replica"),
                devices = count(devices, "device")
            )));
        }
        let mut machine = Machine::new(devices)?.with_replicas(replicas)?;
        if let Some(between) = self.between.filter(|_| nodes.len() > 1) {
            let counts = nodes.iter().map(|&(count, _)| count).collect();
            let nodes = Nodes::new(counts, between).map_err(crate::machine::MachineError::from)?;
            machine = machine.with_nodes(nodes.with_nic_per_device(self.nic_per_card))?;
        }
        machine = machine.with_neighbours(layout.neighbours)?;
        machine = machine.with_all_reduce(self.all_reduce);
        if let Some(link) = self.inside {
            machine = machine.with_link(link);
        }
        for device in 0..devices {
            let all = (0..replicas).map(|replica| cards[machine.number(device, replica)]);
            let slowest = all
                .clone()
                .map(|card| card.speed)
                .fold(f64::INFINITY, f64::min);
            let least: Option<Bytes> = all.filter_map(|card| card.memory).min();
            machine.devices[device].speed = slowest;
            machine.devices[device].memory = least;
        }
        Ok(machine)
    }

    /// Returns the nodes of a layout in order: number of cards of each, and the card.
    fn node_list(&self, layout: &Layout) -> Result<Vec<(usize, Card)>, ClusterError> {
        let mut list = Vec::new();
        let mut left: Vec<usize> = self.kinds.iter().map(|kind| kind.nodes).collect();
        for &(kind, nodes) in &layout.nodes {
            let own = left.get_mut(kind).filter(|left| **left >= nodes);
            let Some(own) = own else {
                let why = format!("there are not {nodes} more nodes of kind {kind}");
                return Err(ClusterError::Layout(why));
            };
            *own -= nodes;
            let NodeKind { cards, card, .. } = self.kinds[kind];
            list.extend(std::iter::repeat_n(
                (cards.min(layout.per_node), card),
                nodes,
            ));
        }
        Ok(list)
    }

    /// Returns all layouts of at most `most` devices per replica, with `replicas` replicas if given: every p
    /// and d that use exactly the selected cards, for every number of nodes and every number of cards per
    /// node (if the node has them), kinds of nodes in every order, with both orders of [`Neighbours`] if they
    /// differ. With more than 256 selections of nodes of several kinds, all nodes of a kind or none; with
    /// more than three kinds only two orders. Most cards first.
    pub fn layouts(&self, most: usize, replicas: Option<usize>) -> Vec<Layout> {
        let widest = self.kinds.iter().map(|kind| kind.cards).max().unwrap_or(1);
        let mut layouts = Vec::new();
        for nodes in self.selections() {
            let mut before = 0;
            for per_node in 1..=widest {
                let own =
                    |&(kind, nodes): &(usize, usize)| nodes * per_node.min(self.kinds[kind].cards);
                let cards = nodes.iter().map(own).sum();
                // Beyond the cards of all selected nodes nothing changes.
                if cards > before {
                    let fits = |&d: &usize| {
                        cards % d == 0 && cards / d <= most && replicas.is_none_or(|own| own == d)
                    };
                    let splits = (1..=cards).filter(fits);
                    layouts.extend(
                        splits.flat_map(|d| {
                            self.with_both_neighbours(&nodes, per_node, (cards / d, d))
                        }),
                    );
                }
                before = cards;
            }
        }
        layouts.sort_by_key(|layout| std::cmp::Reverse(layout.cards()));
        layouts
    }

    fn with_both_neighbours(
        &self,
        nodes: &[(usize, usize)],
        per_node: usize,
        (devices, replicas): (usize, usize),
    ) -> impl Iterator<Item = Layout> {
        let layout = |neighbours| Layout {
            nodes: nodes.to_vec(),
            per_node,
            devices,
            replicas,
            neighbours,
        };
        let differ = layout(Neighbours::Replicas).has_choice_of_neighbours();
        let each = |&(kind, _): &(usize, usize)| self.kinds[kind].cards.min(per_node);
        let alike = nodes.iter().all(|own| each(own) == per_node);
        let fits = per_node.is_multiple_of(devices) || devices.is_multiple_of(per_node);
        let stages = (differ && alike && fits).then(|| layout(Neighbours::Stages));
        [layout(Neighbours::Replicas)].into_iter().chain(stages)
    }

    /// Returns the selections of nodes, in every order that is tried.
    fn selections(&self) -> Vec<Vec<(usize, usize)>> {
        let all = (self.kinds.iter())
            .map(|kind| kind.nodes + 1)
            .fold(1_usize, usize::saturating_mul);
        let every = self.kinds.len() == 1 || all <= MOST_SELECTIONS;
        let mut chosen = vec![Vec::new()];
        for (kind, own) in self.kinds.iter().enumerate() {
            let counts: Vec<usize> = if every {
                (0..=own.nodes).collect()
            } else {
                vec![0, own.nodes]
            };
            let with = |before: Vec<(usize, usize)>| {
                let counts = counts.clone().into_iter();
                counts.map(move |count| {
                    let more = (count > 0).then_some((kind, count));
                    before.iter().copied().chain(more).collect::<Vec<_>>()
                })
            };
            chosen = chosen.into_iter().flat_map(with).collect();
        }
        chosen.retain(|nodes| !nodes.is_empty());
        chosen.into_iter().flat_map(orders).collect()
    }
}

/// Returns the orders of kinds of nodes that are tried.
fn orders(nodes: Vec<(usize, usize)>) -> Vec<Vec<(usize, usize)>> {
    if nodes.len() > MOST_PERMUTED {
        let back = nodes.iter().rev().copied().collect();
        return vec![nodes, back];
    }
    let mut all = vec![Vec::new()];
    for kind in nodes {
        let with = |before: Vec<(usize, usize)>| {
            (0..=before.len()).map(move |place| {
                let mut longer = before.clone();
                longer.insert(place, kind);
                longer
            })
        };
        all = all.into_iter().flat_map(with).collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(kinds: &[(usize, usize, f64, u64)]) -> Cluster {
        let kind = |&(nodes, cards, speed, bytes): &(usize, usize, f64, u64)| NodeKind {
            nodes,
            cards,
            card: Card {
                speed,
                memory: Some(Bytes(bytes)),
                peak: None,
            },
        };
        let between = Some("1GB/s".parse().unwrap());
        Cluster::new(kinds.iter().map(kind).collect(), between).unwrap()
    }

    #[test]
    fn all_splits_of_all_selections_are_there() {
        let layouts = cluster(&[(2, 2, 1.0, 9)]).layouts(9, None);
        let found: Vec<_> = (layouts.iter())
            .map(|own| (own.nodes[0].1, own.per_node, own.devices, own.replicas))
            .collect();
        let expected = [
            (2, 2, 4, 1),
            (2, 2, 2, 2),
            // With stages as neighbours.
            (2, 2, 2, 2),
            (2, 2, 1, 4),
            (1, 2, 2, 1),
            (1, 2, 1, 2),
            (2, 1, 2, 1),
            (2, 1, 1, 2),
            (1, 1, 1, 1),
        ];
        assert_eq!(found, expected);
        let two = cluster(&[(2, 2, 1.0, 9)]).layouts(2, Some(2));
        assert_eq!(two.len(), 4);
    }

    #[test]
    fn kinds_of_nodes_are_there_in_every_order() {
        let layouts = cluster(&[(1, 2, 1.0, 9), (1, 1, 0.5, 9)]).layouts(3, Some(1));
        let orders: Vec<_> = (layouts.iter())
            .filter(|own| own.devices == 3)
            .map(|own| own.nodes.clone())
            .collect();
        assert_eq!(orders, [[(1, 1), (0, 1)], [(0, 1), (1, 1)]]);
    }

    #[test]
    fn the_slowest_replica_and_the_least_memory_decide() {
        let cluster = cluster(&[(1, 2, 1.0, 20), (1, 2, 0.5, 30)]);
        let layout = |neighbours| Layout {
            nodes: vec![(0, 1), (1, 1)],
            per_node: 2,
            devices: 2,
            replicas: 2,
            neighbours,
        };
        let devices = |neighbours| {
            let machine = cluster.machine(&layout(neighbours)).unwrap();
            let own = machine.devices().iter();
            own.map(|one| (one.speed, one.memory.unwrap().0))
                .collect::<Vec<_>>()
        };
        assert_eq!(devices(Neighbours::Replicas), [(1.0, 20), (0.5, 30)]);
        assert_eq!(devices(Neighbours::Stages), [(0.5, 20), (0.5, 20)]);
    }

    #[test]
    fn a_layout_of_other_cards_is_refused() {
        let cluster = cluster(&[(1, 2, 1.0, 20)]);
        let mut layout = Layout {
            nodes: vec![(0, 2)],
            per_node: 2,
            devices: 2,
            replicas: 2,
            neighbours: Neighbours::Replicas,
        };
        assert!(cluster.machine(&layout).is_err());
        layout.nodes = vec![(0, 1)];
        let error = cluster.machine(&layout).unwrap_err();
        assert!(error.to_string().contains("2 replicas of 2 devices"));
    }
}
