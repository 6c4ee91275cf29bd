//! Network cards that the devices of a node share.

use crate::ids::DeviceId;

/// The nodes whose network cards a device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// First and last node that the device is on in any replica, for the transfer of values.
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// Whether its gradients use them.
    pub(crate) exchanges: bool,
}

#[cfg(test)]
impl Reach {
    /// Reach within one node.
    pub(crate) fn of_one(node: usize) -> Self {
        Self {
            first: node,
            last: node,
            exchanges: false,
        }
    }
}

/// Sharing of network cards by devices. Values between devices on different nodes use the cards of
/// both nodes.
///
/// Made by [`Machine::cards`](crate::Machine::cards).
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "NIC")]
pub struct Cards {
    reach: Vec<Reach>,
}

impl Cards {
    pub(crate) fn new(reach: Vec<Reach>) -> Self {
        Self { reach }
    }

    /// The nodes that a device uses.
    pub(crate) fn of(&self, device: DeviceId) -> Reach {
        self.reach.get(device.index()).copied().unwrap_or_default()
    }

    /// Number of nodes.
    pub(crate) fn count(&self) -> usize {
        let lasts = self.reach.iter().map(|own| own.last);
        lasts.max().map_or(0, |last| last + 1)
    }

    /// Whether values between two devices go from node to node. Devices are on nodes in order: two
    /// that are on several nodes are not on the same ones.
    pub(crate) fn cross(&self, from: DeviceId, to: DeviceId) -> bool {
        let nodes = |device| {
            let Reach { first, last, .. } = self.of(device);
            (first, last)
        };
        nodes(from) != nodes(to)
    }
}
