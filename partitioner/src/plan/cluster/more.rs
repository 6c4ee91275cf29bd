//! Gain from one more node, or one more GiB per card.

use super::{ClusterOptions, plan_cluster};
use crate::machine::cluster::{Card, NodeKind};
use crate::plan::more::GIB;
use crate::plan::{More, Plan};
use crate::profile::Profile;

/// Returns the steps of plans for one more node of each kind (for one node without a link to
/// others: one more card), and for one more GiB on each card if memory has a limit.
///
/// # Complexity
/// A plan for each.
pub fn what_more(profile: &Profile, options: &ClusterOptions, plan: &Plan) -> Vec<More> {
    let cluster = &options.cluster;
    // A node with a link to others has a fixed number of cards.
    let alone = cluster.nodes() == 1 && cluster.link_between().is_none();
    // If devices are groups of cards, each card of a group gets one more GiB.
    let group = plan.tensor_parallel;
    let mut more = Vec::new();
    for index in 0..cluster.kinds().len() {
        let mut kinds: Vec<NodeKind> = cluster.kinds().to_vec();
        let several = kinds.len() > 1;
        let own = &mut kinds[index];
        let what = if alone {
            own.cards += 1;
            match group {
                1 => "one more card".to_owned(),
                _ => format!("one more group of {group} cards"),
            }
        } else {
            own.nodes += 1;
            let kind = if several {
                format!(" of kind {index}")
            } else {
                String::new()
            };
            format!("one more node{kind}")
        };
        more.extend(
            cluster
                .clone()
                .with_kinds(kinds)
                .ok()
                .map(|own| (what, own)),
        );
    }
    if cluster.memory().is_some() {
        let cards = |card: Card| Card {
            memory: card.memory.map(|own| own + GIB * group as u64),
            ..card
        };
        let larger = cluster.clone().with_cards(cards).ok();
        more.extend(larger.map(|own| (format!("{GIB} more on each card"), own)));
    }
    let planned = more.into_iter().filter_map(|(what, cluster)| {
        let options = ClusterOptions {
            cluster,
            ..options.clone()
        };
        let (other, _) = plan_cluster(profile, &options).ok()?;
        let step = other.step.min(plan.step);
        Some(More { what, step })
    });
    planned.collect()
}
