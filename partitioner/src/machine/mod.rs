//! The devices that a pipeline is to run on, and the links between them.

pub mod cluster;
mod nodes;
mod processes;
mod replicas;
mod way;

pub use nodes::{Nodes, NodesError};
pub use processes::VOTES;
pub use replicas::{AllReduce, Neighbours};
pub(crate) use way::Way;

use crate::cores::{Cores, CoresError};
use crate::cost::{HostLink, Link};
use crate::ids::DeviceId;
use crate::units::Bytes;

/// The most devices of a machine.
pub const MAX_DEVICES: usize = 1 << 14;
/// The slowest and the fastest device, relative to the profiled one.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// How fast it is, relative to the device that was profiled.
    pub speed: f64,
    /// Its memory; none for no limit.
    pub memory: Option<Bytes>,
}

/// Why devices cannot be described this way.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// No device, or too many.
    #[error("{devices} devices: there must be from 1 to {MAX_DEVICES}")]
    Devices {
        /// The number that was asked for.
        devices: usize,
    },
    /// A list with neither one entry nor one per device.
    #[error("{given} values of {what} for {devices} devices: give one for all, or one for each")]
    Length {
        /// What the list holds.
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
        "{replicas} replicas of {devices} devices: there must be from 1 to {MAX_DEVICES} in all"
    )]
    Replicas {
        /// Replicas asked for.
        replicas: usize,
        /// The devices of each.
        devices: usize,
    },
    /// Nodes with another number of devices.
    #[error("the nodes have {given} devices, and there are {devices}")]
    NodeDevices {
        /// Devices of all nodes.
        given: usize,
        /// Devices in all.
        devices: usize,
    },
    /// Devices that cannot be divided among the processes.
    #[error("{processes} processes for {devices} devices: each must have as many devices")]
    Processes {
        /// Processes asked for.
        processes: usize,
        /// Devices of all replicas.
        devices: usize,
    },
    /// Stages that are neighbours, on nodes where replicas would not be alike.
    #[error(
        "replicas of {devices} devices do not lie alike on nodes of {each}: where stages are \
         neighbours one must be a multiple of the other"
    )]
    Neighbours {
        /// Devices of a replica.
        devices: usize,
        /// Devices of a node; 0 where nodes have unequal numbers.
        each: usize,
    },
    /// Nodes that cannot be.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// No core, or devices without a thread.
    #[error(transparent)]
    Cores(#[from] CoresError),
}

/// Devices in pipeline order, and the links between them.
///
/// The pipeline can be there several times (data parallelism): see
/// [`with_replicas`](Self::with_replicas). What is said of a device is then said of its place in
/// every replica.
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
    /// `devices` devices as fast as the profiled one, without memory limit, with free links.
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

    /// The same with the whole pipeline `replicas` times, each on as many devices. With p
    /// devices there are `replicas · p` in all, in the order that
    /// [`with_neighbours`](Self::with_neighbours) says: by default device i of replica r is number
    /// `i · replicas + r`.
    ///
    /// # Errors
    /// [`MachineError::Replicas`]; [`MachineError::NodeDevices`] and [`MachineError::Processes`]
    /// where nodes or processes were given before.
    pub fn with_replicas(mut self, replicas: usize) -> Result<Self, MachineError> {
        let devices = self.devices.len();
        if !(1..=MAX_DEVICES / devices).contains(&replicas) {
            return Err(MachineError::Replicas { replicas, devices });
        }
        self.replicas = replicas;
        self.check_nodes()
    }

    /// The same with all devices, those of every replica, spread over nodes in order; the link
    /// of [`with_link`](Self::with_link) is then that within a node.
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

    /// The same with these speeds: one for all devices, or one for each.
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

    /// The same with these memory limits: one for all devices, or one for each.
    pub fn with_memory(mut self, memory: &[Bytes]) -> Result<Self, MachineError> {
        for (device, bytes) in self.spread("memory", memory)?.into_iter().enumerate() {
            self.devices[device].memory = Some(bytes);
        }
        Ok(self)
    }

    /// The same with devices that have as much memory as is asked for.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        for device in &mut self.devices {
            device.memory = None;
        }
        self
    }

    /// The same with so much more memory on each device that has a limit.
    pub(crate) fn with_more_memory(mut self, more: Bytes) -> Self {
        for device in &mut self.devices {
            device.memory = device.memory.map(|own| own + more);
        }
        self
    }

    /// The same with one more device in each replica, like the fastest (of equals the first), behind
    /// the others.
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

    /// The same with this link between any two devices of a node.
    #[must_use]
    pub fn with_link(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// The same with this link between each device and the host's memory, over which
    /// activations can be offloaded.
    #[must_use]
    pub fn with_host_link(mut self, link: HostLink) -> Self {
        self.host_link = Some(link);
        self
    }

    /// The same with devices that share these cores.
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

    /// The link between any two devices of a node; none where transfers take no time.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// The link between each device and the host's memory; none where nothing can be
    /// offloaded.
    pub fn host_link(&self) -> Option<HostLink> {
        self.host_link
    }

    /// The cores that the devices share; none where each has its own.
    pub fn cores(&self) -> Option<Cores> {
        self.cores
    }

    /// How many times the pipeline is there.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// How the devices are spread over nodes; none where all are on one.
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
