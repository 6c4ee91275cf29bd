//! The comparison as a sentence.

use super::contention;
use super::{Cause, Delta, Difference, EdgeRow, Explanation, StageRow};
use crate::schedule::ActionKind;
use crate::units::Micros;

/// Differences below this share of the step count as none.
const SAME: f64 = 0.001;

impl Explanation {
    /// Describes the comparison; `what` names the measured step ("Step 3"): how much longer it
    /// took, and the largest cause, or the other users of the cores ([`Explanation::with_others`]).
    pub fn sentence(&self, what: &str) -> String {
        sentence(self, what)
    }

    /// Describes in a line a comparison with a prediction from the step's own times: `361.45 ms;
    /// simulated from its stages' median times: 348.12 ms. Mostly warm-up (+14.06 ms)`.
    pub fn brief(&self) -> String {
        let (measured, predicted) = (self.measured.makespan(), self.predicted.makespan());
        let difference = self.difference();
        let share = difference.share_of(predicted);
        if share.abs() < SAME {
            return format!("{measured}, as simulated from its stages' median times");
        }
        let took = format!("{measured}; simulated from its stages' median times: {predicted}");
        if let Some(others) = self.others.as_ref().filter(|_| share > 0.0) {
            return format!("{took}. {others}");
        }
        let largest = self.largest();
        let part = if is_most(largest, difference) {
            "Mostly"
        } else {
            "Most of all"
        };
        format!("{took}. {part} {} ({})", named(largest), largest.delta)
    }
}

/// Whether a cause is at least half of the difference.
fn is_most(largest: Difference, difference: Delta) -> bool {
    2 * largest.delta.nanos().abs() >= difference.nanos().abs()
}

fn sentence(explanation: &Explanation, what: &str) -> String {
    let (measured, predicted) = (
        explanation.measured.makespan(),
        explanation.predicted.makespan(),
    );
    let difference = explanation.difference();
    let share = difference.share_of(predicted);
    if share.abs() < SAME {
        let differences = explanation.differences.iter();
        let others = differences.filter(|other| other.delta.share_of(predicted).abs() >= SAME);
        let evened: Vec<String> = others
            .map(|other| format!("{} {}", other.cause, other.delta))
            .collect();
        return if evened.is_empty() {
            format!("{what} took {measured}, as predicted.")
        } else {
            format!(
                "{what} took {measured}, as predicted; its differences even out: {}.",
                evened.join(", ")
            )
        };
    }
    if let Some(others) = explanation.others.as_ref().filter(|_| share > 0.0) {
        return format!(
            "{what} took {measured}, {} than predicted ({predicted}). {others}",
            relative(share)
        );
    }
    let largest = explanation.largest();
    format!(
        "{what} took {measured}, {} than predicted ({predicted}). {} of the difference is {} ({}){}.",
        relative(share),
        if is_most(largest, difference) {
            "Most"
        } else {
            "The largest part"
        },
        named(largest),
        largest.delta,
        detail(explanation, largest)
    )
}

/// Formats a relative difference: `10 % longer`, `3.2 % shorter`.
fn relative(share: f64) -> String {
    let word = if share < 0.0 { "shorter" } else { "longer" };
    let percent = 100.0 * share.abs();
    if percent < 9.95 {
        format!("{percent:.1} % {word}")
    } else {
        format!("{percent:.0} % {word}")
    }
}

fn named(difference: Difference) -> &'static str {
    match difference.cause {
        Cause::SlowStage if difference.delta < Delta::ZERO => "a fast stage",
        Cause::SlowStage => "a slow stage",
        Cause::WarmUp => "warm-up",
        Cause::Pairs => "that overlapped pairs ran one after the other",
        Cause::Link if difference.delta < Delta::ZERO => "a fast hand-over between stages",
        Cause::Link => "the hand-over between stages",
        Cause::Engine => "the engine",
    }
}

/// Describes where the cause has most effect, after a colon; empty if nowhere.
fn detail(explanation: &Explanation, largest: Difference) -> String {
    let longer = largest.delta >= Delta::ZERO;
    let detail = match largest.cause {
        Cause::SlowStage => slow_stage(explanation, longer),
        Cause::WarmUp => warm_up(&explanation.stages),
        Cause::Pairs => None,
        Cause::Link => link(&explanation.edges, longer),
        Cause::Engine if longer => engine(explanation),
        Cause::Engine => Some("actions started sooner than the given times allow".to_owned()),
    };
    detail.map_or_else(String::new, |detail| format!(": {detail}"))
}

/// Describes the stage and kind that alone would change the step most in that direction.
fn slow_stage(explanation: &Explanation, longer: bool) -> Option<String> {
    let weight = |row: &&StageRow| {
        let key = (row.effect.unwrap_or_default().nanos(), row.extra.nanos());
        if longer { key } else { (-key.0, -key.1) }
    };
    let row = explanation.stages.iter().rev().max_by_key(weight)?;
    let work = format!("stage {}'s {}", row.stage, noun(row.kind));
    let (micro, time) = row.slowest;
    let excess = Delta::between(row.predicted, time);
    if longer && row.count > 2 && 2 * excess.nanos() > row.extra.nanos() {
        return Some(format!(
            "{work} of micro-batch {micro} took {time} where {} was predicted",
            row.predicted
        ));
    }
    let mean = row.mean();
    let took = format!(
        "{work} took {mean} on average where {} was predicted",
        row.predicted
    );
    if row.predicted == Micros::ZERO {
        return Some(took);
    }
    let share = Delta::between(row.predicted, mean).share_of(row.predicted);
    if share.abs() < SAME || (share < 0.0) == longer {
        return Some("single actions differ, the averages of stages do not".to_owned());
    }
    let why = contention::of(row, &explanation.measured).filter(|_| !longer);
    let why = why.map_or_else(String::new, |own| {
        format!(
            "; {} while the other devices were idle, {} beside them, as they share the machine",
            own.alone, own.beside
        )
    });
    Some(format!("{took}, {}{why}", relative(share)))
}

fn warm_up(rows: &[StageRow]) -> Option<String> {
    let row = rows.iter().rev().max_by_key(|row| row.warm_up)?;
    let first = match row.warming {
        0 | 1 => format!("first {}", noun(row.kind)),
        warming => format!("first {warming} {}s together", noun(row.kind)),
    };
    Some(format!(
        "stage {}'s {first} took {} more than the median of {}",
        row.stage,
        row.warm_up.size(),
        row.median
    ))
}

fn link(edges: &[EdgeRow], longer: bool) -> Option<String> {
    let whole = |times: crate::EdgeTimes| times.occupancy + times.latency;
    let change = |edge: &&EdgeRow| {
        let nanos = Delta::between(whole(edge.predicted), whole(edge.measured)).nanos();
        if longer { nanos } else { -nanos }
    };
    let edge = edges.iter().rev().max_by_key(change)?;
    Some(format!(
        "from stage {} to stage {} a value took {} where {} was predicted",
        edge.from,
        edge.from.index() + 1,
        whole(edge.measured),
        whole(edge.predicted)
    ))
}

fn engine(explanation: &Explanation) -> Option<String> {
    let devices = explanation.devices.iter().rev();
    let row = devices.max_by_key(|row| row.overhead)?;
    Some(format!(
        "device {} was ready {} in all before its actions started",
        row.device, row.overhead
    ))
}

/// Noun for a kind of action in a sentence.
pub(crate) const fn noun(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::Forward => "forward",
        ActionKind::Backward => "backward",
        ActionKind::BackwardInput => "input gradient",
        ActionKind::BackwardWeight => "weight gradient",
        ActionKind::Recompute => "recompute",
    }
}
