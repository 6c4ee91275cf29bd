//! Network cards that the devices of a node share.

use crate::ids::DeviceId;

/// Which devices share which network card: of each device the first and the last node that it is
/// on in any replica. Values between devices on different nodes go over the cards of both.
///
/// [`Machine::cards`](crate::Machine::cards) makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "NIC")]
pub struct Cards {
    nodes: Vec<(usize, usize)>,
}

impl Cards {
    pub(crate) fn new(nodes: Vec<(usize, usize)>) -> Self {
        Self { nodes }
    }

    /// The nodes of a device: the first and the last.
    pub(crate) fn of(&self, device: DeviceId) -> (usize, usize) {
        self.nodes.get(device.index()).copied().unwrap_or_default()
    }

    /// How many nodes there are.
    pub(crate) fn count(&self) -> usize {
        let lasts = self.nodes.iter().map(|&(_, last)| last);
        lasts.max().map_or(0, |last| last + 1)
    }

    /// Whether values between two devices go from node to node. Devices are on nodes in order:
    /// two that are on several nodes are not on the same ones.
    pub(crate) fn cross(&self, from: DeviceId, to: DeviceId) -> bool {
        self.of(from) != self.of(to)
    }
}
