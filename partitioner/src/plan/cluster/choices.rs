//! All choices except the cut: layouts, micro-batches, schedules.

use std::collections::HashMap;

use super::ClusterOptions;
use super::estimate::{Estimated, LayoutNumbers};
use super::numbers::{Backward, SizeCosts, total};
use crate::builtin::ScheduleKind;
use crate::machine::cluster::Layout;
use crate::plan::options::MAX_MICRO;
use crate::profile::Profile;
use crate::schedule::{MAX_CELLS, Shape};
use crate::solve::When;

/// Most stages per device that are tried if not asked for.
const MAX_CHUNKS: usize = 4;
/// For a replica with at most this many samples every size of micro-batch is tried, else sizes that
/// are a power of two or one and a half of one.
const ALL_SIZES: usize = 16;
/// If there are many choices, those estimated to take this many times as long as the best are
/// dropped.
const HOPELESS: f64 = 1.5;
/// With at most this many choices none is dropped.
const FEW: usize = 10_000;
/// Most choices that are kept.
const KEPT: usize = 4_000;

/// A choice, with an estimate and a lower bound of its step, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// Index of the layout.
    pub(super) layout: usize,
    pub(super) kind: ScheduleKind,
    /// Per replica.
    pub(super) shape: Shape,
    /// Samples in a micro-batch.
    pub(super) size: usize,
    pub(super) estimate: f64,
}

impl Choice {
    /// Whether each replica is one device with one stage, under the simplest schedule.
    pub(super) fn is_plain(&self) -> bool {
        self.shape.stages() == 1 && self.kind == ScheduleKind::OneFOneB
    }
}

/// All choices worth a trial, by their estimates.
#[derive(Debug)]
pub(super) struct Choices {
    pub(super) layouts: Vec<Layout>,
    pub(super) sizes: HashMap<usize, SizeCosts>,
    pub(super) kept: Vec<Choice>,
    /// Lower bound of all dropped choices, in microseconds.
    pub(super) dropped: f64,
    /// Reason if there is no choice.
    pub(super) reason: String,
}

impl Choices {
    /// # Complexity
    /// Linear in layouts, sizes of micro-batches and schedules, with a few dozen operations
    /// each.
    pub(super) fn new(profile: &Profile, options: &ClusterOptions) -> Self {
        let layers = profile.layers().len();
        let mut layouts = options.cluster.layouts(layers, options.replicas);
        layouts.retain(|own| {
            let devices = options.devices.is_none_or(|p| p == own.devices);
            let neighbours = options.neighbours.is_none_or(|n| n == own.neighbours);
            // The tree of gradient sums has one equal branch per replica.
            let tree = !options.tree || own.replicas.is_power_of_two();
            // Without a choice of neighbours either value is right.
            devices && tree && (neighbours || !own.has_choice_of_neighbours())
        });
        let mut choices = Self {
            layouts: Vec::new(),
            sizes: HashMap::new(),
            kept: Vec::new(),
            dropped: f64::INFINITY,
            reason: "every stage needs a layer, and each replica a micro-batch".to_owned(),
        };
        let mut best = f64::INFINITY;
        for (index, layout) in layouts.iter().enumerate() {
            choices.add(profile, options, (index, layout), &mut best);
        }
        choices.layouts = layouts;
        if choices.kept.len() > FEW {
            choices.thin(options);
        }
        let order = |a: &Choice, b: &Choice| a.estimate.total_cmp(&b.estimate);
        choices.kept.sort_by(order);
        choices
    }

    fn add(
        &mut self,
        profile: &Profile,
        options: &ClusterOptions,
        (index, layout): (usize, &Layout),
        best: &mut f64,
    ) {
        let numbers = LayoutNumbers::new(&options.cluster, layout);
        let layers = profile.layers().len();
        let fastest = fastest(options);
        if self.kept.len() >= 2 * FEW {
            self.thin(options);
        }
        let fewest = profile.fewest_samples();
        for (micro, size) in micro_batches(options, layout.replicas, fewest) {
            let costs = (self.sizes.entry(size))
                .or_insert_with(|| SizeCosts::new(profile, size, options.recompute));
            // Least work of all cards: a bound of every choice of this size.
            let work = total(&costs.work(Backward::Halves).all);
            let least = micro as f64 * work / (fastest * layout.devices as f64);
            if least > *best * HOPELESS && self.kept.len() > FEW {
                self.dropped = self.dropped.min(least);
                continue;
            }
            for (kind, chunks) in schedules(options, layout.devices, layers) {
                let shape = Shape::new(layout.devices, micro).with_chunks(chunks);
                if shape.stages() * micro > MAX_CELLS {
                    self.dropped = self.dropped.min(least);
                    continue;
                }
                let estimate = Estimated {
                    cluster: &options.cluster,
                    layout,
                    numbers: &numbers,
                    costs,
                    kind,
                    shape,
                    recompute: options.recompute,
                    copies: 2.0 + options.state(layout.replicas),
                };
                let estimate = estimate.step();
                *best = best.min(estimate);
                if self.kept.len() > FEW && estimate > *best * HOPELESS {
                    self.dropped = self.dropped.min(least);
                    continue;
                }
                self.kept.push(Choice {
                    layout: index,
                    kind,
                    shape,
                    size,
                    estimate,
                });
            }
        }
    }

    /// Drops choices that are far behind.
    fn thin(&mut self, options: &ClusterOptions) {
        self.kept.sort_by(|a, b| a.estimate.total_cmp(&b.estimate));
        for choice in self.kept.drain(KEPT.min(self.kept.len())..) {
            let costs = &self.sizes[&choice.size];
            let work = total(&costs.work(Backward::Halves).all);
            let shape = choice.shape;
            let least = shape.micro_batches as f64 * work / shape.devices as f64;
            self.dropped = self.dropped.min(least / fastest(options));
        }
    }
}

impl ClusterOptions {
    /// Bytes of optimizer state of each replica per byte of parameters, shared as far as permitted.
    pub(super) fn state(&self, replicas: usize) -> f64 {
        match self.shard_optimizer {
            When::Never => self.optimizer_state,
            _ => self.optimizer_state / replicas as f64,
        }
    }
}

/// The speed of the fastest card.
fn fastest(options: &ClusterOptions) -> f64 {
    let speeds = options.cluster.kinds().iter().map(|kind| kind.card.speed);
    speeds.fold(0.0, f64::max)
}

/// Returns the numbers of micro-batches of a replica with their sizes in samples, each choice once.
/// Every micro-batch has at least `fewest` samples.
fn micro_batches(options: &ClusterOptions, replicas: usize, fewest: usize) -> Vec<(usize, usize)> {
    let batch = options.batch;
    let size_of = |micro: usize| batch.div_ceil(micro * replicas);
    if let Some(all) = options.micro_batches {
        let fits = all.is_multiple_of(replicas);
        let micro = all / replicas;
        let size = if fits { size_of(micro) } else { 0 };
        let asked = options.micro_batch_size.is_none_or(|own| own == size);
        return (fits && asked)
            .then_some((micro, size))
            .into_iter()
            .collect();
    }
    let samples = batch.div_ceil(replicas);
    let sizes: Vec<usize> = match options.micro_batch_size {
        Some(size) => vec![size],
        None if samples <= ALL_SIZES => (1..=samples).collect(),
        None => {
            let powers = (0..usize::BITS - 1).map(|power| 1_usize << power);
            let sizes = powers.flat_map(|size| [size, size + size / 2]);
            sizes.take_while(|&size| size <= samples).collect()
        }
    };
    let mut found: Vec<(usize, usize)> = Vec::new();
    for size in sizes {
        let micro = samples.div_ceil(size);
        let all = micro * replicas;
        let own = (micro, size_of(micro));
        if all <= (batch / fewest).min(MAX_MICRO) && !found.contains(&own) {
            found.push(own);
        }
    }
    found
}

/// Returns the schedules to try, each with its numbers of stages per device.
fn schedules(
    options: &ClusterOptions,
    devices: usize,
    layers: usize,
) -> impl Iterator<Item = (ScheduleKind, usize)> + '_ {
    let chunks = (1..=MAX_CHUNKS).filter(move |v| v * devices <= layers);
    let chunks = chunks.filter(|v| options.chunks.is_none_or(|own| own == *v));
    let asked = options.chunks.filter(|own| *own > MAX_CHUNKS);
    let asked = asked.filter(|own| own.saturating_mul(devices) <= layers);
    let kinds = move |v| {
        let all = ScheduleKind::ALL.into_iter();
        all.filter(move |kind| match options.schedule {
            Some(own) => own == *kind,
            None => kind.trains() && *kind != ScheduleKind::Auto && can(*kind, v),
        })
    };
    let chunks = chunks.chain(asked);
    chunks.flat_map(move |v| kinds(v).map(move |kind| (kind, v)))
}

/// Whether a schedule can have that many chunks.
fn can(kind: ScheduleKind, chunks: usize) -> bool {
    use ScheduleKind::{Interleaved1F1B, InterleavedZb, LoopedBfs};
    let any = matches!(kind, Interleaved1F1B | LoopedBfs | InterleavedZb);
    any || kind.default_chunks() == chunks
}
