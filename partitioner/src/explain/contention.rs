//! Whether a kind of work is faster while other devices are idle: devices that are threads of one
//! machine share cores, caches and memory, and the medians of a prediction include this.

use std::cmp::{max, min};

use super::StageRow;
use crate::ids::DeviceId;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;

/// Mean time of an action, alone and beside others.
pub(super) struct Beside {
    pub(super) alone: Micros,
    pub(super) beside: Micros,
}

/// Returns the means of a row's actions that ran mostly alone, and of those beside others; none if
/// either are missing or the difference is small.
pub(super) fn of(row: &StageRow, measured: &Timeline) -> Option<Beside> {
    /// Below this share of its time with others busy, an action counts as alone.
    const ALONE: f64 = 1.0 / 3.0;
    /// Above this share, an action counts as beside others.
    const BESIDE: f64 = 2.0 / 3.0;
    /// Largest ratio of the means that counts as a difference.
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

/// Returns the share of a span's time in which other devices are busy, averaged over these.
fn share(span: &Span, measured: &Timeline) -> f64 {
    let others = (0..measured.devices()).map(DeviceId);
    let others = others.filter(|own| *own != span.device);
    let both: f64 = others.map(|own| both(span, measured.spans_on(own))).sum();
    let devices = measured.devices().saturating_sub(1).max(1) as f64;
    both / (span.duration().get().max(f64::MIN_POSITIVE) * devices)
}

/// Returns the time that a span shares with another device's spans, in the order of their starts.
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
