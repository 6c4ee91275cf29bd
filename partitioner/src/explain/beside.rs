//! Whether a kind of work is faster while other devices are idle: devices share cores, caches and
//! memory where they are threads of one machine, and a prediction by medians has all run beside
//! others.

use std::cmp::{max, min};

use super::StageRow;
use crate::ids::DeviceId;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;

/// What an action takes on average, alone and beside others.
pub(super) struct Beside {
    pub(super) alone: Micros,
    pub(super) beside: Micros,
}

/// The means of a row's actions that had most of their time alone, and of those beside others;
/// nothing where either are missing or alone they are hardly faster.
pub(super) fn of(row: &StageRow, measured: &Timeline) -> Option<Beside> {
    /// Others are busy for a smaller share of the time of an action that is alone.
    const ALONE: f64 = 1.0 / 3.0;
    /// And for a larger one of the time of one that is not.
    const BESIDE: f64 = 2.0 / 3.0;
    /// So much of the time of the others is a difference.
    const FASTER: f64 = 0.95;
    let own = |span: &&Span| (span.action.stage, span.action.kind) == (row.stage, row.kind);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for span in measured.spans().iter().filter(own) {
        let share = share(span, measured);
        if share < ALONE {
            alone.push(span.duration());
        } else if share > BESIDE {
            beside.push(span.duration());
        }
    }
    let (alone, beside) = (mean(&alone)?, mean(&beside)?);
    (alone < beside * FASTER).then_some(Beside { alone, beside })
}

/// The share of a span's time in which other devices are busy, of several on average.
fn share(span: &Span, measured: &Timeline) -> f64 {
    let others = (0..measured.devices()).map(DeviceId);
    let others = others.filter(|own| *own != span.device);
    let both: f64 = others.map(|own| both(span, measured.spans_on(own))).sum();
    let devices = measured.devices().saturating_sub(1).max(1) as f64;
    both / (span.duration().get().max(f64::MIN_POSITIVE) * devices)
}

/// The time that a span shares with those of another device, which are in the order of their starts.
fn both(span: &Span, others: &[Span]) -> f64 {
    let begun = others.partition_point(|other| other.start < span.end);
    let others = others[..begun].iter().rev();
    let others = others.take_while(|other| other.end > span.start);
    let both = others.map(|other| (min(span.end, other.end) - max(span.start, other.start)).get());
    both.sum()
}

fn mean(times: &[Micros]) -> Option<Micros> {
    let sum: f64 = times.iter().map(|time| time.get()).sum();
    (!times.is_empty()).then(|| Micros::saturating(sum / times.len() as f64))
}
