//! Plan as text.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Bytes, Nodes, Plan, Profile, Schedule, StageId};

use super::super::table::{Align, Table};
use super::super::{micro_batch_counts, output};
use super::runners_up::{self, Shown};

/// Returns the choices, stages, devices, and the `shown` runners-up, in `width` columns. `samples`
/// is the size of the mini-batch.
pub fn text(
    (plan, samples): (&Plan, usize),
    profile: &Profile,
    width: usize,
    shown: Shown,
) -> String {
    let mut text = output::wrapped(&headline(plan, samples), width);
    text.push_str("\n\n");
    text.push_str(&stages(plan, profile, width));
    text.push('\n');
    text.push_str(&devices(plan));
    let runners_up = runners_up::text(plan, width, shown);
    if !runners_up.is_empty() {
        text.push('\n');
        text.push_str(&runners_up);
    }
    text
}

fn headline(plan: &Plan, samples: usize) -> String {
    let chunks = match plan.chunks {
        1 => String::new(),
        chunks => format!(" x {chunks} chunks"),
    };
    let graphs = if plan.cuda_graphs {
        ", CUDA graphs"
    } else {
        ""
    };
    let (replicas, each) = match plan.replicas {
        1 => (String::new(), ""),
        replicas => (format!("{replicas} replicas of "), " each"),
    };
    let group = match plan.tensor_parallel {
        1 => String::new(),
        cards => format!(" (each a group of {cards} cards)"),
    };
    let even = plan.micro_batches * plan.micro_batch_size == samples;
    let most = if even { "" } else { "up to " };
    let nodes = plan.nodes.as_ref().map_or(1, Nodes::count);
    let nodes = match nodes {
        1 => String::new(),
        nodes => format!(" on {nodes} nodes"),
    };
    format!(
        "{}: {replicas}{}{group}{chunks}{nodes}, {}{each} of {most}{}{graphs}\n\
         step {} for {}, bubble {:.1} %, slowest stage {} (forward and backward)\n",
        plan.schedule,
        count(plan.devices(), "device"),
        count(plan.micro_batches_each(), "micro-batch"),
        count(plan.micro_batch_size, "sample"),
        plan.step,
        count(samples, "sample"),
        100.0 * plan.bubble_fraction,
        plan.bottleneck,
    )
}

fn stages(plan: &Plan, profile: &Profile, width: usize) -> String {
    let away = plan
        .computed
        .as_ref()
        .map_or_else(Vec::new, Schedule::offload_counts);
    let offloads = plan.offload.contains(&true) || away.iter().any(|&count| count > 0);
    let computed = plan.computed.as_ref();
    let single = computed.map_or_else(Vec::new, Schedule::recompute_counts);
    let mut columns = vec![
        ("stage", Align::Right),
        ("device", Align::Right),
        ("layers", Align::Right),
        ("recompute", Align::Left),
    ];
    columns.extend(offloads.then_some(("offload", Align::Left)));
    columns.push(("from .. to", Align::Left));
    let mut table = Table::new(&columns);
    for (index, device) in plan.placement.iter().enumerate() {
        let range = plan.partition.range(StageId(index));
        let name = |layer: usize| profile.layers().get(layer).map_or("", |l| l.name.as_str());
        let first = name(range.start);
        let last = name(range.end.saturating_sub(1));
        let cell = |list: &[bool], single: &[usize]| {
            let single = single.get(index).copied().unwrap_or(0);
            micro_batch_counts::cell(list[index], single, plan.micro_batches_each())
        };
        let mut row = vec![
            index.to_string(),
            device.to_string(),
            range.len().to_string(),
            cell(&plan.recompute, &single),
        ];
        row.extend(offloads.then(|| cell(&plan.offload, &away)));
        row.push(if range.len() < 2 {
            first.to_owned()
        } else {
            format!("{first} .. {last}")
        });
        table.row(row);
    }
    table.render_within(width)
}

/// Returns the peaks of memory; for groups of cards, per card.
fn devices(plan: &Plan) -> String {
    let peak = match plan.tensor_parallel {
        1 => "peak memory",
        _ => "peak memory of each card",
    };
    let mut table = Table::new(&[("device", Align::Right), (peak, Align::Right)]);
    for (device, peak) in plan.peak_bytes.iter().enumerate() {
        let each = peak.get().div_ceil(plan.tensor_parallel as u64);
        table.row([device.to_string(), Bytes(each).to_string()]);
    }
    table.render()
}
