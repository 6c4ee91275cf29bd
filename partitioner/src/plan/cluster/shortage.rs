//! Changes that would make something fit.

use super::ClusterOptions;
use super::search::anything_fits;
use crate::machine::MAX_DEVICES;
use crate::machine::cluster::{Card, NodeKind};
use crate::plan::PlanError;
use crate::profile::Profile;
use crate::units::Bytes;

/// Limit of simulated actions for a test whether something fits.
const LITTLE: usize = 150_000;
/// Most doublings of the number of cards that are tried.
const DOUBLINGS: u32 = 6;
/// Accuracy of the memory found: one part in this many of the cards' memory, or half a part of the
/// missing memory.
const PARTS: u64 = 32;

/// Returns why nothing fits, with sufficient memory or cards.
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

/// Returns the memory that the largest card would need, if all cards get as much more.
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

/// Returns the least power of two times the nodes (for one node: cards) that suffices.
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
