//! What speaks against the numbers, and what to do about it.

use std::fmt;
use std::time::Duration;

use gpipe_partitioner::Kind;

use super::measure::{LayerSeries, doubt};

/// A quartile distance beyond this share of the median is noise.
const NOISY: f64 = 0.15;
/// Layers of a smaller share of the whole do not matter.
const MATTERS: f64 = 0.03;
/// The last third of the measurements against the first.
const DRIFT: f64 = 1.05;
/// Other programs use more than this share of the cores.
const BUSY: f64 = 0.25;
/// How long is looked at what they use.
const LOOK: Duration = Duration::from_millis(300);
/// The first run against the median.
const SLOW_START: f64 = 5.0;

/// A reason not to trust a profile, with advice; the text is its `Display`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Doubt {
    /// Other programs use the machine.
    Busy {
        /// Cores that they used, right before measuring.
        used: f64,
        /// Cores of the machine.
        cores: usize,
    },
    /// Time was up before the numbers were as sure as asked for.
    Unsure {
        /// Half of the 95 % interval of a micro-batch's time, as a share of it.
        reached: f64,
        /// What was asked for.
        wanted: f64,
    },
    /// A layer's durations differ.
    Noisy {
        /// The layer.
        layer: String,
        /// Distance of the quartiles over the median.
        spread: f64,
    },
    /// Everything became slower (or faster) while it was measured.
    Drift {
        /// The last third of the measurements over the first.
        factor: f64,
    },
    /// The first runs took much longer than the others.
    SlowStart {
        /// The layer where it was worst.
        layer: String,
        /// The first run over the median.
        factor: f64,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { used, cores } => write!(
                f,
                "the machine was busy before ({used:.1} of {cores} cores): times are too long; \
                 stop other programs and measure again"
            ),
            Self::Unsure { reached, .. } if !reached.is_finite() => write!(
                f,
                "too few repeats to say how sure the times are: measure without --quick or with \
                 more time"
            ),
            Self::Unsure { reached, wanted } => write!(
                f,
                "times are sure to {:.1} % only, not to {:.1} %: give it more time or a quieter \
                 machine",
                reached * 100.0,
                wanted * 100.0
            ),
            Self::Noisy { layer, spread } => write!(
                f,
                "layer `{layer}` is noisy (its quartiles are {:.0} % apart): stop other programs, \
                 or fix the clock rate",
                spread * 100.0
            ),
            Self::Drift { factor } if *factor > 1.0 => write!(
                f,
                "the machine became {:.0} % slower while it measured (heat, or other programs): \
                 let it cool down and measure again",
                (factor - 1.0) * 100.0
            ),
            Self::Drift { factor } => write!(
                f,
                "the machine became {:.0} % faster while it measured: other programs ended; \
                 measure again",
                (1.0 / factor - 1.0) * 100.0
            ),
            Self::SlowStart { layer, factor } => write!(
                f,
                "the first run of layer `{layer}` took {factor:.0} times as long as later ones: \
                 do not judge training by its first step"
            ),
        }
    }
}

/// What speaks against these durations of one size, layer by layer.
pub(super) fn doubts(names: &[&str], series: &[LayerSeries], wanted: f64) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let reached = doubt(series);
    if reached > wanted {
        doubts.push(Doubt::Unsure { reached, wanted });
    }
    let both = |layer: &LayerSeries, of: fn(&super::series::Series) -> f64| {
        of(layer.of(Kind::Forward)) + of(layer.of(Kind::Backward))
    };
    let median = |layer: &LayerSeries| both(layer, |series| series.median());
    let total: f64 = series.iter().map(median).sum();
    let counts = |layer: &&LayerSeries| median(layer) > MATTERS * total;
    let named = || names.iter().zip(series).filter(|(_, layer)| counts(layer));
    let noisy = named()
        .map(|(name, layer)| (name, both(layer, |s| s.spread()) / median(layer)))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((name, spread)) = noisy.filter(|(_, spread)| *spread > NOISY) {
        let layer = (*name).to_owned();
        doubts.push(Doubt::Noisy { layer, spread });
    }
    let weighted = |layer: &LayerSeries| layer.of(Kind::Forward).drift() * median(layer);
    let factor = series.iter().map(weighted).sum::<f64>() / total;
    if factor.is_finite() && !(1.0 / DRIFT..=DRIFT).contains(&factor) {
        doubts.push(Doubt::Drift { factor });
    }
    let slow = named()
        .map(|(name, layer)| (name, layer.of(Kind::Forward).first_over_median()))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((name, factor)) = slow.filter(|(_, factor)| *factor > SLOW_START) {
        let layer = (*name).to_owned();
        doubts.push(Doubt::SlowStart { layer, factor });
    }
    doubts
}

/// Whether others used the machine before; nothing where the system does not tell.
pub(super) fn busy() -> Option<Doubt> {
    let before = working_time()?;
    std::thread::sleep(LOOK);
    let after = working_time()?;
    let cores = crate::torch::cores();
    let total = after.total.checked_sub(before.total).filter(|t| *t > 0)?;
    let working = after.working.saturating_sub(before.working);
    let used = cores as f64 * working as f64 / total as f64;
    (used > BUSY * cores as f64).then_some(Doubt::Busy { used, cores })
}

/// Ticks of all cores since the machine started.
struct Ticks {
    working: u64,
    total: u64,
}

/// None where the system does not tell.
fn working_time() -> Option<Ticks> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, waiting for disks, interrupts (2), stolen; guests are in user.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let total = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(Ticks {
        working: total - idle,
        total,
    })
}
