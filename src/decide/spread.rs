//! Flags that spread devices over replicas and nodes, for all verbs that predict.

use gpipe_partitioner::{Link, Machine, Nodes};

use super::{Failure, input};

/// Replicas and nodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Spread {
    /// Replicas of the pipeline (data parallelism): devices and micro-batches are divided
    /// evenly among them, and gradients are added up over them.
    #[arg(long, value_name = "D", default_value = "1", allow_negative_numbers = true, value_parser = input::at_least_one)]
    pub(crate) replicas: usize,
    /// Nodes (hosts) that the devices are spread over in order: how many, or how many devices
    /// each has, such as 4,4.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, requires = "node_link", value_parser = input::at_least_one)]
    nodes: Option<Vec<usize>>,
    /// Link between nodes: bandwidth and latency, such as 100Gbit/s,20us.
    #[arg(long, value_name = "LINK", requires = "nodes", value_parser = input::link)]
    node_link: Option<Link>,
    /// Each device has a network card of its own; by default the devices of a node share one.
    #[arg(long, requires = "nodes")]
    nic_per_device: bool,
    /// Processes that the devices, those of all replicas, are divided among in order: what it takes
    /// them to begin a step, and to agree on it.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = input::at_least_one)]
    processes: usize,
}

impl Spread {
    /// The machine of which `devices` are all devices.
    pub(crate) fn machine(&self, devices: usize) -> Result<Machine, Failure> {
        let each = self.each(devices, "devices")?;
        let usage = |error: gpipe_partitioner::MachineError| Failure::Usage(error.to_string());
        let machine = Machine::new(each).map_err(usage)?;
        let machine = machine.with_replicas(self.replicas).map_err(usage)?;
        let machine = machine
            .with_processes(self.processes)
            .map_err(|error| Failure::Usage(format!("--processes: {error}")))?;
        let (Some(given), Some(link)) = (&self.nodes, self.node_link) else {
            return Ok(machine);
        };
        let nodes = match given.as_slice() {
            [count] => Nodes::even(*count, devices, link),
            each => Nodes::new(each.to_vec(), link),
        };
        let wrong = |why: String| Failure::Usage(format!("--nodes: {why}"));
        let nodes = nodes.map_err(|error| wrong(error.to_string()))?;
        let nodes = nodes.with_nic_per_device(self.nic_per_device);
        machine
            .with_nodes(nodes)
            .map_err(|error| wrong(error.to_string()))
    }

    /// What each replica has of so many things, named in the plural.
    pub(crate) fn each(&self, all: usize, what: &str) -> Result<usize, Failure> {
        let replicas = self.replicas;
        if replicas > all {
            return Err(Failure::Usage(format!(
                "{all} {what} are too few for {replicas} replicas (--replicas): each takes at \
                 least one"
            )));
        }
        if !all.is_multiple_of(replicas) {
            return Err(Failure::Usage(format!(
                "{all} {what} cannot be divided evenly among {replicas} replicas (--replicas): use \
                 a multiple of {replicas}"
            )));
        }
        Ok(all / replicas)
    }
}
