//! From one end of an action to the next, where values of several devices share a card and so
//! wait for each other in the order in which they become ready.

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
    /// The place in its list at which each device is, and whether it is at work there.
    heads: Vec<(usize, bool)>,
    /// When what devices do ends, the first one on top.
    ends: BinaryHeap<Reverse<(Micros, usize)>>,
    spans: Vec<Span>,
}

/// What each device does.
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
    // A checked schedule goes on until every action has been done.
    while let Some(Reverse((end, device))) = run.ends.pop() {
        run.end(device, end);
    }
    run.spans
}

impl<D: Fn(Action) -> Micros> Run<'_, '_, '_, D> {
    /// Begins the next action of a device, if the device is free and what it needs is sent.
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

    /// A device's action has ended.
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
