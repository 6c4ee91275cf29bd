//! Groups of cards that act as one device each.

use super::{Card, Cluster, ClusterError, NodeKind, Peak};
use crate::cost::Link;
use crate::units::Bytes;

impl Cluster {
    /// Returns the cluster in which every `group` cards of a node are one larger device (tensor parallelism):
    /// with their memories and peaks together, and with `group` times the bandwidth between devices, since
    /// each card transfers its part of every value and gradient. Between nodes this holds if each card has
    /// its own network card.
    ///
    /// The speed of a card stays as it is: a profile for groups has the speed of a group.
    ///
    /// # Errors
    /// [`ClusterError::Groups`] if `group` does not divide the cards of each node.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::machine::cluster::KnownNode;
    ///
    /// let cluster = KnownNode::named("dgx-a100")?.cluster(2)?;
    /// let groups = cluster.grouped(4)?;
    /// assert_eq!((groups.cards(), groups.memory()), (4, cluster.memory()));
    /// assert!(cluster.grouped(3).is_err());
    /// # Ok::<(), gpipe_partitioner::ClusterError>(())
    /// ```
    pub fn grouped(&self, group: usize) -> Result<Self, ClusterError> {
        let kind = |own: &NodeKind| {
            if group == 0 || !own.cards.is_multiple_of(group) {
                let cards = own.cards;
                return Err(ClusterError::Groups { cards, group });
            }
            Ok(NodeKind {
                cards: own.cards / group,
                card: joined(own.card, group),
                ..*own
            })
        };
        let kinds: Result<Vec<NodeKind>, ClusterError> = self.kinds.iter().map(kind).collect();
        let mut grouped = self.clone().with_kinds(kinds?)?;
        grouped.inside = self.inside.map(|link| widened(link, group));
        if self.nic_per_card {
            grouped.between = self.between.map(|link| widened(link, group));
        }
        Ok(grouped)
    }
}

fn joined(card: Card, group: usize) -> Card {
    let times = group as f64;
    Card {
        memory: card.memory.map(|own| own * group as u64),
        peak: card.peak.map(|own| Peak {
            flops: own.flops * times,
            bandwidth: own.bandwidth * times,
        }),
        ..card
    }
}

fn widened(link: Link, group: usize) -> Link {
    let bandwidth = link
        .bandwidth()
        .map(|own| Bytes(own.get().saturating_mul(group as u64)));
    // A multiple of a nonzero bandwidth is nonzero.
    let wider = bandwidth.and_then(|own| Link::new(own, link.latency()).ok());
    wider.unwrap_or(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cluster::KnownNode;

    #[test]
    fn groups_have_the_links_of_their_cards_together() {
        let bandwidth = |link: Option<Link>| link.unwrap().bandwidth().unwrap().get();
        let own = |name: &str| KnownNode::named(name).unwrap().cluster(2).unwrap();
        let (cluster, groups) = (own("dgx-a100"), own("dgx-a100").grouped(8).unwrap());
        assert_eq!(
            bandwidth(groups.link_between()),
            8 * bandwidth(cluster.link_between())
        );
        // A node's single network card is no faster for groups.
        let shared = own("a100-pcie");
        let groups = shared.grouped(8).unwrap();
        assert_eq!(groups.link_between(), shared.link_between());
        assert_eq!(
            bandwidth(groups.link_inside()),
            8 * bandwidth(shared.link_inside())
        );
    }

    #[test]
    fn groups_that_do_not_divide_a_node_are_refused() {
        let cluster = KnownNode::named("rtx-4090").unwrap().cluster(1).unwrap();
        let error = cluster.grouped(8).unwrap_err().to_string();
        assert_eq!(
            error,
            "nodes of 4 cards cannot be divided in groups of 8: a group is on one node; its cards can \
             be 1, 2 or 4"
        );
        assert!(cluster.grouped(0).is_err());
    }
}
