//! Common commercial nodes, by name.
//!
//! Bandwidths are for one direction; "bidirectional" or "total" figures of makers are twice as
//! large. Peaks are of dense matrix products in BF16 or FP16 with sums in FP32, without sparsity.
//! Latencies are in no data sheet: [`INSIDE_MICROS`], [`PCIE_MICROS`] and [`BETWEEN_MICROS`] are
//! this project's assumptions, and a cluster's file can set others.

use super::{Card, Cluster, ClusterError, NodeKind, Peak};
use crate::cost::Link;
use crate::units::{Bytes, Micros};

/// Assumed latency of NVLink.
pub const INSIDE_MICROS: f64 = 3.0;
/// Assumed latency of PCIe.
pub const PCIE_MICROS: f64 = 8.0;
/// Assumed latency of the network.
pub const BETWEEN_MICROS: f64 = 8.0;

/// A node that is known by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownNode {
    /// The name.
    pub name: &'static str,
    /// Number of cards.
    pub cards: usize,
    /// The cards.
    pub card: Card,
    /// Bytes per second from card to card, and latency in microseconds.
    inside: (u64, f64),
    /// Same as `inside`, from node to node.
    between: (u64, f64),
    /// Whether each card has its own network card.
    pub nic_per_card: bool,
    /// Source of the numbers.
    pub source: &'static str,
}

const fn card(gib: u64, teraflops: f64, gigabytes: f64) -> Card {
    Card {
        speed: 1.0,
        memory: Some(Bytes(gib << 30)),
        peak: Some(Peak {
            flops: teraflops * 1e12,
            bandwidth: gigabytes * 1e9,
        }),
    }
}

const GIGABYTE: u64 = 1_000_000_000;
const NVLINK_3: (u64, f64) = (300 * GIGABYTE, INSIDE_MICROS);
const NVLINK_4: (u64, f64) = (450 * GIGABYTE, INSIDE_MICROS);
const NVLINK_5: (u64, f64) = (900 * GIGABYTE, INSIDE_MICROS);
/// PCIe 4.0 with 16 lanes: 16 GT/s a lane, 128 of 130 bits; 31.5 GB/s.
const PCIE_4: (u64, f64) = (31_500_000_000, PCIE_MICROS);

/// Ready-made nodes.
pub const KNOWN: [KnownNode; 8] = [
    KnownNode {
        name: "dgx-a100",
        cards: 8,
        card: card(80, 312.0, 2039.0),
        inside: NVLINK_3,
        between: (25 * GIGABYTE, BETWEEN_MICROS),
        nic_per_card: true,
        source: "NVIDIA A100 data sheet: 80 GB SXM, 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s both \
                 ways; NVIDIA DGX A100 data sheet: 8 cards, 8 x 200 Gb/s InfiniBand",
    },
    KnownNode {
        name: "dgx-a100-40gb",
        cards: 8,
        card: card(40, 312.0, 1555.0),
        inside: NVLINK_3,
        between: (25 * GIGABYTE, BETWEEN_MICROS),
        nic_per_card: true,
        source: "NVIDIA A100 data sheet: 40 GB SXM, 312 TFLOP/s, 1,555 GB/s, NVLink 600 GB/s both \
                 ways; NVIDIA DGX A100 data sheet: 8 cards, 8 x 200 Gb/s InfiniBand",
    },
    KnownNode {
        name: "dgx-h100",
        cards: 8,
        card: card(80, 989.0, 3350.0),
        inside: NVLINK_4,
        between: (50 * GIGABYTE, BETWEEN_MICROS),
        nic_per_card: true,
        source: "NVIDIA H100 data sheet: SXM, 1,979 TFLOP/s with sparsity and half of it without, \
                 3,350 GB/s, NVLink 900 GB/s both ways; NVIDIA DGX H100 data sheet: 8 cards, \
                 8 x 400 Gb/s InfiniBand",
    },
    KnownNode {
        name: "dgx-h200",
        cards: 8,
        card: card(140, 989.0, 4800.0),
        inside: NVLINK_4,
        between: (50 * GIGABYTE, BETWEEN_MICROS),
        nic_per_card: true,
        source: "NVIDIA H200 data sheet: SXM, 141 GB, 1,979 TFLOP/s with sparsity and half of it \
                 without, 4.8 TB/s, NVLink 900 GB/s both ways; NVIDIA DGX H200 data sheet: 8 cards, \
                 8 x 400 Gb/s InfiniBand",
    },
    KnownNode {
        name: "dgx-b200",
        cards: 8,
        card: card(178, 2250.0, 8000.0),
        inside: NVLINK_5,
        between: (50 * GIGABYTE, BETWEEN_MICROS),
        nic_per_card: true,
        source: "NVIDIA DGX B200 data sheet: 8 cards of 180 GB, 4.5 PFLOP/s each with sparsity and half \
                 of it without, 64 TB/s together, NVLink 14.4 TB/s both ways together, 8 x 400 Gb/s \
                 InfiniBand",
    },
    KnownNode {
        name: "l40s",
        cards: 8,
        card: card(45, 362.0, 864.0),
        inside: PCIE_4,
        between: (25 * GIGABYTE, BETWEEN_MICROS),
        nic_per_card: false,
        source: "NVIDIA L40S data sheet: 48 GB, of which ECC leaves 45 GiB, 733 TFLOP/s with sparsity \
                 and half of it without, 864 GB/s, PCIe 4.0 x16; assumed: one 200 Gb/s card a node",
    },
    KnownNode {
        name: "a100-pcie",
        cards: 8,
        card: card(80, 312.0, 1935.0),
        inside: PCIE_4,
        between: (12_500_000_000, BETWEEN_MICROS),
        nic_per_card: false,
        source: "NVIDIA A100 data sheet: 80 GB PCIe, 312 TFLOP/s, 1,935 GB/s, PCIe 4.0 x16; assumed: \
                 no NVLink bridges, one 100 Gb/s card a node",
    },
    KnownNode {
        name: "rtx-4090",
        cards: 4,
        card: card(24, 165.2, 1008.0),
        inside: PCIE_4,
        between: (1_250_000_000, 30.0),
        nic_per_card: false,
        source: "NVIDIA Ada GPU architecture paper: 24 GB, 165.2 TFLOP/s with sums in FP32, \
                 1,008 GB/s, PCIe 4.0 x16; assumed: a desktop with four cards and a 10 Gb/s card",
    },
];

impl KnownNode {
    /// The node of that name.
    ///
    /// # Errors
    /// [`ClusterError::UnknownNode`].
    pub fn named(name: &str) -> Result<Self, ClusterError> {
        let found = KNOWN.into_iter().find(|known| known.name == name);
        found.ok_or_else(|| ClusterError::UnknownNode {
            name: name.chars().take(40).collect(),
        })
    }

    /// Returns a cluster of `nodes` of them.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn cluster(&self, nodes: usize) -> Result<Cluster, ClusterError> {
        let cluster = Cluster::new(vec![self.kind(nodes)], Some(self.link_between()))?;
        let cluster = cluster.with_link_inside(self.link_inside());
        Ok(cluster.with_nic_per_card(self.nic_per_card))
    }

    /// Returns `nodes` of them, as one kind among others.
    pub fn kind(&self, nodes: usize) -> NodeKind {
        NodeKind {
            nodes,
            cards: self.cards,
            card: self.card,
        }
    }

    /// Link from card to card.
    pub fn link_inside(&self) -> Link {
        link(self.inside)
    }

    /// Link from node to node.
    pub fn link_between(&self) -> Link {
        link(self.between)
    }
}

fn link((bandwidth, latency): (u64, f64)) -> Link {
    let latency = Micros::saturating(latency);
    // No bandwidth above is 0.
    Link::new(Bytes(bandwidth), latency).unwrap_or_else(|_| Link::without_copy(latency))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ready_made_node_is_a_cluster() {
        for known in KNOWN {
            let cluster = known.cluster(2).unwrap();
            assert_eq!(cluster.cards(), 2 * known.cards);
            assert!(
                cluster
                    .link_between()
                    .and_then(|link| link.bandwidth())
                    .is_some()
            );
            assert!(!known.source.is_empty());
        }
    }

    #[test]
    fn a_name_that_is_not_known_gets_a_hint() {
        let error = KnownNode::named("dgx-a10").unwrap_err().to_string();
        assert!(error.contains("did you mean `dgx-a100`?"), "{error}");
    }
}
