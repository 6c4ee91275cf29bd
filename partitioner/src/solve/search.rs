//! The smallest bottleneck, by bisection over probes.

use super::chain::{Chain, Cut};
use super::probe::{Answer, TooLow, probe, windows};
use super::{shared, traffic};

/// The best cut found, and a lower bound of all cuts.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) cut: Cut,
    pub(super) lower_bound: i64,
}

/// Returns whether a cut stays within `limit` ticks and the memory limits raised by `slack`.
///
/// The limit of a device must hold for its stages together. Each of its stages must fit it alone,
/// which the probe decides exactly; for several stages per device the rest is left to [`shared`].
pub(super) fn ask(chain: &Chain, limit: i64, slack: u64) -> Answer {
    let caps: Vec<Option<u64>> = (0..chain.stages).map(|s| chain.limit(s, slack)).collect();
    let reach = match probe(chain, limit, &caps) {
        Ok(reach) => reach,
        Err(too_low) => return Answer::No(too_low),
    };
    match reach.cut() {
        Some(cut) if shared::fits(chain, &cut, slack) => Answer::Yes(cut),
        _ => shared::ask(chain, &reach, limit, slack),
    }
}

/// Returns the cut with the smallest bottleneck, and among those with the least traffic; none if no
/// cut fits the memory limits, or if none was found where devices' stages share them.
pub(super) fn best(chain: &Chain) -> Option<Found> {
    let mut state = Bracket::open(chain)?;
    while state.low < state.high && state.unknown < PATIENCE {
        let middle = state.low + (state.high - state.low) / 2;
        state.learn(middle, ask(chain, middle, 0), chain);
    }
    Some(Found {
        lower_bound: state.proved.min(state.high),
        cut: leaner(chain, state.cut, state.high),
    })
}

/// Returns the cut with the least traffic within `limit`; `cut` is one of them, and stays if it has
/// no more.
fn leaner(chain: &Chain, cut: Cut, limit: i64) -> Cut {
    let own = traffic::traffic(chain, &cut);
    if own == 0 {
        return cut;
    }
    let under = |caps: &[Option<u64>]| {
        let reach = probe(chain, limit, caps).ok()?;
        let other = traffic::leanest(chain, &reach)?;
        shared::fits(chain, &other, 0).then_some(other)
    };
    let alone: Vec<Option<u64>> = (0..chain.stages).map(|s| chain.limit(s, 0)).collect();
    let other = under(&alone).or_else(|| under(&shared::equal_caps(chain, 0)));
    match other {
        Some(other) if traffic::traffic(chain, &other) < own => other,
        _ => cut,
    }
}

/// Undecided limits after which the search stops.
const PATIENCE: usize = 12;
/// Same as `PATIENCE`, if no cut was found even without a limit.
const LITTLE_HOPE: usize = 2;

/// Interval that contains the optimum.
struct Bracket {
    /// Number of undecided limits.
    unknown: usize,
    /// No cut below this was found.
    low: i64,
    /// No cut below this exists.
    proved: i64,
    /// The bottleneck of `cut`.
    high: i64,
    cut: Cut,
}

impl Bracket {
    /// Goes up from the bound without transfers and memory until there is a cut: usually one is
    /// close, and the probe is fast for tight limits.
    fn open(chain: &Chain) -> Option<Self> {
        let low = relaxed(chain);
        let mut state = Self {
            low,
            proved: low,
            unknown: 0,
            high: i64::MAX,
            cut: Cut { parts: Vec::new() },
        };
        let longest = chain.longest();
        // Avoids repeated searches if no cut fits the memory.
        let patience = match ask(chain, longest, 0) {
            Answer::Yes(_) => PATIENCE,
            Answer::No(_) => return None,
            Answer::Unknown => LITTLE_HOPE,
        };
        let (mut limit, mut step) = (state.low, state.low / 1024 + 1);
        while state.high == i64::MAX {
            let answer = ask(chain, limit, 0);
            let hopeless = matches!(answer, Answer::No(TooLow { next: None }));
            state.learn(limit, answer, chain);
            let given_up = state.unknown >= patience;
            if state.high == i64::MAX && (hopeless || given_up || limit >= longest) {
                return None;
            }
            limit = state.low.max(limit.saturating_add(step)).min(longest);
            step = step.saturating_mul(2);
        }
        Some(state)
    }

    fn learn(&mut self, limit: i64, answer: Answer, chain: &Chain) {
        match answer {
            Answer::Yes(cut) => {
                self.high = chain.bottleneck(&cut);
                self.cut = cut;
            }
            Answer::No(too_low) => {
                self.low = too_low.next.unwrap_or(limit + 1);
                self.proved = self.proved.max(self.low);
            }
            Answer::Unknown => {
                self.unknown += 1;
                self.low = limit + 1;
            }
        }
    }
}

/// Returns the smallest bottleneck if transfers took no time and memory were unlimited.
fn relaxed(chain: &Chain) -> i64 {
    let (mut low, mut high) = (0, chain.longest());
    while low < high {
        let middle = low + (high - low) / 2;
        match windows(chain, middle) {
            Ok(_) => high = middle,
            Err(too_low) => low = too_low.next.unwrap_or(high).min(high),
        }
    }
    low
}
