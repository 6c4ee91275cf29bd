//! Clusters: nodes with cards, before they are assigned to a pipeline.
//!
//! A [`Cluster`] has kinds of nodes, the link inside a node and the one between nodes. A [`Layout`] uses some
//! of the cards as replicas of a pipeline; [`Cluster::machine`] returns the machine of such a pipeline.

mod group;
mod known;
mod layout;
mod read;

pub use known::{BETWEEN_MICROS, INSIDE_MICROS, KNOWN, KnownNode, PCIE_MICROS};
pub use layout::Layout;

use super::{AllReduce, MAX_DEVICES, MachineError, SPEEDS};
use crate::cost::Link;
use crate::json::ReadError;
use crate::units::Bytes;
use crate::words::{count, instead, meant};

/// Most kinds of nodes of a cluster.
const MAX_KINDS: usize = 16;

/// A card: a device that computes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "GPU")]
pub struct Card {
    /// Speed relative to the profiled device.
    pub speed: f64,
    /// Its memory; none for no limit.
    pub memory: Option<Bytes>,
    /// Peak performance; none if unknown.
    pub peak: Option<Peak>,
}

impl Default for Card {
    /// A card as fast as the profiled one, without memory limit.
    fn default() -> Self {
        Self {
            speed: 1.0,
            memory: None,
            peak: None,
        }
    }
}

/// Peak performance of a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Floating-point operations per second of 16-bit matrix products with 32-bit sums.
    pub flops: f64,
    /// Bytes per second to and from its memory.
    pub bandwidth: f64,
}

/// Equal nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeKind {
    /// Number of nodes.
    pub nodes: usize,
    /// Cards of each node.
    pub cards: usize,
    /// The cards.
    pub card: Card,
}

/// Why the cluster is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No kind of node, or too many.
    #[error("{kinds} kinds of nodes: there must be from 1 to {MAX_KINDS}")]
    Kinds {
        /// Number of kinds given.
        kinds: usize,
    },
    /// A kind without nodes, or nodes without cards.
    #[error("{nodes} of {cards}: there must be at least one of each", nodes = count(*nodes, "node"), cards = count(*cards, "card"))]
    Empty {
        /// Nodes of the kind.
        nodes: usize,
        /// Cards of each.
        cards: usize,
    },
    /// More cards than a machine can have.
    #[error("{cards} in all: there must be at most {MAX_DEVICES}", cards = count(*cards, "card"))]
    Cards {
        /// Number of cards.
        cards: usize,
    },
    /// A speed out of range.
    #[error("speed {speed}: must be from 0.001 to 1000")]
    Speed {
        /// The speed.
        speed: f64,
    },
    /// A peak that is not positive.
    #[error("a card of {flops} FLOP/s and {bandwidth} B/s: both must be above 0")]
    Peak {
        /// Floating-point operations a second.
        flops: f64,
        /// Bytes a second.
        bandwidth: f64,
    },
    /// Several nodes, and no link between them.
    #[error(
        "{nodes} need a link between them, such as --link-between 25GB/s,8us (`between` in a file)", nodes = count(*nodes, "node"))]
    NoLink {
        /// Number of nodes.
        nodes: usize,
    },
    /// A group size that does not divide the cards of a node.
    #[error(
        "nodes of {} cannot be divided in groups of {group}: a group is on one node; its cards \
         can be {}", count(*.cards, "card"), divisors(*.cards)
    )]
    Groups {
        /// Cards of a node.
        cards: usize,
        /// Cards of a group.
        group: usize,
    },
    /// A layout that does not match the cluster's cards.
    #[error("the layout does not suit the cluster: {0}")]
    Layout(String),
    /// A layout that gives no valid machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Unknown name of a node.
    #[error("there is no ready-made node `{name}`{}", nodes_instead(.name))]
    UnknownNode {
        /// The name that was asked for.
        name: String,
    },
    /// An invalid file of a cluster.
    #[error(transparent)]
    File(#[from] ReadError),
}

/// Formats the divisors of a number: `1, 2 or 4`.
fn divisors(number: usize) -> String {
    let all = (1..=number).filter(|own| number.is_multiple_of(*own));
    let all: Vec<String> = all.map(|own| own.to_string()).collect();
    match all.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        all => all.concat(),
    }
}

fn nodes_instead(name: &str) -> String {
    let names = KNOWN.map(|known| known.name);
    let choices = format!("there are {}", names.join(", "));
    instead(meant(name, names), &choices)
}

/// Nodes with cards, and the links inside a node and between nodes.
///
/// # Examples
/// ```
/// use gpipe_partitioner::machine::cluster::{Card, Cluster, NodeKind};
///
/// let card = Card { memory: Some("40GiB".parse()?), ..Card::default() };
/// let nodes = NodeKind { nodes: 16, cards: 8, card };
/// let cluster = Cluster::new(vec![nodes], Some("50GB/s,8us".parse()?))?;
/// let cluster = cluster.with_link_inside("450GB/s,3us".parse()?);
/// assert_eq!(cluster.cards(), 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    kinds: Vec<NodeKind>,
    inside: Option<Link>,
    between: Option<Link>,
    nic_per_card: bool,
    all_reduce: AllReduce,
}

impl Cluster {
    /// Creates a cluster of these kinds of nodes, and the link between any two of them. Each card has its own
    /// network card, and all-reduces go by level.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn new(kinds: Vec<NodeKind>, between: Option<Link>) -> Result<Self, ClusterError> {
        if !(1..=MAX_KINDS).contains(&kinds.len()) {
            return Err(ClusterError::Kinds { kinds: kinds.len() });
        }
        for &NodeKind { nodes, cards, card } in &kinds {
            if nodes == 0 || cards == 0 {
                return Err(ClusterError::Empty { nodes, cards });
            }
            if !SPEEDS.contains(&card.speed) {
                return Err(ClusterError::Speed { speed: card.speed });
            }
            let positive = |value: f64| value.is_finite() && value > 0.0;
            if let Some(Peak { flops, bandwidth }) = card.peak
                && !(positive(flops) && positive(bandwidth))
            {
                return Err(ClusterError::Peak { flops, bandwidth });
            }
        }
        let own = kinds
            .iter()
            .map(|kind| kind.nodes.saturating_mul(kind.cards));
        let cards = own.fold(0_usize, usize::saturating_add);
        if cards > MAX_DEVICES {
            return Err(ClusterError::Cards { cards });
        }
        let nodes = kinds.iter().map(|kind| kind.nodes).sum();
        if nodes > 1 && between.is_none() {
            return Err(ClusterError::NoLink { nodes });
        }
        Ok(Self {
            kinds,
            inside: None,
            between,
            nic_per_card: true,
            all_reduce: AllReduce::Levels,
        })
    }

    /// Sets the link between any two cards of a node; without one, transfers take no time.
    #[must_use]
    pub fn with_link_inside(mut self, link: Link) -> Self {
        self.inside = Some(link);
        self
    }

    /// Sets whether each card has its own network card, or those of a node share one.
    #[must_use]
    pub fn with_nic_per_card(mut self, own: bool) -> Self {
        self.nic_per_card = own;
        self
    }

    /// Sets the method of all-reduce.
    #[must_use]
    pub fn with_all_reduce(mut self, all_reduce: AllReduce) -> Self {
        self.all_reduce = all_reduce;
        self
    }

    /// Replaces the cards, node kind by node kind.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_cards(self, change: impl Fn(Card) -> Card) -> Result<Self, ClusterError> {
        let other = |kind: &NodeKind| NodeKind {
            card: change(kind.card),
            ..*kind
        };
        let kinds = self.kinds.iter().map(other).collect();
        self.with_kinds(kinds)
    }

    /// Replaces the nodes.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_kinds(self, kinds: Vec<NodeKind>) -> Result<Self, ClusterError> {
        let checked = Self::new(kinds, self.between)?;
        Ok(Self {
            kinds: checked.kinds,
            ..self
        })
    }

    /// The kinds of nodes.
    pub fn kinds(&self) -> &[NodeKind] {
        &self.kinds
    }

    /// Number of cards in all.
    pub fn cards(&self) -> usize {
        self.kinds.iter().map(|kind| kind.nodes * kind.cards).sum()
    }

    /// Number of nodes in all.
    pub fn nodes(&self) -> usize {
        self.kinds.iter().map(|kind| kind.nodes).sum()
    }

    /// Memory of all cards; none if a card has no limit.
    pub fn memory(&self) -> Option<Bytes> {
        let own = |kind: &NodeKind| Some(kind.card.memory? * (kind.nodes * kind.cards) as u64);
        self.kinds.iter().map(own).sum()
    }

    /// Method of all-reduce.
    pub fn all_reduce(&self) -> AllReduce {
        self.all_reduce
    }

    /// The link between cards of a node; none if it takes no time.
    pub fn link_inside(&self) -> Option<Link> {
        self.inside
    }

    /// The link between nodes; none for one node.
    pub fn link_between(&self) -> Option<Link> {
        self.between
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(nodes: usize, cards: usize) -> NodeKind {
        let card = Card::default();
        NodeKind { nodes, cards, card }
    }

    fn refused(kinds: Vec<NodeKind>) -> String {
        Cluster::new(kinds, None).unwrap_err().to_string()
    }

    #[test]
    fn clusters_that_cannot_be_are_refused() {
        assert_eq!(
            refused(vec![]),
            "0 kinds of nodes: there must be from 1 to 16"
        );
        assert_eq!(
            refused(vec![kind(2, 0)]),
            "2 nodes of 0 cards: there must be at least one of each"
        );
        assert_eq!(
            refused(vec![kind(usize::MAX, 8), kind(usize::MAX, 8)]),
            format!("{} cards in all: there must be at most 16384", usize::MAX)
        );
        assert_eq!(
            refused(vec![kind(2, 8)]),
            "2 nodes need a link between them, such as --link-between 25GB/s,8us (`between` in a file)"
        );
        for speed in [0.0, f64::NAN, 1e9] {
            let card = Card {
                speed,
                ..Card::default()
            };
            let kind = NodeKind { card, ..kind(1, 8) };
            assert!(refused(vec![kind]).starts_with("speed "));
        }
    }

    #[test]
    fn memory_is_that_of_all_cards() {
        let cluster = Cluster::new(vec![kind(1, 4)], None).unwrap();
        assert_eq!(cluster.memory(), None);
        let cluster = cluster.with_cards(|card| Card {
            memory: Some(Bytes(10)),
            ..card
        });
        assert_eq!(cluster.unwrap().memory(), Some(Bytes(40)));
    }
}
