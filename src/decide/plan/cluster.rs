//! Flags that describe a cluster, and notes on a plan for one.

use std::path::Path;

use gpipe_partitioner::machine::cluster::KnownNode;
use gpipe_partitioner::{
    AllReduce, Bytes, Card, Cluster, ClusterError, ClusterOptions, NodeKind, Plan, Profile,
    ScheduleKind, When,
};

use super::Args;
use super::shape::ShapeFlags;
use crate::names::heading::MACHINES;
use crate::titled_lines::Said;
use crate::{Failure, input};

/// A cluster, of which replicas, stages and places are chosen.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = MACHINES)]
pub(crate) struct ClusterFlags {
    /// Cluster to plan for: a file, or a node such as dgx-h100 or rtx-4090. There are dgx-a100,
    /// dgx-a100-40gb, dgx-h100, dgx-h200, dgx-b200, l40s, a100-pcie and rtx-4090. Replicas,
    /// stages and places are chosen. A ready-made node stands --nodes times; a file is as the book's
    /// cluster.toml.
    #[arg(
        long, value_name = "FILE|NODE",
        conflicts_with_all = ["devices", "per_node", "cores", "host_link", "offload", "cuda_graphs", "tree", "processes"]
    )]
    pub(super) cluster: Option<String>,
    /// Cards of each node of a cluster, instead of --devices.
    #[arg(
        long, value_name = "K", allow_negative_numbers = true, value_parser = input::at_least_one,
        conflicts_with_all = ["devices", "cores", "host_link", "offload", "cuda_graphs", "tree", "processes"]
    )]
    pub(super) per_node: Option<usize>,
    /// Devices of each replica on a cluster; chosen where not given.
    #[arg(
        long, value_name = "P", allow_negative_numbers = true, value_parser = input::at_least_one,
        conflicts_with = "devices"
    )]
    pipeline: Option<usize>,
    /// Samples of a micro-batch on a cluster; chosen where not given.
    #[arg(
        long, value_name = "B", allow_negative_numbers = true, value_parser = input::at_least_one,
        conflicts_with = "devices"
    )]
    micro_size: Option<usize>,
    /// Whether each replica on a cluster keeps only a share of the optimizer's state (ZeRO-1):
    /// never, always or auto (where memory requires it).
    #[arg(
        long, hide_short_help = true, value_name = "WHEN", default_value = "auto", value_parser = input::when,
        conflicts_with = "devices"
    )]
    shard_optimizer: When,
}

/// Returns the cluster asked for, with cards reduced to the memory that a plan may fill, and the
/// reserve of the largest card; none if devices are asked for.
pub(super) fn of(args: &Args) -> Result<Option<(Cluster, Bytes)>, Failure> {
    let usage = |error: ClusterError| Failure::Usage(error.to_string());
    let cluster = match (&args.cluster.cluster, args.cluster.per_node) {
        (Some(name), _) => Some(named(args, name)?),
        (None, _) if args.shape.is_given() => {
            let why = "the costs of a --model-shape are computed for known cards: name these with \
                       --cluster instead of --devices or --per-node, a ready-made node (rtx-4090, \
                       dgx-a100, …; --nodes N of it, --memory of each card) or a file that says \
                       what its cards compute and move";
            return Err(Failure::Usage(why.to_owned()));
        }
        (None, Some(cards)) => {
            let card = Card::default();
            let nodes = nodes(args)?;
            let kind = NodeKind { nodes, cards, card };
            let cluster = Cluster::new(vec![kind], args.spread.node_link).map_err(usage)?;
            Some(cluster.with_nic_per_card(args.spread.nic_per_device))
        }
        (None, None) => None,
    };
    let Some(mut cluster) = cluster else {
        return Ok(None);
    };
    let one = |flag: &str, given: usize| match given {
        1 => Ok(()),
        _ => Err(Failure::Usage(format!(
            "{flag}: of a cluster one value for all cards; unequal cards are described in a file \
             (--cluster cluster.toml)"
        ))),
    };
    if let Some(memory) = &args.memory {
        one("--memory", memory.len())?;
        cluster = (cluster.with_cards(|card| Card {
            memory: Some(memory[0]),
            ..card
        }))
        .map_err(usage)?;
    }
    if let Some(speed) = &args.speed {
        one("--speed", speed.len())?;
        cluster = (cluster.with_cards(|card| Card {
            speed: card.speed * speed[0],
            ..card
        }))
        .map_err(usage)?;
    }
    if let Some(all_reduce) = args.spread.all_reduce {
        cluster = cluster.with_all_reduce(all_reduce);
    }
    let cluster = match args.link {
        Some(link) => cluster.with_link_inside(link),
        None => cluster,
    };
    reserved(args, cluster).map(Some)
}

/// Subtracts the reserve of each card; for a --memory it is 0 unless asked for.
fn reserved(args: &Args, cluster: Cluster) -> Result<(Cluster, Bytes), Failure> {
    let is_card = args.memory.is_none();
    let memory = cluster.kinds().iter().filter_map(|kind| kind.card.memory);
    args.reserve.check(memory.clone().next().is_some())?;
    let each: Vec<(Bytes, Bytes)> = memory
        .map(|memory| Ok((memory, args.reserve.left(memory, is_card)?)))
        .collect::<Result<_, Failure>>()?;
    let reserve = each.iter().map(|(memory, left)| *memory - *left).max();
    let left = |memory: Bytes| memory - args.reserve.of(memory, is_card);
    let cluster = cluster.with_cards(|card| Card {
        memory: card.memory.map(left),
        ..card
    });
    let cluster = cluster.map_err(|error| Failure::Usage(error.to_string()))?;
    Ok((cluster, reserve.unwrap_or_default()))
}

/// Reads a cluster file, or looks up a ready-made node.
fn named(args: &Args, name: &str) -> Result<Cluster, Failure> {
    let wrong = |error: ClusterError| Failure::Usage(format!("--cluster: {error}"));
    let path = Path::new(name);
    if path.extension().is_some() || path.exists() {
        if args.spread.nodes.is_some() {
            let why = "--nodes: the file of --cluster says how many nodes there are";
            return Err(Failure::Usage(why.to_owned()));
        }
        return Cluster::read(path).map_err(|error| input::in_file("--cluster", path, error));
    }
    let known = KnownNode::named(name).map_err(|error| {
        wrong(error).with(
            "; other cards are described in a file: --cluster FILE.toml with cards, memory, \
             teraflops, memory_bandwidth and the links",
        )
    })?;
    let kind = known.kind(nodes(args)?);
    let link = args.spread.node_link.unwrap_or(known.link_between());
    let cluster = Cluster::new(vec![kind], Some(link)).map_err(wrong)?;
    let own = known.nic_per_card || args.spread.nic_per_device;
    let cluster = cluster.with_link_inside(known.link_inside());
    Ok(cluster.with_nic_per_card(own))
}

fn nodes(args: &Args) -> Result<usize, Failure> {
    match args.spread.nodes.as_deref() {
        None => Ok(1),
        Some([nodes]) => Ok(*nodes),
        Some(_) => Err(Failure::Usage(
            "--nodes: of a cluster their number; nodes that are not alike are described in a file \
             (--cluster cluster.toml)"
                .to_owned(),
        )),
    }
}

/// Returns the options of the search. Without a --batch there are four micro-batches of the profile's
/// size for each card.
pub(super) fn options(args: &Args, cluster: Cluster, profile: &Profile) -> ClusterOptions {
    let cluster = match profile.link().filter(|_| cluster.link_inside().is_none()) {
        Some(link) => cluster.with_link_inside(link),
        None => cluster,
    };
    let micro = args.micro.unwrap_or(4 * cluster.cards());
    let batch = args.batch.unwrap_or(micro.saturating_mul(profile.batch()));
    let mut options = ClusterOptions::new(cluster, batch);
    fix(args, &mut options);
    options
}

/// Fixes the choices that flags give.
pub(super) fn fix(args: &Args, options: &mut ClusterOptions) {
    options.replicas = args.spread.replicas;
    options.devices = args.cluster.pipeline;
    options.neighbours = args.spread.neighbours;
    options.micro_batches = args.micro;
    options.micro_batch_size = args.cluster.micro_size;
    options.schedule = Some(args.schedule).filter(|&kind| kind != ScheduleKind::Auto);
    options.chunks = args.chunks;
    options.recompute = args.recompute;
    options.shard_optimizer = args.cluster.shard_optimizer;
}

/// Returns the placement of replicas and stages, differences from `train`, and the lower bound.
pub(super) fn said(plan: &Plan, asked: &ClusterOptions, shape: &ShapeFlags) -> Vec<Said> {
    let gap = gap(plan).map(|text| Said::new("bound", text));
    // A plan from a shape is not for `train`.
    let direct = direct(plan, &asked.cluster).filter(|_| !shape.is_given());
    [placed(plan), refused(plan), direct, gap]
        .into_iter()
        .flatten()
        .collect()
}

/// Notes that `train` refuses this number of replicas; for groups of cards another note says so.
fn refused(plan: &Plan) -> Option<Said> {
    if plan.replicas.is_power_of_two() || plan.tensor_parallel > 1 {
        return None;
    }
    let fewer = plan.replicas.next_power_of_two() / 2;
    let text = format!(
        "`train` needs a power of two of replicas and refuses this plan: --replicas {fewer} plans for it"
    );
    Some(Said::new("train", text))
}

/// Notes that `train` exchanges gradients in another way than the priced one.
fn direct(plan: &Plan, cluster: &Cluster) -> Option<Said> {
    let rings = cluster.all_reduce() == AllReduce::Levels && plan.replicas > 1;
    let text = "the all-reduce is priced as NCCL's rings; `train` sends gradients directly, which \
                --all-reduce direct prices";
    rings.then(|| Said::new("rings", text))
}

/// Returns which cards are neighbours, and what replicas share.
fn placed(plan: &Plan) -> Option<Said> {
    let next = (plan.replicas > 1 && plan.devices() > 1)
        .then(|| format!("next to each other are {}", plan.neighbours.name()));
    let shared = plan
        .shard_optimizer
        .then(|| "each replica keeps its share of the optimizer's state alone (ZeRO-1)".to_owned());
    let both: Vec<String> = [next, shared].into_iter().flatten().collect();
    (!both.is_empty()).then(|| Said::new("cards", both.join("; ")))
}

/// Returns how much of the step could be saved at most.
fn gap(plan: &Plan) -> Option<String> {
    let bound = plan.lower_bound?;
    let saved = 1.0 - bound.get() / plan.step.get().max(f64::MIN_POSITIVE);
    // Differences from rounding in f64.
    Some(if saved <= 1e-9 {
        "no plan with a built-in schedule is faster: all others were tried or cannot be".to_owned()
    } else {
        format!(
            "lower bound {bound}: another plan with a built-in schedule could save at most {:.1} % of this \
             step",
            100.0 * saved
        )
    })
}
