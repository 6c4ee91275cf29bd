//! What would have to change for anything to fit.

use super::ClusterOptions;
use super::search::anything_fits;
use crate::machine::MAX_DEVICES;
use crate::machine::cluster::{Card, NodeKind};
use crate::plan::PlanError;
use crate::profile::Profile;
use crate::units::Bytes;

/// How many actions may be simulated to see whether something fits.
const LITTLE: usize = 150_000;
/// Nobody who is told that cards are too small has so many more of them.
const DOUBLINGS: u32 = 6;
/// Memory is found to a part in so many of what cards have, or to half of such a part of what they
/// lack.
const PARTS: u64 = 32;

/// Why nothing fits, with what would.
pub(super) fn explain(profile: &Profile, options: &ClusterOptions, reason: &str) -> PlanError {
    let limits = options
        .cluster
        .kinds()
        .iter()
        .filter_map(|kind| kind.card.memory);
    let endless = more_memory(options, |_| None);
    let fits = endless.is_some_and(|options| anything_fits(profile, &options, LITTLE));
    let Some(most) = limits.max().filter(|_| fits) else {
        return PlanError::NoSchedule {
            devices: options.devices.unwrap_or(options.cluster.cards()),
            layers: profile.layers().len(),
            reason: reason.to_owned(),
        };
    };
    let copies = 2.0 + options.optimizer_state;
    let parameters: u64 = profile.parameter_bytes().iter().sum();
    PlanError::Shortage {
        cards: options.cluster.cards(),
        memory: most,
        states: Bytes((parameters as f64 * copies) as u64),
        more: memory_that_fits(profile, options, most).map(|enough| enough - most),
        more_cards: cards_that_fit(profile, options),
    }
}

fn more_memory(
    options: &ClusterOptions,
    memory: impl Fn(Bytes) -> Option<Bytes>,
) -> Option<ClusterOptions> {
    let cards = |card: Card| Card {
        memory: card.memory.and_then(&memory),
        ..card
    };
    Some(ClusterOptions {
        cluster: options.cluster.clone().with_cards(cards).ok()?,
        ..options.clone()
    })
}

/// What the card with most memory would have to have, where all have as much more.
fn memory_that_fits(profile: &Profile, options: &ClusterOptions, most: Bytes) -> Option<Bytes> {
    let fits = |more: Bytes| {
        let raised = more_memory(options, |own| Some(own + more));
        raised.is_some_and(|options| anything_fits(profile, &options, LITTLE))
    };
    let mut high = Bytes((most.get() / PARTS).max(1));
    while !fits(high) {
        if high.get() > 1 << 50 {
            return None;
        }
        high = high * 2;
    }
    let mut low = Bytes(high.get() / 2);
    while (high - low).get() > (most.get() / PARTS).max(high.get() / (2 * PARTS)).max(1) {
        let middle = Bytes(low.get() + (high - low).get() / 2);
        if fits(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(most + high)
}

/// The least power of two times as many nodes (of one node: cards) that would do.
fn cards_that_fit(profile: &Profile, options: &ClusterOptions) -> Option<usize> {
    let cluster = &options.cluster;
    (1..=DOUBLINGS)
        .map(|power| 1_usize << power)
        .take_while(|times| times * cluster.cards() <= MAX_DEVICES)
        .find_map(|times| {
            let alone = cluster.nodes() == 1;
            let kinds = cluster.kinds().iter().map(|kind| NodeKind {
                nodes: if alone {
                    kind.nodes
                } else {
                    kind.nodes * times
                },
                cards: if alone {
                    kind.cards * times
                } else {
                    kind.cards
                },
                card: kind.card,
            });
            let larger = cluster.clone().with_kinds(kinds.collect()).ok()?;
            let cards = larger.cards();
            let options = ClusterOptions {
                cluster: larger,
                ..options.clone()
            };
            anything_fits(profile, &options, LITTLE).then_some(cards)
        })
}
