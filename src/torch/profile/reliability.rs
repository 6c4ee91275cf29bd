//! Reasons to distrust measurements, with advice.

use std::fmt;
use std::time::Duration;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{ActionKind, Micros};

use super::measure::doubt;
use super::measurements::LayerSeries;
use super::series::Series;
use crate::profile::other_programs::{Moment, Others};

/// Quartile distance over median above which a layer is noisy.
const NOISY: f64 = 0.15;
/// Share of the total time below which a layer does not matter.
const MATTERS: f64 = 0.03;
/// Factor between the last third of the measurements and the first that counts as drift.
const DRIFT: f64 = 1.05;
/// Largest accepted factor between the two halves of a backward together and the joint one.
const APART: f64 = 1.5;
/// How long the use of cores by other programs is observed.
const LOOK: Duration = Duration::from_millis(300);
/// First run over the median that counts as a slow start.
const SLOW_START: f64 = 5.0;

/// A reason not to trust a profile, with advice as its `Display` text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Doubt {
    /// The GPU is simulated.
    Simulated {
        /// Name of the GPU, marked as simulated.
        device: String,
    },
    /// Other programs were using the machine.
    Busy {
        /// Cores used by other programs right before measuring.
        used: f64,
        /// Cores of the machine.
        cores: usize,
    },
    /// Time did not suffice for the larger micro-batches.
    LeftOut {
        /// Samples of the largest measured micro-batch.
        largest: usize,
        /// Samples of the largest requested micro-batch.
        wanted: usize,
    },
    /// Time was up before the requested precision was reached.
    Unsure {
        /// Half of the 95 % interval of a micro-batch's time, as a share of that time.
        reached: f64,
        /// Requested share.
        wanted: f64,
    },
    /// A layer's durations vary too much.
    Noisy {
        /// The layer whose durations differ most.
        layer: String,
        /// Quartile distance over median, of its forward or its backward.
        spread: f64,
        /// Number of further layers that vary too much.
        others: usize,
    },
    /// The joint backward of a layer and its two halves, which compute the same, take different
    /// times.
    Halves {
        /// The layer with the largest difference.
        layer: String,
        /// Time of the joint backward, in microseconds.
        joint: f64,
        /// Time of both halves together, in microseconds.
        halves: f64,
    },
    /// The machine became slower or faster during the measurement.
    Drift {
        /// Last third of the measurements over the first.
        factor: f64,
    },
    /// The first runs took much longer than the others.
    SlowStart {
        /// The layer with the largest factor.
        layer: String,
        /// First run over median.
        factor: f64,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulated { device } => write!(
                f,
                "measured on {device}: a run on other devices (train --devices) takes other times, \
                 and another plan may be the best one there"
            ),
            Self::Busy { used, cores } => write!(
                f,
                "other programs used {used:.1} of {cores} cores before measuring: times are longer \
                 than they would be, some more than others, so another plan may be better; and a step \
                 beside those programs takes longer than planned, perhaps twice as long; stop other \
                 programs and measure again"
            ),
            Self::LeftOut { largest, wanted } => write!(
                f,
                "micro-batches of more than {} were not measured (wanted were {wanted}), as their first \
                 runs would have taken too long for a first look: measure without --quick",
                count(*largest, "sample")
            ),
            Self::Unsure { reached, .. } if !reached.is_finite() => write!(
                f,
                "too few repeats to say how sure the times are: measure without --quick or with \
                 more time"
            ),
            Self::Unsure { reached, wanted } => write!(
                f,
                "times are known to ±{:.1} % (wanted ±{:.1} %): give it more time or a quieter \
                 machine",
                reached * 100.0,
                wanted * 100.0
            ),
            Self::Noisy {
                layer,
                spread,
                others,
            } => {
                write!(f, "layer `{layer}` is noisy (±{:.0} %", spread * 50.0)?;
                if *others > 0 {
                    let more = count(*others, "more layer");
                    write!(f, ", and {more} beyond ±{:.0} %", NOISY * 50.0)?;
                }
                f.write_str("): stop other programs, or fix the clock rate")
            }
            Self::Halves {
                layer,
                joint,
                halves,
            } => {
                let time = |micros: f64| Micros::new(micros).unwrap_or(Micros::ZERO);
                write!(
                    f,
                    "the backward of layer `{layer}` takes {} in one go and {} in two halves, which \
                     compute the same: schedules cannot be compared by these times; measure again \
                     on a quiet machine",
                    time(*joint),
                    time(*halves)
                )
            }
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

/// Returns the doubts about these durations of one size, layer by layer.
pub(super) fn doubts(names: &[&str], series: &[LayerSeries], wanted: f64) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let reached = doubt(series);
    if reached > wanted {
        doubts.push(Doubt::Unsure { reached, wanted });
    }
    let median = |layer: &LayerSeries| {
        layer.of(ActionKind::Forward).median() + layer.of(ActionKind::Backward).median()
    };
    let total: f64 = series.iter().map(median).sum();
    let named = || names.iter().zip(series);
    // Noise counts only if it would be visible in the total.
    let counts = |of: &Series| of.median().max(of.spread()) > MATTERS * total;
    let spread = |layer: &LayerSeries| {
        let kinds = [ActionKind::Forward, ActionKind::Backward].map(|kind| layer.of(kind));
        let kinds = kinds.into_iter().filter(|of| counts(of));
        kinds.map(relative_spread).fold(0.0, f64::max)
    };
    let noisy = named().map(|(name, layer)| (*name, spread(layer)));
    let mut noisy: Vec<(&str, f64)> = noisy.filter(|(_, spread)| *spread > NOISY).collect();
    noisy.sort_by(|a, b| b.1.total_cmp(&a.1));
    if let Some((layer, spread)) = noisy.first() {
        doubts.push(Doubt::Noisy {
            layer: (*layer).to_owned(),
            spread: *spread,
            others: noisy.len() - 1,
        });
    }
    doubts.extend(halves(named(), MATTERS * total));
    let weighted = |layer: &LayerSeries| layer.of(ActionKind::Forward).drift() * median(layer);
    let factor = series.iter().map(weighted).sum::<f64>() / total;
    if factor.is_finite() && !(1.0 / DRIFT..=DRIFT).contains(&factor) {
        doubts.push(Doubt::Drift { factor });
    }
    let slow = named()
        .filter(|(_, layer)| median(layer) > MATTERS * total)
        .map(|(name, layer)| (name, layer.of(ActionKind::Forward).first_over_median()))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((name, factor)) = slow.filter(|(_, factor)| *factor > SLOW_START) {
        let layer = (*name).to_owned();
        doubts.push(Doubt::SlowStart { layer, factor });
    }
    doubts
}

/// Quartile distance over median.
pub(super) fn relative_spread(of: &Series) -> f64 {
    of.spread() / of.median().max(1e-9)
}

/// Finds the layer whose joint backward differs most from its halves, among those that take more
/// than `least`.
fn halves<'a>(
    named: impl Iterator<Item = (&'a &'a str, &'a LayerSeries)>,
    least: f64,
) -> Option<Doubt> {
    let times = |layer: &LayerSeries| {
        let of = |kind: ActionKind| layer.of(kind).median();
        let halves = of(ActionKind::BackwardInput) + of(ActionKind::BackwardWeight);
        (of(ActionKind::Backward), halves)
    };
    let apart = |(joint, halves): (f64, f64)| (joint / halves).max(halves / joint);
    let known = named.map(|(name, layer)| (*name, times(layer)));
    let known = known.filter(|(_, (joint, halves))| joint.max(*halves) > least);
    let known = known.filter(|(_, times)| apart(*times) > APART);
    let worst = known.max_by(|a, b| apart(a.1).total_cmp(&apart(b.1)))?;
    let (layer, (joint, halves)) = worst;
    Some(Doubt::Halves {
        layer: layer.to_owned(),
        joint,
        halves,
    })
}

/// Checks whether other programs use the machine; `None` also if the system does not tell.
pub(super) fn busy() -> Option<Doubt> {
    let before = Moment::now()?;
    std::thread::sleep(LOOK);
    let others = before.since().filter(Others::use_many)?;
    let Others { used, cores, .. } = others;
    Some(Doubt::Busy { used, cores })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight measurements of a layer, at most `apart` (relative) from the median.
    fn layer(forward: f64, halves: [f64; 2], joint: f64, apart: f64) -> LayerSeries {
        LayerSeries::of_times(|kind| {
            let time = match kind {
                ActionKind::Forward | ActionKind::Recompute => forward,
                ActionKind::Backward => joint,
                ActionKind::BackwardInput => halves[0],
                ActionKind::BackwardWeight => halves[1],
            };
            let share = |place: u32| (f64::from(place) - 3.5) / 3.5;
            (0..8)
                .map(|place| time * (1.0 + apart * share(place)))
                .collect()
        })
    }

    fn said(layers: &[LayerSeries]) -> Vec<String> {
        let names = ["a", "b", "c"];
        let doubts = doubts(&names[..layers.len()], layers, 1e9);
        doubts.iter().map(ToString::to_string).collect()
    }

    /// Only layers slow by their median were considered, so one with a few long runs was missed.
    #[test]
    fn the_noisiest_layer_is_named_and_the_others_are_counted() {
        let quiet = || layer(100.0, [100.0, 100.0], 200.0, 0.01);
        assert_eq!(said(&[quiet(), quiet()]), [""; 0]);
        let noisy = |apart| layer(100.0, [100.0, 100.0], 200.0, apart);
        let all = said(&[noisy(0.3), noisy(0.6), quiet()]);
        assert!(all[0].starts_with("layer `b` is noisy (\u{b1}"), "{all:?}");
        assert!(
            all[0].contains(" %, and 1 more layer beyond \u{b1}8 %)"),
            "{all:?}"
        );
        let strange = LayerSeries::of_times(|_| vec![1.0, 1.0, 1.0, 90.0, 90.0]);
        let all = said(&[noisy(0.3), strange]);
        let noise = "layer `b` is noisy (\u{b1}4450 %";
        assert!(all.iter().any(|doubt| doubt.starts_with(noise)), "{all:?}");
    }

    /// Both halves compute the same as the joint backward: a layer with 4.81 ms against 1.39 ms was
    /// once accepted without a doubt.
    #[test]
    fn a_backward_and_its_halves_must_agree() {
        let good = || layer(100.0, [65.0, 74.0], 135.0, 0.0);
        assert_eq!(said(&[good(), good()]), [""; 0]);
        let all = said(&[good(), layer(100.0, [650.0, 740.0], 4810.0, 0.0)]);
        let wanted = "the backward of layer `b` takes 4.81 ms in one go and 1.39 ms in two halves";
        assert!(all.iter().any(|doubt| doubt.starts_with(wanted)), "{all:?}");
    }

    #[test]
    fn how_sure_times_are_is_told_beside_what_was_wanted() {
        let doubt = Doubt::Unsure {
            reached: 0.645,
            wanted: 0.02,
        };
        let said = doubt.to_string();
        assert!(
            said.starts_with("times are known to \u{b1}64.5 % (wanted \u{b1}2.0 %)"),
            "{said}"
        );
    }
}
