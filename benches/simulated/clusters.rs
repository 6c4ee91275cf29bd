//! The chosen plan for a cluster of two nodes, against its runners-up.

use anyhow::{Context as _, Result};
use gpipe::models::Gpt;
use gpipe::partitioner::{
    AllReduce, Alternative, Bytes, Card, Cluster, ClusterOptions, Link, Micros, Neighbours,
    NodeKind, Plan, When, plan_cluster,
};
use gpipe::profile::Profiled;
use gpipe::tch::Device;
use serde_json::{Value, json};

use super::job::{GPT_1B3, Job, MEMORY};
use super::report_support::Report;

/// 7.6 billion parameters: too many for one card.
const ON_EIGHT: Job = Job {
    model: Gpt {
        d_model: 6144,
        heads: 48,
        blocks: 16,
        ..GPT_1B3
    },
    devices: 8,
    samples: 2,
    micro_batches: 32,
    large: true,
};

/// 13 billion parameters.
const ON_SIXTEEN: Job = Job {
    model: Gpt {
        d_model: 8192,
        heads: 64,
        blocks: 16,
        ..GPT_1B3
    },
    devices: 16,
    samples: 2,
    micro_batches: 64,
    large: true,
};

/// Runners-up that are measured.
const RUNNERS_UP: usize = 4;

pub(crate) fn eight_cards() -> Result<Value> {
    measure(&ON_EIGHT)
}

pub(crate) fn sixteen_cards() -> Result<Value> {
    measure(&ON_SIXTEEN)
}

fn measure(job: &Job) -> Result<Value> {
    let measured = job.profile()?;
    let options = options(job, &measured)?;
    let (chosen, _) = plan_cluster(&measured.profile, &options)?;
    let mut rows = vec![planned(job, &chosen)?];
    let named = chosen.alternatives.iter().filter(|own| own.step.is_some());
    for other in named.take(RUNNERS_UP) {
        let (plan, _) = plan_cluster(&measured.profile, &alone(&options, other))?;
        rows.push(planned(job, &plan)?);
    }
    let bound = chosen.lower_bound.context("a plan without a bound")?;
    Ok(json!({"bound_ms": bound.get() / 1e3, "rows": rows}))
}

/// Two nodes with the device links of `job::two_nodes`. Replicas exchange gradients within the step, as this
/// library does.
fn options(job: &Job, measured: &Profiled) -> Result<ClusterOptions> {
    let card = Card {
        memory: Some(MEMORY),
        ..Card::default()
    };
    let nodes = NodeKind {
        nodes: 2,
        cards: job.devices / 2,
        card,
    };
    let between = Link::new(Bytes(25_000_000_000), Micros::new(20.0)?)?;
    let inside = measured.profile.link().context("no link was measured")?;
    let cluster = Cluster::new(vec![nodes], Some(between))?
        .with_link_inside(inside)
        .with_all_reduce(AllReduce::Direct);
    let samples = usize::try_from(job.samples)?;
    let mut options = ClusterOptions::new(cluster, job.micro_batches * samples);
    options.micro_batch_size = Some(samples);
    options.shard_optimizer = When::Never;
    Ok(options)
}

/// The options of one alternative, with only cuts and recomputation left to choose.
fn alone(options: &ClusterOptions, other: &Alternative) -> ClusterOptions {
    let mut options = options.clone();
    options.replicas = Some(other.replicas);
    options.devices = Some(other.devices);
    options.neighbours = Some(other.neighbours);
    options.micro_batches = Some(other.micro_batches);
    options.schedule = Some(other.schedule);
    options.chunks = Some(other.chunks);
    options
}

/// Maps the device list, in which the replicas of a stage are adjacent, to cards.
fn cards(plan: &Plan) -> Vec<Device> {
    let (stages, replicas) = (plan.devices(), plan.replicas);
    let card = |entry: usize| match plan.neighbours {
        Neighbours::Replicas => entry,
        Neighbours::Stages => entry % replicas * stages + entry / replicas,
    };
    let entries = 0..stages * replicas;
    entries.map(|entry| Device::Cuda(card(entry))).collect()
}

fn planned(job: &Job, plan: &Plan) -> Result<Value> {
    let builder = job.builder().devices(&cards(plan)).plan(plan)?;
    let ran = job.run(builder)?;
    let row = json!({
        "replicas": plan.replicas,
        "devices": plan.devices(),
        "chunks": plan.chunks,
        "schedule": plan.schedule.name(),
        "neighbours": plan.neighbours.name(),
        "recomputing": plan.recompute.iter().filter(|yes| **yes).count(),
        "predicted_ms": plan.step.get() / 1e3,
        "measured_ms": ran.makespan / 1e3,
        "own_times_ms": ran.own / 1e3,
        "host_share": ran.host_share,
    });
    eprintln!("{row}");
    Ok(row)
}

pub(crate) fn claims(report: &mut Report, name: &str, measured: &Value) {
    let number = |row: &Value, what: &str| row[what].as_f64().unwrap_or(f64::NAN);
    let rows = measured["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let Some((chosen, others)) = rows.split_first() else {
        return;
    };
    let off = number(chosen, "measured_ms") / number(chosen, "predicted_ms") - 1.0;
    let what = format!("{name}, the chosen plan: measured from predicted step");
    report.at_most(what, 100.0 * off.abs(), 10.0, "%");
    for other in others {
        let text = |what: &str| other[what].as_str().unwrap_or_default();
        let (d, p) = (number(other, "replicas"), number(other, "devices"));
        let schedule = text("schedule");
        report.at_most(
            format!("{name}, the chosen plan over {schedule} with {d} replicas of {p}: steps"),
            number(chosen, "measured_ms") / number(other, "measured_ms"),
            1.03,
            "",
        );
    }
}
