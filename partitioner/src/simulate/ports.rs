//! Network cards of nodes, and their use over time.
//!
//! A value leaves over the card of its sender's node and arrives over that of the receiver's, at
//! the same time. A card carries one value at a time each way, in the order of readiness; values
//! must be given in that order. (So a value that is ready sooner, by a faster link for example, can
//! delay a more urgent one: a step on better links need not be shorter.)
//!
//! An exchange of gradients is cut into packets that use the time left by the values, for which
//! devices wait: it delays none of them.

use crate::cost::{Cards, Reach};
use crate::ids::DeviceId;
use crate::units::Micros;

/// Start and end.
type Period = (Micros, Micros);

/// The cards of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Ports<'a> {
    cards: &'a Cards,
    /// Time at which each card can send the next value.
    sends: Vec<Micros>,
    /// Time at which each card can receive the next value.
    receives: Vec<Micros>,
    /// Periods in which each card is in use in either direction.
    used: Vec<Vec<Period>>,
}

impl<'a> Ports<'a> {
    pub(super) fn new(cards: &'a Cards) -> Self {
        let count = cards.count();
        Self {
            cards,
            sends: vec![Micros::ZERO; count],
            receives: vec![Micros::ZERO; count],
            used: vec![Vec::new(); count],
        }
    }

    /// Whether values between two devices use cards.
    pub(super) fn between(&self, from: DeviceId, to: DeviceId) -> bool {
        self.cards.cross(from, to)
    }

    /// Carries a value that is ready at `ready` and takes `occupancy`; returns when it has passed.
    pub(super) fn carry(
        &mut self,
        (from, to): (DeviceId, DeviceId),
        ready: Micros,
        occupancy: Micros,
    ) -> Micros {
        let (from, to) = (self.nodes(from), self.nodes(to));
        let sends = self.sends[from.clone()].iter();
        let free = sends.chain(&self.receives[to.clone()]);
        let start = free.fold(ready, |start, &free| start.max(free));
        let end = start + occupancy;
        self.sends[from.clone()].fill(end);
        self.receives[to.clone()].fill(end);
        for node in from.chain(to) {
            self.used[node].push((start, end));
        }
        end
    }

    /// Whether the replicas of a device are on several nodes.
    pub(super) fn spread(&self, device: DeviceId) -> bool {
        self.cards.of(device).exchanges
    }

    /// Carries gradients between the replicas of a device, after all values; returns start and end.
    /// They keep both ways of each card busy for `occupancy`.
    pub(super) fn exchange(
        &mut self,
        device: DeviceId,
        ready: Micros,
        occupancy: Micros,
    ) -> Period {
        let nodes = self.nodes(device);
        let each = nodes.map(|node| fill(&mut self.used[node], ready, occupancy));
        let both = |(a, b): Period, (c, d): Period| (a.min(c), b.max(d));
        each.reduce(both).unwrap_or((ready, ready))
    }

    fn nodes(&self, device: DeviceId) -> std::ops::Range<usize> {
        let Reach { first, last, .. } = self.cards.of(device);
        first..last + 1
    }
}

/// Takes `left` of the free time from `ready` on; returns start and end.
fn fill(used: &mut Vec<Period>, ready: Micros, mut left: Micros) -> Period {
    used.sort_unstable();
    let mut taken: Vec<Period> = Vec::new();
    let mut now = ready;
    for &(start, end) in used.iter().filter(|(_, end)| *end > ready) {
        if start > now {
            let piece = left.min(start - now);
            taken.push((now, now + piece));
            left = left - piece;
            if left == Micros::ZERO {
                break;
            }
        }
        now = now.max(end);
    }
    if left > Micros::ZERO || taken.is_empty() {
        taken.push((now, now + left));
    }
    let whole = (taken[0].0, taken[taken.len() - 1].1);
    used.extend(taken);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(time: f64) -> Micros {
        Micros::new(time).unwrap()
    }

    fn period((start, end): (f64, f64)) -> Period {
        (micros(start), micros(end))
    }

    #[test]
    fn an_exchange_takes_what_is_left() {
        // In use from 2 to 4 and, both ways at different times, from 6 to 9.
        let mut used = [(6.0, 8.0), (2.0, 4.0), (7.0, 9.0)].map(period).to_vec();
        assert_eq!(
            fill(&mut used, micros(0.0), micros(1.0)),
            period((0.0, 1.0))
        );
        // 1 to 2, 4 to 6, 9 to 11.
        assert_eq!(
            fill(&mut used, micros(0.0), micros(5.0)),
            period((1.0, 11.0))
        );
        assert_eq!(
            fill(&mut used, micros(3.0), micros(1.0)),
            period((11.0, 12.0))
        );
        assert_eq!(
            fill(&mut used, micros(20.0), micros(0.0)),
            period((20.0, 20.0))
        );
    }

    #[test]
    fn a_card_sends_one_value_at_a_time_and_takes_in_one() {
        let cards = Cards::new([0, 0, 1, 2].map(Reach::of_one).to_vec());
        let mut ports = Ports::new(&cards);
        let mut carry = |from, to, ready| {
            let way = (DeviceId(from), DeviceId(to));
            ports.carry(way, micros(ready), micros(10.0)).get()
        };
        assert_eq!(carry(0, 2, 0.0), 10.0);
        // Both ways at the same time.
        assert_eq!(carry(2, 0, 1.0), 11.0);
        // From the same node to another one: the card is in use until 10.
        assert_eq!(carry(1, 3, 2.0), 20.0);
        // To a node that is receiving until 20.
        assert_eq!(carry(2, 3, 11.0), 30.0);
    }
}
