//! Possible changes, and their predicted effect.

use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::measures::InputMeasures;
use super::model::Model;
use super::phase::Phase;

/// A change to loading or training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Change {
    /// This number of workers.
    Workers(usize),
    /// This number of prefetched batches.
    Prefetch(usize),
    /// A cache after reading, decoding and mapping.
    Cache,
    /// This number of intra-op threads for training, per stage if there are several; the workers get
    /// the other cores.
    IntraOp(usize),
    /// Narrow types in batches, such as bytes, converted to floats in the first stage.
    NarrowTypes,
    /// Half the work of a phase.
    Cheaper(Phase),
    /// Half the waiting time of a phase: a faster disk, larger reads.
    Faster(Phase),
}

/// A change and its predicted effect.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// The change.
    pub change: Change,
    /// Predicted milliseconds per batch.
    pub period_ms: f64,
    /// Predicted speedup.
    pub speedup: f64,
}

/// Smallest speedup worth a change.
const LEAST: f64 = 1.03;
/// Factor by which a change must beat an easier one to be listed before it.
const BETTER: f64 = 1.05;
/// Upper bound of the number of workers advised.
const MOST_WORKERS: usize = 64;
/// Relative cost of a batch of bytes, compared to floats.
const NARROW: f64 = 0.25;
/// Upper bound of the relative cost of reading from a memory cache, compared to the phases that it
/// replaces.
const CACHED: f64 = 0.02;
/// Share of the free memory that a cache may use.
const ROOM: f64 = 0.5;

/// Returns remedies, best first; those that halve a cost come last, as nobody knows how to do that.
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
    // Keep easier changes before others that are hardly better.
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

/// Returns changes that address the limit, easiest first.
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

/// Returns the fewest workers with nearly the full effect: at most one per core, unless they wait for
/// something else.
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

/// Suggests fewer intra-op threads, to leave cores to the loader.
fn fewer_threads(measures: &InputMeasures, now: &Model) -> Option<(Change, Model)> {
    let threads = measures.intra_op;
    let stages = (measures.training_cpu_ms / now.alone.max(f64::MIN_POSITIVE) / threads as f64)
        .round()
        .max(1.0);
    let with = |fewer: usize| {
        let left = now.cores - stages * fewer as f64;
        let loader = measures.loader_cores();
        let mut other = now.clone();
        // At worst, training slows down in proportion.
        other.alone *= threads as f64 / fewer as f64;
        if left >= loader.min(1.0) {
            other.slowed = 0.0;
        }
        other
    };
    let all = (1..threads).map(|fewer| (Change::IntraOp(fewer), with(fewer)));
    all.min_by(|(_, a), (_, b)| a.period().total_cmp(&b.period()))
}

/// Whether the epoch is repeated and fits into memory.
fn fits(measures: &InputMeasures) -> bool {
    let Some(bytes) = measures.epoch_bytes else {
        return false;
    };
    let free = measures.free_bytes.unwrap_or(u64::MAX);
    bytes as f64 <= ROOM * free as f64
}

/// Suggests four times as many prefetched batches, which at best hides all unevenness.
fn evened(measures: &InputMeasures, now: &Model) -> Remedy {
    let period_ms = now.period().min(measures.period_ms);
    Remedy {
        change: Change::Prefetch(measures.prefetch.saturating_mul(4).max(4)),
        period_ms,
        speedup: measures.period_ms / period_ms.max(f64::MIN_POSITIVE),
    }
}

/// Suggests halving the limiting cost.
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
