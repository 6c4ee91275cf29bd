//! Explains why a plan loses against another, by the parts of the step.
//!
//! A step consists of the busiest device's computing, that device's waits, and the exchange of
//! replicas after the last action. So the difference of two steps is the sum of three differences, of
//! which the large ones are named.

use crate::simulate::Summary;
use crate::units::{Bytes, Micros};
use crate::words::count;

/// Relative difference up to which steps count as equal, because of rounding in f64.
pub(super) const SAME: f64 = 1e-9;
/// Least share of the difference for a part to be named.
const NAMED: f64 = 0.1;

/// Parts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parts {
    pub(super) step: Micros,
    /// Computing time of the busiest device.
    busy: Micros,
    /// Exchange of replicas after the last action.
    exposed: Micros,
}

impl Parts {
    pub(super) fn of(summary: &Summary) -> Self {
        Self {
            step: summary.makespan,
            busy: summary.busy,
            exposed: summary.exposed,
        }
    }

    fn waits(&self) -> f64 {
        self.step.get() - self.busy.get() - self.exposed.get()
    }

    /// Returns the parts that `self` has more of than `best`, the largest first, and then those it
    /// has less of: together they are its excess, apart from unnamed small parts.
    fn more_than(&self, best: &Self) -> Vec<String> {
        let slower = self.step.get() - best.step.get();
        let mut more = [
            (self.busy.get() - best.busy.get(), "work"),
            (self.waits() - best.waits(), "waiting"),
            (
                self.exposed.get() - best.exposed.get(),
                "exposed all-reduce",
            ),
        ];
        more.sort_by(|a, b| b.0.total_cmp(&a.0));
        let named = (more.into_iter()).filter(|(time, _)| time.abs() > NAMED * slower);
        let words = |(time, what): (f64, &str)| {
            let more = if time < 0.0 { "less" } else { "more" };
            format!("{} {more} {what}", Micros::saturating(time.abs()))
        };
        named.map(words).collect()
    }
}

/// Properties of a plan for a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    pub(super) parts: Parts,
    /// Stages that recompute.
    pub(super) recomputing: usize,
    /// Stages that offload.
    pub(super) offloading: usize,
    /// Stages that recompute single micro-batches, and stages that offload them.
    pub(super) singly: [usize; 2],
    /// Stages per device.
    pub(super) chunks: usize,
    /// Cards in use.
    pub(super) cards: usize,
    /// The peak of the fullest device, if known.
    pub(super) peak: Option<Bytes>,
}

impl Contender {
    /// Returns why it loses against `best`.
    pub(super) fn loses_to(&self, best: &Self) -> String {
        let (own, least) = (self.parts.step.get(), best.parts.step.get());
        let slower = own / least.max(f64::MIN_POSITIVE) - 1.0;
        let mut because = Vec::new();
        let head = if slower <= SAME {
            because.extend((self.chunks > best.chunks).then(|| {
                format!(
                    "{} a device instead of {}",
                    count(self.chunks, "stage"),
                    best.chunks
                )
            }));
            if let (Some(here), Some(there)) = (self.peak, best.peak)
                && here > there
            {
                because.push(format!("{} more memory", here - there));
            }
            "as fast".to_owned()
        } else {
            because = self.parts.more_than(&best.parts);
            format!("{} slower", percent(slower))
        };
        let counts = [
            (self.recomputing, best.recomputing, "recompute"),
            (self.offloading, best.offloading, "offload"),
        ];
        for ((here, there, what), single) in counts.into_iter().zip(best.singly) {
            if here > there && single > 0 {
                let here = stages(here, what);
                because.push(format!("{here} all micro-batches, not only some"));
            } else if here > there {
                because.push(format!(
                    "{} instead of {}",
                    stages(here, what),
                    number(there)
                ));
            }
        }
        if self.cards < best.cards {
            because.push(format!(
                "{} instead of {}",
                count(self.cards, "card"),
                best.cards
            ));
        }
        if because.is_empty() {
            return head;
        }
        format!("{head}: {}", because.join(", "))
    }
}

/// Formats a number of stages: `1 stage recomputes`, `2 stages recompute`.
fn stages(number: usize, what: &str) -> String {
    let verb = if number == 1 { "s" } else { "" };
    format!("{} {what}{verb}", count(number, "stage"))
}

/// Formats a number; 0 as a word.
fn number(number: usize) -> String {
    match number {
        0 => "none".to_owned(),
        number => number.to_string(),
    }
}

/// Formats a share with one decimal, or as many as it takes to show a nonzero digit.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let digits = match percent {
        p if p >= 0.1 => 1,
        p if p >= 0.01 => 2,
        p if p >= 0.001 => 3,
        _ => return "less than 0.001 %".to_owned(),
    };
    format!("{percent:.digits$} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(number: f64) -> Micros {
        Micros::new(number).unwrap()
    }

    fn contender(step: f64, busy: f64, exposed: f64) -> Contender {
        Contender {
            parts: Parts {
                step: micros(step),
                busy: micros(busy),
                exposed: micros(exposed),
            },
            recomputing: 0,
            offloading: 0,
            singly: [0; 2],
            chunks: 1,
            cards: 4,
            peak: None,
        }
    }

    /// Regression: the reason was `idle 0.6 % instead of 0.6 %`.
    #[test]
    fn every_difference_is_told_in_digits_that_show_it() {
        let best = contender(1000.0, 900.0, 20.0);
        let waits = contender(1002.0, 900.0, 20.0);
        let why = waits.loses_to(&best);
        assert_eq!(why, "0.2 % slower: 2.0 µs more waiting");
        let works = contender(1100.0, 980.0, 35.0);
        let why = works.loses_to(&best);
        assert_eq!(
            why,
            "10.0 % slower: 80.0 µs more work, 15.0 µs more exposed all-reduce"
        );
        // Regression: only excess parts were named, and they exceeded the steps' difference.
        let computes = contender(1010.0, 930.0, 20.0);
        assert_eq!(
            computes.loses_to(&best),
            "1.0 % slower: 30.0 µs more work, 20.0 µs less waiting"
        );
        let close = contender(1000.3, 900.0, 20.3);
        assert!(
            close
                .loses_to(&best)
                .starts_with("0.03 % slower: 0.3 µs more exposed")
        );
        for (share, text) in [
            (0.0005, "0.05 %"),
            (0.000_02, "0.002 %"),
            (1e-8, "less than 0.001 %"),
        ] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn what_is_as_fast_says_what_it_needs_more_of() {
        let best = Contender {
            peak: Some(Bytes(1 << 20)),
            ..contender(1000.0, 900.0, 20.0)
        };
        assert_eq!(best.loses_to(&best), "as fast");
        let other = Contender {
            chunks: 2,
            peak: Some(Bytes(3 << 20)),
            recomputing: 1,
            ..best
        };
        assert_eq!(
            other.loses_to(&best),
            "as fast: 2 stages a device instead of 1, 2.0 MiB more memory, 1 stage recomputes instead of none"
        );
        // Regression: "instead of none", although the best recomputes some micro-batches.
        let best = Contender {
            singly: [3, 0],
            ..best
        };
        let why = other.loses_to(&best);
        assert!(
            why.ends_with("1 stage recomputes all micro-batches, not only some"),
            "{why}"
        );
    }
}
