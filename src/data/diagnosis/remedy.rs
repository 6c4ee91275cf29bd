//! What can be changed, and what a batch would take then.

use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::measures::InputMeasures;
use super::model::Model;
use super::phase::Phase;

/// Something that can be changed about loading, or beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Change {
    /// So many workers.
    Workers(usize),
    /// So many batches ahead.
    Prefetch(usize),
    /// A cache behind what is read, decoded and mapped.
    Cache,
    /// So many intra-op threads for the training, of each stage where it has several: the others'
    /// cores are the workers' then.
    IntraOp(usize),
    /// Narrow numbers up to the batch, such as bytes, which become floats in the first stage.
    NarrowTypes,
    /// Half of the work of a phase.
    Cheaper(Phase),
    /// Half of what a phase waits for: a faster disk, larger reads.
    Faster(Phase),
}

/// A change and what it would bring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// What to change.
    pub change: Change,
    /// Milliseconds from a batch to the next that are predicted with it.
    pub period_ms: f64,
    /// How many times as fast that is.
    pub speedup: f64,
}

/// Less than this is not worth a change.
const LEAST: f64 = 1.03;
/// A change has to be so much better than an easier one before it.
const BETTER: f64 = 1.05;
/// The most workers that are advised for work that needs cores, by core, and at all.
const MOST_WORKERS: usize = 64;
/// What a batch of bytes takes of what one of floats does.
const NARROW: f64 = 0.25;
/// What a read from a cache in memory takes of what the phases before it did, at most.
const CACHED: f64 = 0.02;
/// The share of the free memory that a cache may take.
const ROOM: f64 = 0.5;

/// What there is to be done, the best first; what halves something, which nobody knows how to do,
/// comes last.
pub(super) fn remedies(measures: &InputMeasures, limit: Limit) -> Vec<Remedy> {
    let now = Model::of(measures);
    let remedy = |(change, model): (Change, Model)| {
        let speedup = now.period() / model.period().max(f64::MIN_POSITIVE);
        Remedy {
            change,
            period_ms: measures.period_ms / speedup,
            speedup,
        }
    };
    let worth = |own: &Remedy| own.speedup.is_finite() && own.speedup >= LEAST;
    let changes = changes(measures, limit, &now).into_iter();
    let mut all: Vec<Remedy> = changes.map(remedy).filter(worth).collect();
    if limit == Limit::Uneven {
        all.insert(0, evened(measures, &now));
    }
    // An easier change stays before one that is hardly better.
    for place in 1..all.len() {
        let mut at = place;
        while at > 0 && all[at].speedup > BETTER * all[at - 1].speedup {
            all.swap(at, at - 1);
            at -= 1;
        }
    }
    all.extend(halved(limit, &now).map(remedy).filter(worth));
    all
}

/// What fits the limit, the easiest first.
fn changes(measures: &InputMeasures, limit: Limit, now: &Model) -> Vec<(Change, Model)> {
    let mut all = Vec::new();
    let waits = matches!(limit, Limit::Io(_) | Limit::Cpu(_) | Limit::Uneven);
    if waits && limit.phase() != Some(Phase::Copy) {
        all.extend(more_workers(measures, limit, now));
    }
    if matches!(limit, Limit::Contended(_) | Limit::Cpu(_)) {
        all.extend(fewer_threads(measures, now));
    }
    let before = [Phase::Read, Phase::Decode, Phase::Map];
    if limit.phase().is_some_and(|own| before.contains(&own)) && fits(measures) {
        all.push((Change::Cache, now.scaled(&before, CACHED)));
    }
    let batches = [Phase::Stack, Phase::Copy];
    let works = !matches!(limit, Limit::Io(_)) || limit == Limit::Io(Phase::Copy);
    if works && limit.phase().is_some_and(|own| batches.contains(&own)) {
        all.push((Change::NarrowTypes, now.scaled(&batches, NARROW)));
    }
    all
}

/// As few workers as bring nearly all that more would: at most as many as there are cores, unless
/// they wait for something else.
fn more_workers(measures: &InputMeasures, limit: Limit, now: &Model) -> Option<(Change, Model)> {
    let most = match limit {
        Limit::Io(_) => MOST_WORKERS,
        _ => measures.cores,
    };
    let with = |workers| Model {
        workers,
        ..now.clone()
    };
    let best = with(most.max(now.workers)).period();
    let mut more = now.workers + 1..=most;
    let workers = more.find(|workers| with(*workers).period() <= best * LEAST)?;
    Some((Change::Workers(workers), with(workers)))
}

/// Fewer intra-op threads, whose cores the loader gets.
fn fewer_threads(measures: &InputMeasures, now: &Model) -> Option<(Change, Model)> {
    let threads = measures.intra_op;
    let stages = (measures.training_cpu_ms / now.alone.max(f64::MIN_POSITIVE) / threads as f64)
        .round()
        .max(1.0);
    let with = |fewer: usize| {
        let left = now.cores - stages * fewer as f64;
        let loader = measures.loader_cores();
        let mut other = now.clone();
        // At worst the training is as much slower as it has fewer of them.
        other.alone *= threads as f64 / fewer as f64;
        if left >= loader.min(1.0) {
            other.slowed = 0.0;
        }
        other
    };
    let all = (1..threads).map(|fewer| (Change::IntraOp(fewer), with(fewer)));
    all.min_by(|(_, a), (_, b)| a.period().total_cmp(&b.period()))
}

/// Whether an epoch comes again, and memory can hold it.
fn fits(measures: &InputMeasures) -> bool {
    let Some(bytes) = measures.epoch_bytes else {
        return false;
    };
    let free = measures.free_bytes.unwrap_or(u64::MAX);
    bytes as f64 <= ROOM * free as f64
}

/// Twice as many batches ahead: what comes unevenly then comes in time, at most.
fn evened(measures: &InputMeasures, now: &Model) -> Remedy {
    let period_ms = now.period().min(measures.period_ms);
    Remedy {
        change: Change::Prefetch(measures.prefetch.saturating_mul(4).max(4)),
        period_ms,
        speedup: measures.period_ms / period_ms.max(f64::MIN_POSITIVE),
    }
}

/// Half of what limits.
fn halved(limit: Limit, now: &Model) -> impl Iterator<Item = (Change, Model)> {
    let mut other = now.clone();
    let change = match limit {
        Limit::Io(phase) => {
            other.idle[phase as usize] /= 2.0;
            Some(Change::Faster(phase))
        }
        Limit::Cpu(phase) | Limit::Contended(phase) => {
            other.work[phase as usize] /= 2.0;
            Some(Change::Cheaper(phase))
        }
        Limit::Uneven | Limit::Compute => None,
    };
    change.map(|change| (change, other)).into_iter()
}
