//! Simulation from event to event, for devices that share a network card: their values wait for
//! each other in the order in which they become ready.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clock::Clock;
use crate::check::CheckedSchedule;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::timeline::Span;
use crate::units::Micros;
use crate::walk::{Progress, unblocks};

struct Run<'a, 'b, 'c, D> {
    schedule: &'a CheckedSchedule,
    clock: &'b mut Clock<'c, D>,
    progress: Progress<'a>,
    /// By device: index of the next action in its list, and whether it is running.
    heads: Vec<(usize, bool)>,
    /// Ends of running actions, the earliest on top.
    ends: BinaryHeap<Reverse<(Micros, usize)>>,
    spans: Vec<Span>,
}

/// Returns the spans of all devices.
///
/// # Complexity
/// O(actions · log devices).
pub(super) fn spans<D: Fn(Action) -> Micros>(
    schedule: &CheckedSchedule,
    clock: &mut Clock<'_, D>,
) -> Vec<Span> {
    let devices = schedule.schedule().devices();
    let mut run = Run {
        schedule,
        clock,
        progress: Progress::new(schedule.schedule()),
        heads: vec![(0, false); devices],
        ends: BinaryHeap::new(),
        spans: Vec::new(),
    };
    (0..devices).for_each(|device| run.begin(device));
    // A checked schedule continues until every action is done.
    while let Some(Reverse((end, device))) = run.ends.pop() {
        run.end(device, end);
    }
    run.spans
}

impl<D: Fn(Action) -> Micros> Run<'_, '_, '_, D> {
    /// Begins the next action of a device, if the device is free and the action's inputs are sent.
    fn begin(&mut self, device: usize) {
        let (plan, id) = (self.schedule.schedule(), DeviceId(device));
        let (head, working) = self.heads[device];
        let Some(&action) = plan.actions(id).get(head).filter(|_| !working) else {
            return;
        };
        let mut needed = [Some(action), plan.partner(id, head)].into_iter().flatten();
        if !needed.all(|one| self.progress.ready(one)) {
            return;
        }
        let (start, end) = self.clock.run(id, head, action);
        self.spans.push(Span {
            device: id,
            action,
            start,
            end,
        });
        self.heads[device].1 = true;
        self.ends.push(Reverse((end, device)));
    }

    /// Ends a device's action.
    fn end(&mut self, device: usize, end: Micros) {
        let (plan, id) = (self.schedule.schedule(), DeviceId(device));
        let (head, _) = self.heads[device];
        let action = plan.actions(id)[head];
        self.heads[device] = (head + 1, false);
        for gone in self.clock.send(id, head, (action, end)) {
            self.progress.finish(gone);
            if let Some(stage) = unblocks(gone, plan.stages()) {
                self.begin(self.schedule.owner()[stage] as usize);
            }
        }
        self.begin(device);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::builtin::ScheduleKind;
    use crate::check::CheckedSchedule;
    use crate::cost::{Cards, Costs, EdgeTimes, OffloadTimes, Reach, StageTimes};
    use crate::ids::StageId;
    use crate::schedule::Shape;
    use crate::simulate::simulate;
    use crate::units::Micros;

    fn micros(time: u32) -> Micros {
        Micros::new(f64::from(time)).unwrap()
    }

    /// Random times of stages, edges, hosts and offload.
    fn costs(stages: usize) -> impl Strategy<Value = Costs> {
        let stage = (
            prop::array::uniform5(0_u32..20),
            prop::array::uniform4(0_u32..9),
            0_u8..4,
        );
        prop::collection::vec(stage, stages).prop_map(|stages| {
            let times = |[forward, input, weight, ..]: [u32; 5]| StageTimes {
                forward: micros(forward),
                backward: micros(input + weight),
                input: micros(input),
                weight: micros(weight),
                recompute: micros(forward),
            };
            let edge = |occupancy, latency| EdgeTimes {
                occupancy: micros(occupancy),
                latency: micros(latency),
            };
            let mut costs = Costs::new(stages.iter().map(|own| times(own.0)).collect());
            for (stage, (own, other, what)) in stages.into_iter().enumerate() {
                let id = StageId(stage);
                costs = costs.with_edge(id, edge(own[3], own[4]));
                if what & 1 != 0 {
                    let [a, b, c, d] = other;
                    costs = costs.with_host(id, times([a, b, c, d, 0]));
                }
                if what & 2 != 0 {
                    let way = edge(other[0], other[1]);
                    let both = OffloadTimes {
                        to_host: way,
                        to_device: way,
                        pieces: 2,
                    };
                    costs = costs.with_offload(id, both);
                }
            }
            costs
        })
    }

    fn case() -> impl Strategy<Value = (CheckedSchedule, Costs)> {
        let shapes = (
            1_usize..5,
            1_usize..3,
            1_usize..7,
            0..ScheduleKind::ALL.len(),
        );
        let schedule = shapes.prop_filter_map("the schedule has the shape", |(p, v, m, kind)| {
            let shape = Shape::new(p, m).with_chunks(v);
            ScheduleKind::ALL[kind].generate(shape).ok()
        });
        schedule.prop_flat_map(|schedule| {
            let costs = costs(schedule.schedule().stages());
            (Just(schedule), costs)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Unused cards change nothing: times are as without them.
        #[test]
        fn the_order_of_time_gives_the_same_times((schedule, costs) in case()) {
            let devices = schedule.schedule().devices();
            let alone = simulate(&schedule, &costs).timeline;
            let cards = Cards::new(vec![Reach::of_one(0); devices]);
            let found = simulate(&schedule, &costs.with_cards(cards)).timeline;
            prop_assert_eq!(alone, found);
        }

        /// Two devices on separate nodes share no card.
        #[test]
        fn two_devices_with_a_card_each_share_nothing((schedule, costs) in case()) {
            prop_assume!(schedule.schedule().devices() <= 2);
            let alone = simulate(&schedule, &costs).timeline;
            let cards = Cards::new([0, 1].map(Reach::of_one).to_vec());
            let found = simulate(&schedule, &costs.with_cards(cards)).timeline;
            prop_assert_eq!(alone, found);
        }
    }
}
