//! The devices that a pipeline runs on, and the links between them.

pub mod cluster;
mod nodes;
mod processes;
mod replicas;
mod routes;

pub use nodes::{Nodes, NodesError};
pub use processes::VOTES;
pub use replicas::{AllReduce, Neighbours};
pub(crate) use routes::Way;

use crate::cores::{Cores, CoresError};
use crate::cost::{HostLink, Link};
use crate::ids::DeviceId;
use crate::units::Bytes;
use crate::words::count;

/// Most devices of a machine.
pub const MAX_DEVICES: usize = 1 << 14;
/// The slowest and the fastest device, relative to the profiled one.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Speed relative to the profiled device.
    pub speed: f64,
    /// Its memory; none for no limit.
    pub memory: Option<Bytes>,
}

/// Why the machine is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// No device, or too many.
    #[error("{devices}: there must be from 1 to {MAX_DEVICES}", devices = count(*devices, "device"))]
    Devices {
        /// Number of devices asked for.
        devices: usize,
    },
    /// A list with neither one entry nor one per device.
    #[error("{given} of {what} for {devices}: give one for all, or one for each", devices = count(*devices, "device"), given = count(*given, "value"))]
    Length {
        /// Content of the list.
        what: &'static str,
        /// The length of the list.
        given: usize,
        /// The number of devices.
        devices: usize,
    },
    /// A speed out of range.
    #[error("speed {speed} of device {device}: must be from 0.001 to 1000")]
    Speed {
        /// The device.
        device: DeviceId,
        /// Its speed.
        speed: f64,
    },
    /// No replica, or more devices than there can be.
    #[error(
        "{replicas} of {devices}: there must be from 1 to {MAX_DEVICES} in all", devices = count(*devices, "device"), replicas = count(*replicas, "replica"))]
    Replicas {
        /// Replicas asked for.
        replicas: usize,
        /// The devices of each.
        devices: usize,
    },
    /// Nodes with a different total of devices.
    #[error("the nodes have {given}, and there are {devices}", given = count(*given, "device"))]
    NodeDevices {
        /// Devices of all nodes.
        given: usize,
        /// Devices in all.
        devices: usize,
    },
    /// Devices that cannot be divided among the processes.
    #[error("{processes} for {devices}: each must have as many devices", devices = count(*devices, "device"), processes = count(*processes, "process"))]
    Processes {
        /// Processes asked for.
        processes: usize,
        /// Devices of all replicas.
        devices: usize,
    },
    /// Neighbouring stages on nodes where replicas would be placed differently.
    #[error(
        "replicas of {devices} do not lie alike on nodes of {each}: where stages are \
         neighbours one must be a multiple of the other", devices = count(*devices, "device"))]
    Neighbours {
        /// Devices of a replica.
        devices: usize,
        /// Devices of a node; 0 if nodes have unequal numbers.
        each: usize,
    },
    /// Impossible nodes.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// Zero cores, or devices with zero threads.
    #[error(transparent)]
    Cores(#[from] CoresError),
}

/// Devices in pipeline order, and the links between them.
///
/// There can be several replicas of the pipeline (data parallelism): see
/// [`with_replicas`](Self::with_replicas). A property of a device then holds in every replica.
///
/// # Examples
/// ```
/// use gpipe_partitioner::{Bytes, Machine};
///
/// let machine = Machine::new(3)?
///     .with_speeds(&[1.0, 1.0, 0.5])?
///     .with_memory(&["24GiB".parse()?])?
///     .with_link("25GB/s,5us".parse()?);
/// assert_eq!(machine.devices()[2].memory, Some(Bytes(24 << 30)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    devices: Vec<Device>,
    link: Option<Link>,
    host_link: Option<HostLink>,
    cores: Option<Cores>,
    replicas: usize,
    neighbours: Neighbours,
    all_reduce: AllReduce,
    nodes: Option<Nodes>,
    processes: usize,
}

impl Machine {
    /// Creates `devices` devices as fast as the profiled one, without memory limits, with free links.
    pub fn new(devices: usize) -> Result<Self, MachineError> {
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(MachineError::Devices { devices });
        }
        let device = Device {
            speed: 1.0,
            memory: None,
        };
        Ok(Self {
            devices: vec![device; devices],
            link: None,
            host_link: None,
            cores: None,
            replicas: 1,
            neighbours: Neighbours::default(),
            all_reduce: AllReduce::default(),
            nodes: None,
            processes: 1,
        })
    }

    /// Sets the number of replicas of the pipeline, each on as many devices. With p devices there are
    /// `replicas · p` in all, in the order of [`with_neighbours`](Self::with_neighbours): by default device i
    /// of replica r is number `i · replicas + r`.
    ///
    /// # Errors
    /// [`MachineError::Replicas`]; [`MachineError::NodeDevices`] and [`MachineError::Processes`] if nodes or
    /// processes were set before.
    pub fn with_replicas(mut self, replicas: usize) -> Result<Self, MachineError> {
        let devices = self.devices.len();
        if !(1..=MAX_DEVICES / devices).contains(&replicas) {
            return Err(MachineError::Replicas { replicas, devices });
        }
        self.replicas = replicas;
        self.check_nodes()
    }

    /// Spreads all devices of all replicas over nodes in order; the link of [`with_link`](Self::with_link) is
    /// then that within a node.
    ///
    /// # Errors
    /// [`MachineError::NodeDevices`].
    pub fn with_nodes(mut self, nodes: Nodes) -> Result<Self, MachineError> {
        self.nodes = Some(nodes);
        self.check_nodes()
    }

    fn check_nodes(self) -> Result<Self, MachineError> {
        let devices = self.devices.len() * self.replicas;
        match self.nodes.as_ref().map_or(devices, Nodes::all) {
            given if given != devices => Err(MachineError::NodeDevices { given, devices }),
            _ => self.check_neighbours()?.check_processes(),
        }
    }

    /// Sets the speeds: one for all devices, or one for each.
    pub fn with_speeds(mut self, speeds: &[f64]) -> Result<Self, MachineError> {
        for (device, speed) in self.spread("speed", speeds)?.into_iter().enumerate() {
            if !SPEEDS.contains(&speed) {
                let device = DeviceId(device);
                return Err(MachineError::Speed { device, speed });
            }
            self.devices[device].speed = speed;
        }
        Ok(self)
    }

    /// Sets the memory limits: one for all devices, or one for each.
    pub fn with_memory(mut self, memory: &[Bytes]) -> Result<Self, MachineError> {
        for (device, bytes) in self.spread("memory", memory)?.into_iter().enumerate() {
            self.devices[device].memory = Some(bytes);
        }
        Ok(self)
    }

    /// Removes the memory limits.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        for device in &mut self.devices {
            device.memory = None;
        }
        self
    }

    /// Adds memory to each device that has a limit.
    pub(crate) fn with_more_memory(mut self, more: Bytes) -> Self {
        for device in &mut self.devices {
            device.memory = device.memory.map(|own| own + more);
        }
        self
    }

    /// Adds one device to each replica, like the fastest (the first among equals), after the others.
    ///
    /// # Errors
    /// [`MachineError::Devices`], [`MachineError::NodeDevices`], [`MachineError::Processes`].
    pub(crate) fn with_one_more(mut self) -> Result<Self, MachineError> {
        let devices = self.devices.len() + 1;
        if devices * self.replicas > MAX_DEVICES {
            return Err(MachineError::Devices { devices });
        }
        let faster = |a: Device, b: &Device| if b.speed > a.speed { *b } else { a };
        let first = self.devices[0];
        self.devices.push(self.devices.iter().fold(first, faster));
        self.check_nodes()
    }

    /// Sets the link between any two devices of a node.
    #[must_use]
    pub fn with_link(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// Sets the link between each device and the host's memory, over which activations can be offloaded.
    #[must_use]
    pub fn with_host_link(mut self, link: HostLink) -> Self {
        self.host_link = Some(link);
        self
    }

    /// Sets the cores that the devices share.
    #[must_use]
    pub fn with_cores(mut self, cores: Cores) -> Self {
        self.cores = Some(cores);
        self
    }

    fn spread<T: Copy>(&self, what: &'static str, given: &[T]) -> Result<Vec<T>, MachineError> {
        match given {
            [one] => Ok(vec![*one; self.devices.len()]),
            all if all.len() == self.devices.len() => Ok(all.to_vec()),
            _ => Err(MachineError::Length {
                what,
                given: given.len(),
                devices: self.devices.len(),
            }),
        }
    }

    /// The devices of a replica, in pipeline order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The link between any two devices of a node; none if transfers take no time.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// The link between each device and the host's memory; none if nothing can be offloaded.
    pub fn host_link(&self) -> Option<HostLink> {
        self.host_link
    }

    /// The cores that the devices share; none if each has its own.
    pub fn cores(&self) -> Option<Cores> {
        self.cores
    }

    /// Number of replicas of the pipeline.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Distribution of the devices over nodes; none if all are on one.
    pub fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_checked() {
        assert!(Machine::new(0).is_err());
        assert!(Machine::new(usize::MAX).is_err());
        let machine = Machine::new(3).unwrap();
        for bad in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            assert!(machine.clone().with_speeds(&[bad]).is_err(), "{bad}");
        }
        let error = machine.with_speeds(&[1.0, 2.0]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 values of speed for 3 devices: give one for all, or one for each"
        );
    }
}
