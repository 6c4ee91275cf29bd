//! Processes that the devices are spread over, and the time of their agreement.
//!
//! A step over several processes counts in all of them or in none: it ends with a vote, and so does an
//! update of the parameters. In round r of a vote each process sends its knowledge to the one 2^r
//! further on, and goes on when it has received that of the one 2^r before (Bruck et al. 1997), so after
//! log2(n) rounds all know everything. Processes finish a vote at different times, and so begin the next
//! step at different times. Nothing is sent to a process before it has announced that it takes values,
//! which is a message, too.

use super::{Machine, MachineError};
use crate::cost::Joins;
use crate::ids::DeviceId;
use crate::timeline::Timeline;
use crate::units::Micros;

/// Number of votes of a training step with its update.
pub const VOTES: usize = 2;

impl Machine {
    /// Spreads all devices of all replicas evenly over processes in order.
    ///
    /// # Errors
    /// [`MachineError::Processes`].
    pub fn with_processes(mut self, processes: usize) -> Result<Self, MachineError> {
        self.processes = processes;
        self.check_processes()
    }

    pub(super) fn check_processes(self) -> Result<Self, MachineError> {
        let (processes, devices) = (self.processes, self.devices.len() * self.replicas);
        if processes == 0 || !devices.is_multiple_of(processes) {
            return Err(MachineError::Processes { processes, devices });
        }
        Ok(self)
    }

    /// Number of processes.
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// Returns, by device of the pipeline, its process and the delay of its start behind the first
    /// process to begin the step, after `votes` votes that followed a step that ended on the first
    /// device; of several replicas, that of the last one. None for one process.
    pub fn joins(&self, votes: usize) -> Option<Vec<Joins>> {
        if self.processes == 1 {
            return None;
        }
        let mut ends = vec![None; self.processes];
        for first in self.each(DeviceId(0)) {
            ends[self.process_of(first)] = Some(Micros::ZERO);
        }
        let begins = self.through(ends, votes);
        let first = begins.iter().min().copied().flatten();
        let after =
            |process: usize| begins[process].unwrap_or_default() - first.unwrap_or_default();
        let of_device = |device: usize| {
            let each = self.each(DeviceId(device)).map(|one| self.process_of(one));
            Joins {
                process: self.process_of(self.number(device, 0)),
                after: each.map(after).max().unwrap_or_default(),
            }
        };
        Some((0..self.devices.len()).map(of_device).collect())
    }

    /// Time from the end of a step's last action until the first device's process has completed `votes`
    /// consecutive votes and can begin the next step. A training step with its update has [`VOTES`].
    /// Zero for one process.
    ///
    /// The size of messages is neglected: they are short, except for the reports of a step with very
    /// many actions.
    #[doc(alias = "barrier")]
    pub fn agreement(&self, step: &Timeline, votes: usize) -> Micros {
        if self.processes == 1 {
            return Micros::ZERO;
        }
        let mut ends = vec![None; self.processes];
        for device in (0..self.devices.len()).map(DeviceId) {
            let of_actions = step.spans_on(device).iter().map(|span| span.end);
            let exchanges = step.exchanges().iter().filter(|own| own.device == device);
            let end = of_actions.chain(exchanges.map(|own| own.end)).max();
            for one in self.each(device) {
                let own = &mut ends[self.process_of(one)];
                *own = end.max(*own);
            }
        }
        let last = ends.iter().max().copied().flatten();
        let through = self.through(ends, votes)[0];
        through.unwrap_or_default() - last.unwrap_or_default()
    }

    /// Returns when each process completes `votes` votes that it begins at `times`; none for one that
    /// began long ago and waits for nothing.
    fn through(&self, mut times: Vec<Option<Micros>>, votes: usize) -> Vec<Option<Micros>> {
        let distances = || std::iter::successors(Some(1), |distance| Some(2 * distance));
        for _ in 0..votes {
            for distance in distances().take_while(|distance| *distance < self.processes) {
                let heard = |process: usize| {
                    let from = (process + self.processes - distance) % self.processes;
                    let told = times[from].map(|time| time + self.hop(from, process));
                    told.max(times[process])
                };
                times = (0..self.processes).map(heard).collect();
            }
        }
        times
    }

    /// Returns the time of a short message between two processes.
    fn hop(&self, from: usize, to: usize) -> Micros {
        let first = |process: usize| process * self.devices_each();
        let inside = || self.link.map_or(Micros::ZERO, |link| link.latency());
        match &self.nodes {
            Some(nodes) if nodes.of(first(from)) != nodes.of(first(to)) => nodes.link().latency(),
            _ => inside(),
        }
    }

    fn devices_each(&self) -> usize {
        self.devices.len() * self.replicas / self.processes
    }

    /// Process of the device with this number among all.
    fn process_of(&self, device: usize) -> usize {
        device / self.devices_each()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::cost::{Costs, Link};
    use crate::ids::StageId;
    use crate::machine::Nodes;
    use crate::schedule::Shape;
    use crate::simulate::simulate;
    use crate::units::Bytes;

    fn link(text: &str) -> Link {
        text.parse().unwrap()
    }

    fn micros(time: f64) -> Micros {
        Micros::new(time).unwrap()
    }

    #[test]
    fn devices_are_divided_evenly_among_processes() {
        let four = || Machine::new(4).unwrap();
        for bad in [0, 3, 8] {
            assert_eq!(
                four().with_processes(bad).unwrap_err().to_string(),
                format!("{bad} processes for 4 devices: each must have as many devices")
            );
        }
        assert!(four().with_processes(4).unwrap().with_replicas(3).is_ok());
        assert_eq!(four().joins(VOTES), None);
    }

    /// Four processes on two nodes, 0 and 1 on the first one. In the first vote 1, 2 and 3 learn of the
    /// end in 0; their messages return to 0 in the second one.
    #[test]
    fn a_vote_doubles_who_knows_in_each_round() {
        let nodes = Nodes::new(vec![2, 2], link("1GB/s,30us")).unwrap();
        let machine = Machine::new(4).unwrap().with_link(link("1GB/s,2us"));
        let machine = machine.with_nodes(nodes).unwrap();
        let machine = machine.with_processes(4).unwrap();
        let after = |votes| -> Vec<f64> {
            let joins = machine.joins(votes).unwrap();
            joins.iter().map(|own| own.after.get()).collect()
        };
        assert_eq!(after(1), [0.0, 2.0, 30.0, 32.0]);
        assert_eq!(after(2), [30.0, 30.0, 60.0, 0.0]);
        let time = micros(100.0);
        let agreement = |kind: ScheduleKind, votes| {
            let schedule = kind.generate(Shape::new(4, 4)).unwrap();
            let step = simulate(&schedule, &Costs::uniform(4, time, time, time)).timeline;
            machine.agreement(&step, votes).get()
        };
        // The last action is device 0's, and the others have voted by then.
        assert_eq!(agreement(ScheduleKind::OneFOneB, 1), 0.0);
        assert_eq!(agreement(ScheduleKind::OneFOneB, VOTES), 62.0);
        // The last action is device 3's.
        assert_eq!(agreement(ScheduleKind::ForwardOnly, 1), 30.0);
        assert_eq!(agreement(ScheduleKind::ForwardOnly, VOTES), 90.0);
    }

    /// Process 1 begins 10 ms after process 0, and its announcement that it takes values arrives 10 ms
    /// later: a value made after 5 ms waits for 15 until it can leave. After a second vote it begins 10
    /// ms before process 0, and nothing waits.
    #[test]
    fn the_first_value_waits_until_it_is_taken() {
        let machine = Machine::new(2).unwrap().with_link(link("1GB/s,10ms"));
        let machine = machine.with_processes(2).unwrap();
        let schedule = ScheduleKind::GPipe.generate(Shape::new(2, 2)).unwrap();
        let time = micros(5_000.0);
        let edge = machine.transfer(DeviceId(0), DeviceId(1), Bytes(0));
        let costs = Costs::uniform(2, time, time, time).with_edge(StageId(0), edge);
        let starts = |costs: &Costs, device: usize| -> Vec<f64> {
            let timeline = simulate(&schedule, costs).timeline;
            let spans = timeline.spans_on(DeviceId(device)).iter();
            spans.map(|span| span.start.get() / 1e3).collect()
        };
        assert_eq!(starts(&costs, 1), [15.0, 20.0, 25.0, 35.0]);
        let after = |votes| costs.clone().with_joins(machine.joins(votes).unwrap());
        assert_eq!(starts(&after(1), 1), [30.0, 35.0, 40.0, 50.0]);
        assert_eq!(starts(&after(2), 1), [15.0, 20.0, 25.0, 35.0]);
    }
}
