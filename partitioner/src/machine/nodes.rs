//! Several machines (nodes) with devices, and the network between them.

use crate::cost::Link;
use crate::words::count;

/// Why the nodes are impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodesError {
    /// No node, or one without devices.
    #[error("a node without devices: each must have at least one")]
    Empty,
    /// Devices that cannot be spread evenly.
    #[error(
        "{devices} cannot be spread evenly over {nodes}: say how many each has, \
         such as {}", example(*nodes, *devices), devices = count(*devices, "device"), nodes = count(*nodes, "node"))]
    Uneven {
        /// Nodes asked for.
        nodes: usize,
        /// Devices in all.
        devices: usize,
    },
}

/// Formats a valid list as an example, cut to a reasonable length.
fn example(nodes: usize, devices: usize) -> String {
    let nodes = nodes.clamp(1, devices.clamp(1, 8));
    let of = |node: usize| devices / nodes + usize::from(node < devices % nodes);
    let list: Vec<String> = (0..nodes).map(|node| of(node).to_string()).collect();
    list.join(",")
}

/// Distribution of devices over nodes (hosts), in order, and the network between these.
///
/// The devices of a node share its network card (NIC): one value at a time leaves the node, and one
/// at a time arrives, each at the link's full bandwidth. This models one Ethernet port per machine;
/// machines built for training have a card for each device
/// ([`with_nic_per_device`](Self::with_nic_per_device)).
///
/// # Examples
/// ```
/// use gpipe_partitioner::{Bytes, DeviceId, Machine, Nodes};
///
/// let nodes = Nodes::new(vec![4, 4], "10Gbit/s,20us".parse()?)?;
/// let machine = Machine::new(8)?.with_link("25GB/s,5us".parse()?).with_nodes(nodes)?;
/// let megabyte = |from, to| machine.transfer(DeviceId(from), DeviceId(to), Bytes(1_000_000));
/// assert_eq!(megabyte(2, 3).occupancy.get(), 40.0);
/// assert_eq!(megabyte(3, 4).occupancy.get(), 800.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "host")]
#[derive(Clone, Debug, PartialEq)]
pub struct Nodes {
    /// First device of each node, and finally the number of all devices.
    starts: Vec<usize>,
    link: Link,
    nic_per_device: bool,
}

impl Nodes {
    /// Creates nodes with these numbers of devices, and the link between any two nodes.
    ///
    /// # Errors
    /// [`NodesError::Empty`].
    pub fn new(devices: Vec<usize>, link: Link) -> Result<Self, NodesError> {
        if devices.is_empty() || devices.contains(&0) {
            return Err(NodesError::Empty);
        }
        let mut starts = vec![0_usize];
        for count in devices {
            starts.push(starts[starts.len() - 1].saturating_add(count));
        }
        Ok(Self {
            starts,
            link,
            nic_per_device: false,
        })
    }

    /// Spreads `devices` devices evenly over `nodes` nodes.
    ///
    /// # Errors
    /// [`NodesError`].
    pub fn even(nodes: usize, devices: usize, link: Link) -> Result<Self, NodesError> {
        if nodes == 0 || !devices.is_multiple_of(nodes) {
            return Err(NodesError::Uneven { nodes, devices });
        }
        Self::new(vec![devices / nodes; nodes], link)
    }

    /// Sets whether each device has its own network card, or (by default) the devices of a node
    /// share one.
    #[must_use]
    pub fn with_nic_per_device(mut self, own: bool) -> Self {
        self.nic_per_device = own;
        self
    }

    /// Number of devices of each node.
    pub fn devices(&self) -> Vec<usize> {
        let ends = self.starts.windows(2);
        ends.map(|both| both[1] - both[0]).collect()
    }

    /// The number of nodes.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The link between any two nodes.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Whether each device has its own network card.
    pub fn nic_per_device(&self) -> bool {
        self.nic_per_device
    }

    /// Number of devices in all.
    pub(super) fn all(&self) -> usize {
        self.starts[self.count()]
    }

    /// Node of the device with this number among all.
    pub(super) fn of(&self, device: usize) -> usize {
        self.starts.partition_point(|&start| start <= device) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_devices_in_order() {
        let link: Link = "1GB/s".parse().unwrap();
        let nodes = Nodes::new(vec![3, 1, 2], link).unwrap();
        let found: Vec<usize> = (0..6).map(|device| nodes.of(device)).collect();
        assert_eq!(found, [0, 0, 0, 1, 2, 2]);
        assert_eq!((nodes.devices(), nodes.all()), (vec![3, 1, 2], 6));
        assert_eq!(Nodes::even(2, 6, link), Nodes::new(vec![3, 3], link));
        for bad in [vec![], vec![2, 0]] {
            assert_eq!(Nodes::new(bad, link), Err(NodesError::Empty));
        }
        assert!(Nodes::even(0, 4, link).is_err());
        assert_eq!(
            Nodes::even(3, 8, link).unwrap_err().to_string(),
            "8 devices cannot be spread evenly over 3 nodes: say how many each has, such as 3,3,2"
        );
    }
}
