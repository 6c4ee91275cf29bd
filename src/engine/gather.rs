//! The caller's wait for reports.

use super::failure::{EngineError, StageError, Stall, discard, guarded};
use super::handle::{Engine, StageObserver};
use super::message::{Reply, Report, StepRecord};
use super::program::Program;
use super::spin::Spin;
use super::stage::Stage;
use super::state::{Asked, State};
use super::step_result::{self, EdgeValues, Ended, StepOutcome};
use super::watchdog::{self, Activity, Watchdog};
use gpipe_partitioner::DeviceId;

/// One report from every worker that was asked and did not stall, in order of arrival.
pub(super) struct Gathered<V> {
    reports: Vec<Report<V>>,
    /// The first stall that was detected, even if that device reported later.
    stall: Option<Box<Stall>>,
}

impl<S: Stage> Engine<S> {
    /// Waits until each of `asked` has reported or stalled. Stalled devices are then in `overdue`;
    /// if the command was a step, all others have left it.
    pub(super) fn gather(&mut self, asked: Asked<'_>) -> Result<Gathered<S::Value>, EngineError> {
        let mut watchdog = self.patience.map(|p| Watchdog::new(p, self.devices()));
        let mut missing = asked.devices;
        let (mut reports, mut batch) = (Vec::with_capacity(missing.len()), Vec::new());
        let mut stall = None;
        while !missing.is_empty() {
            match &watchdog {
                None => self.shared.reports.wait(&mut batch, Spin::NONE),
                Some(dog) => self.shared.reports.wait_at_most(&mut batch, dog.pause()),
            }
            for report in batch.drain(..) {
                if let Reply::Lost = report.reply {
                    self.shared.inboxes.stop_all_but(Some(report.device));
                    self.state = State::Broken;
                    return Err(EngineError::WorkerLost {
                        device: report.device,
                    });
                }
                missing.retain(|device| *device != report.device);
                reports.push(report);
            }
            let Some(dog) = &mut watchdog else {
                continue;
            };
            let mut stalled = dog.look(self.shared.devices(), &self.shared.notes);
            stalled.retain(|(device, _)| missing.contains(device));
            if let (Some(&(device, activity)), None) = (stalled.first(), &stall) {
                stall = Some(Box::new(self.stall(device, activity, asked.program)));
                if asked.program.is_some() {
                    self.shared.inboxes.stop_all_but(None);
                }
            }
            if let Some(turns) = &self.shared.turns {
                // Other devices may be waiting for the core slots of stalled ones.
                stalled.iter().for_each(|(device, _)| turns.leave(*device));
            }
            if stalled.len() == missing.len() {
                break;
            }
        }
        self.overdue = missing;
        Ok(Gathered { reports, stall })
    }

    fn stall(&self, device: DeviceId, activity: Activity, program: Option<&Program>) -> Stall {
        let patience = self.patience.unwrap_or_default();
        let mut stall = watchdog::stall(device, activity, patience, program);
        let here = self
            .shared
            .inboxes
            .index(device)
            .map(|index| &*self.placement[index]);
        if let (None, Some([only])) = (stall.stage, here) {
            stall.stage = Some(*only);
        }
        stall.replica = self.shared.inboxes.mesh().named_replica(device);
        let is = |own: &&StageObserver| own.device == device && Some(own.stage) == stall.stage;
        let observer = self.observers.iter().find(is);
        // Without a layer if the observer fails.
        let name = |own: &StageObserver| guarded(|| Ok((own.observer)())).unwrap_or_default();
        stall.layer = observer.and_then(name);
        stall
    }
}

impl<V> Gathered<V> {
    /// Returns `self` if no device stalled, else the first stall.
    pub(super) fn complete(mut self) -> Result<Self, EngineError> {
        let Some(mut stall) = self.stall.take() else {
            return Ok(self);
        };
        stall.after = self.failure().map(Box::new);
        discard(self);
        Err(EngineError::Stalled(stall))
    }

    pub(super) fn in_device_order(mut self) -> impl Iterator<Item = (DeviceId, Reply<V>)> {
        self.reports.sort_by_key(|report| report.device);
        let reports = self.reports.into_iter();
        reports.map(|report| (report.device, report.reply))
    }

    /// Takes the first failure, if there is one.
    fn failure(&mut self) -> Option<StageError> {
        let failed = |report: &Report<V>| matches!(report.reply, Reply::Failed(_));
        let first = self.reports.iter().position(failed)?;
        match self.reports.swap_remove(first).reply {
            Reply::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the result of the step.
    pub(super) fn ended(mut self) -> Ended<V> {
        if let Some(error) = self.failure() {
            discard(self);
            return Ended::Failed(error);
        }
        let left = |report: &Report<V>| matches!(report.reply, Reply::Stopped);
        if self.reports.iter().any(left) {
            discard(self);
            return Ended::Left;
        }
        let (mut exits, mut gradients) = (EdgeValues::new(), EdgeValues::new());
        let mut events = Vec::new();
        for (_, reply) in self.in_device_order() {
            let Reply::Finished(StepRecord {
                exits: values,
                events: log,
            }) = reply
            else {
                continue;
            };
            for (exit, value) in values {
                let side = if exit.gradient {
                    &mut gradients
                } else {
                    &mut exits
                };
                side.insert((exit.edge, exit.micro), value);
            }
            events.push(log);
        }
        Ended::Done(StepOutcome {
            timeline: step_result::timeline(&events),
            exits,
            gradients,
            events: events.into_iter().map(|own| own.actions).collect(),
        })
    }
}
