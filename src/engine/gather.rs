//! The caller's wait for reports.

use super::entry::{self, Outcome, Values};
use super::failure::{EngineError, StageError, discard};
use super::handle::Engine;
use super::message::{News, Record, Report};
use super::patience::Patience;
use super::program::Program;
use super::settled::State;
use super::stage::{Observer, Stage};
use super::watchdog::{Doing, Stall, Watchdog};
use gpipe_partitioner::{DeviceId, StageId};

/// Devices that were asked for a report.
pub(super) struct Asked<'a> {
    devices: Vec<DeviceId>,
    /// The step that they were asked to run, if it was a step.
    program: Option<&'a Program>,
}

impl<'a> Asked<'a> {
    pub(super) fn these(devices: Vec<DeviceId>) -> Self {
        Self {
            devices,
            program: None,
        }
    }

    pub(super) fn all(devices: usize) -> Self {
        Self::these((0..devices).map(DeviceId).collect())
    }

    /// To run their part of a step.
    pub(super) fn of_step(self, program: &'a Program) -> Self {
        Self {
            program: Some(program),
            ..self
        }
    }
}

/// One report from every worker that was asked and has not stalled, in order of arrival.
pub(super) struct Gathered<V> {
    reports: Vec<Report<V>>,
    /// The first stall that was noticed, even where that device came back later.
    stall: Option<Box<Stall>>,
}

impl<S: Stage> Engine<S> {
    /// Waits until each of `asked` has reported or stalled. Those that owe their report
    /// then are in `owing`; where it was a step, nobody else is in it any more.
    pub(super) fn gather(&mut self, asked: Asked<'_>) -> Result<Gathered<S::Value>, EngineError> {
        let mut watchdog = self.patience.map(|p| Watchdog::new(p, self.devices()));
        let mut missing = asked.devices;
        let (mut reports, mut batch) = (Vec::with_capacity(missing.len()), Vec::new());
        let mut stall = None;
        while !missing.is_empty() {
            match &watchdog {
                None => self.lines.reports.wait(&mut batch, Patience::NONE),
                Some(dog) => self.lines.reports.wait_at_most(&mut batch, dog.pause()),
            }
            for report in batch.drain(..) {
                if let News::Lost = report.news {
                    self.lines.stop_all_but(report.device);
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
            let mut stalled = dog.look(&self.lines.notes);
            stalled.retain(|(device, _)| missing.contains(device));
            if let (Some(&(device, doing)), None) = (stalled.first(), &stall) {
                stall = Some(self.stall(device, doing, asked.program));
                if asked.program.is_some() {
                    self.lines.stop_all();
                }
            }
            if let Some(turns) = &self.lines.turns {
                // Others may wait for their places.
                stalled.iter().for_each(|(device, _)| turns.leave(*device));
            }
            if stalled.len() == missing.len() {
                break;
            }
        }
        self.owing = missing;
        Ok(Gathered { reports, stall })
    }

    fn stall(&self, device: DeviceId, doing: Doing, program: Option<&Program>) -> Box<Stall> {
        let patience = self.patience.unwrap_or_default();
        let mut stall = Stall::new(device, doing, patience, program);
        if let (None, [only]) = (stall.stage, &*self.placement[device.index()]) {
            stall.stage = Some(*only);
        }
        let observer = |(stage, _): &&(StageId, Observer)| Some(*stage) == stall.stage;
        let observer = self.observers.iter().find(observer);
        stall.layer = observer.and_then(|(_, observer)| observer());
        Box::new(stall)
    }
}

impl<V> Gathered<V> {
    /// Itself, if nobody stalled.
    pub(super) fn complete(mut self) -> Result<Self, EngineError> {
        let Some(mut stall) = self.stall.take() else {
            return Ok(self);
        };
        stall.after = self.failure().map(Box::new);
        discard(self);
        Err(EngineError::Stalled(stall))
    }

    pub(super) fn in_device_order(mut self) -> impl Iterator<Item = (usize, News<V>)> {
        self.reports.sort_by_key(|report| report.device);
        self.reports
            .into_iter()
            .map(|report| (report.device.index(), report.news))
    }

    /// What failed first, if anything did.
    fn failure(&mut self) -> Option<StageError> {
        let failed = |report: &Report<V>| matches!(report.news, News::Failed(_));
        let first = self.reports.iter().position(failed)?;
        match self.reports.swap_remove(first).news {
            News::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// What the step brought, or its first failure.
    pub(super) fn outcome(mut self) -> Result<Outcome<V>, StageError> {
        if let Some(error) = self.failure() {
            discard(self);
            return Err(error);
        }
        let (mut exits, mut gradients, mut events) = (Values::new(), Values::new(), Vec::new());
        for (_, news) in self.in_device_order() {
            let News::Finished(Record {
                exits: values,
                events: log,
            }) = news
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
        Ok(Outcome {
            timeline: entry::timeline(&events),
            exits,
            gradients,
            events,
        })
    }
}
