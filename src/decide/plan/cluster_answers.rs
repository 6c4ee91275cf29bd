//! Answers of a plan for a cluster: cards, throughput, training time, and whether it fits.

use gpipe_partitioner::words::{long_time, two_decimals};
use gpipe_partitioner::{Bytes, ClusterOptions, Micros, Plan};

use super::shape::ShapeFlags;
use crate::output::thousands;
use crate::reserve;

/// Returns the answers, a line each.
pub(super) fn lines(
    asked: &ClusterOptions,
    plan: &Plan,
    (shape, reserve): (&ShapeFlags, Bytes),
) -> String {
    let seconds = plan.step.get().max(f64::MIN_POSITIVE) * 1e-6;
    let samples = asked.batch as f64 / seconds;
    let tokens = shape.sequence().map(|sequence| samples * sequence as f64);
    let rate = match tokens {
        Some(tokens) => format!("{} tokens/s", rounded(tokens)),
        None => format!("{} samples/s", rounded(samples)),
    };
    let days = match (shape.tokens(), tokens) {
        (Some(all), Some(tokens)) => {
            let time = long_time(Micros::new(all / tokens * 1e6).unwrap_or_default());
            format!("{} tokens: {time}\n", in_words(all))
        }
        _ => String::new(),
    };
    let (cards, fits) = (cards(asked, plan), fits(asked, plan, reserve));
    format!("{cards}: {rate}\n{days}{fits}\n")
}

fn cards(asked: &ClusterOptions, plan: &Plan) -> String {
    let group = plan.tensor_parallel;
    let all = asked.cluster.cards() * group;
    let used = plan.devices() * plan.replicas * group;
    let groups = match group {
        1 => String::new(),
        _ => format!(" in groups of {group}"),
    };
    match all - used {
        0 => format!("all {all} cards{groups}"),
        idle => format!("{used} of {all} cards{groups} ({idle} more would not make it faster)"),
    }
}

/// Returns the memory of the fullest card; a plan always fits.
fn fits(asked: &ClusterOptions, plan: &Plan, reserve: Bytes) -> String {
    let each = |bytes: Bytes| Bytes(bytes.get().div_ceil(plan.tensor_parallel as u64));
    let peak = plan.peak_bytes.iter().copied().max().unwrap_or_default();
    let most = asked.cluster.kinds().iter().map(|kind| kind.card.memory);
    let most = most.flatten().max().map(each);
    let peak = each(peak);
    match most {
        None => format!("memory without a limit: the fullest card has {peak}"),
        Some(most) if reserve == Bytes::ZERO => {
            format!("fits: the fullest card has {peak} of {most}")
        }
        Some(most) => format!(
            "fits: the fullest card has {peak} of {most}; {}",
            reserve::sentence(reserve)
        ),
    }
}

/// Formats a rate with significant digits only.
fn rounded(rate: f64) -> String {
    if rate < 100.0 {
        two_decimals(rate)
    } else {
        // A cast saturates.
        thousands(rate.round() as u64)
    }
}

/// Formats a number as `300 billion`.
fn in_words(number: f64) -> String {
    const WORDS: [(f64, &str); 3] = [(1e12, " trillion"), (1e9, " billion"), (1e6, " million")];
    let (scale, word) = WORDS
        .into_iter()
        .find(|(scale, _)| number >= *scale)
        .unwrap_or((1.0, ""));
    format!("{}{word}", two_decimals(number / scale))
}
