//! Flags that spread devices over replicas and nodes, for all verbs that predict.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{AllReduce, Link, Machine, Neighbours, Nodes};

use super::names::heading::MACHINES;
use super::{Failure, input};

/// Replicas and nodes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = MACHINES)]
pub(crate) struct ReplicaNodeFlags {
    /// Replicas of the pipeline (data parallelism). Devices and micro-batches are divided evenly among
    /// them, and gradients are added up over them; by default 1, or, on a cluster, chosen.
    #[arg(long, value_name = "D", allow_negative_numbers = true, value_parser = input::at_least_one)]
    pub(crate) replicas: Option<usize>,
    /// Nodes (hosts), or the devices of each, such as 4,4. Devices are spread over them in order.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = input::at_least_one)]
    pub(crate) nodes: Option<Vec<usize>>,
    /// Link between nodes: bandwidth and latency, such as 100Gbit/s,20us.
    #[arg(long, visible_alias = "link-between", value_name = "LINK", requires = "nodes", value_parser = input::link)]
    pub(crate) node_link: Option<Link>,
    /// Each device has a network card of its own; by default the devices of a node share one.
    #[arg(long, hide_short_help = true, requires = "nodes")]
    pub(crate) nic_per_device: bool,
    /// Which devices are neighbours, if there are several replicas: replicas of a stage or stages
    /// of a replica; by default replicas, or, on a cluster, chosen.
    #[arg(long, hide_short_help = true, value_name = "WHICH", value_parser = input::neighbours)]
    pub(crate) neighbours: Option<Neighbours>,
    /// How replicas add up their gradients: direct or levels. Each with each, as in `train`, or rings
    /// within nodes and between them, as in NCCL; by default direct, on a cluster levels.
    #[arg(long, hide_short_help = true, value_name = "HOW", value_parser = input::all_reduce)]
    pub(crate) all_reduce: Option<AllReduce>,
    /// Processes that share the devices in order; the time that they
    /// take to begin a step and to agree on it is then included.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = input::at_least_one)]
    processes: usize,
}

impl ReplicaNodeFlags {
    /// Returns the machine for `devices` devices in all.
    pub(crate) fn machine(&self, devices: usize) -> Result<Machine, Failure> {
        let each = self.each(devices, "devices")?;
        let usage = |error: gpipe_partitioner::MachineError| Failure::Usage(error.to_string());
        let machine = Machine::new(each).map_err(usage)?;
        let machine = machine.with_replicas(self.replicas()).map_err(usage)?;
        let machine = match self.all_reduce {
            Some(all_reduce) => machine.with_all_reduce(all_reduce),
            None => machine,
        };
        let machine = machine
            .with_processes(self.processes)
            .map_err(|error| Failure::Usage(format!("--processes: {error}")))?;
        let neighbours = self.neighbours.unwrap_or_default();
        let placed = |machine: Machine| {
            let placed = machine.with_neighbours(neighbours);
            placed.map_err(|error| Failure::Usage(format!("--neighbours: {error}")))
        };
        let Some(given) = &self.nodes else {
            return placed(machine);
        };
        let Some(link) = self.node_link else {
            let why = "--nodes needs the link between nodes: --node-link <LINK>";
            return Err(Failure::Usage(why.to_owned()));
        };
        let nodes = match given.as_slice() {
            [count] => Nodes::even(*count, devices, link),
            each => Nodes::new(each.to_vec(), link),
        };
        let wrong = |why: String| Failure::Usage(format!("--nodes: {why}"));
        let nodes = nodes.map_err(|error| wrong(error.to_string()))?;
        let nodes = nodes.with_nic_per_device(self.nic_per_device);
        let machine = machine.with_nodes(nodes);
        placed(machine.map_err(|error| wrong(error.to_string()))?)
    }

    /// Number of replicas of the pipeline.
    fn replicas(&self) -> usize {
        self.replicas.unwrap_or(1)
    }

    /// Returns each replica's share of `all` things; `what` names them in the plural.
    pub(crate) fn each(&self, all: usize, what: &str) -> Result<usize, Failure> {
        let replicas = self.replicas();
        if replicas > all {
            return Err(Failure::Usage(format!(
                "{all} {what} are too few for {replicas} (--replicas): each takes at \
                 least one",
                replicas = count(replicas, "replica")
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
