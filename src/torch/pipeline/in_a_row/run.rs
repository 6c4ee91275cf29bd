//! A run of steps without barriers, and its evaluation.

use std::sync::Arc;

use gpipe_partitioner::{Span, Timeline};

use super::{SharedLoss, StepInARow, StepsInARow};
use crate::error::Error;
use crate::optim::Optimizer;
use crate::pipeline::device_times::by_host;
use crate::pipeline::loss_scale::Scaler;
use crate::pipeline::losses::{Losses, Shares};
use crate::pipeline::report::{StepReport, Unread};
use crate::pipeline::{GradNorm, Pipeline};
use crate::streams::InTransit;
use crate::{Groups, Mode, NonFinite, Row, RowStep, StepSettings, Values, Votes, batch};
use gpipe_engine::{EngineError, Program, StepOutcome};

/// A run of steps, before it begins.
struct Prepared {
    /// The program of one step, and then that of all.
    program: Arc<Program>,
    all: Arc<Program>,
    /// Inputs by edge from the caller, by micro-batch of all steps.
    columns: Vec<Vec<Values>>,
    shares: Vec<Shares>,
    row: Arc<Row>,
    scales: Option<Vec<f64>>,
}

/// A batch cut into micro-batches, and its optimizer settings.
struct Cut {
    sizes: Vec<i64>,
    columns: [Vec<Values>; 2],
    groups: Groups,
}

impl Pipeline {
    /// Trains on as many of these batches as possible without barriers between the steps. Returns
    /// `None` if there are none, or the steps were undone: then the next step must have a barrier.
    ///
    /// # Errors
    /// A stage has not returned, or the engine cannot continue.
    pub(super) fn try_row(
        &mut self,
        optimizer: &mut Optimizer,
        batches: &[Result<(Values, Values), Error>],
        loss: &SharedLoss,
        (first, steps): (usize, &StepsInARow<'_>),
    ) -> Result<Option<Vec<StepInARow>>, Error> {
        // If preparation fails, the step with a barrier reports the error in its own words.
        let prepared = self.prepare_row(optimizer, batches, loss, (first, steps));
        let Ok(Some(Prepared {
            program,
            all,
            columns,
            shares,
            row,
            scales,
        })) = prepared
        else {
            return Ok(None);
        };
        let length = row.steps.len();
        let entered = self.engine.enter_row(&row);
        let ran = entered.and_then(|bytes| {
            self.row_bytes = bytes;
            self.engine.step_in_row(&all, &row, columns)
        });
        let done = match ran {
            Ok(outcome) => self.count_row(&program, outcome, &row, (shares, scales)),
            Err(error) if ends(&error) => {
                // Undone as soon as the stage returns.
                self.engine.undo_row_later();
                return Err(error);
            }
            Err(_) => None,
        };
        let Some(done) = done else {
            self.engine.undo_row()?;
            self.row_pace.undone(row.votes.suspects());
            return Ok(None);
        };
        self.engine.leave_row()?;
        self.row_pace.succeeded();
        self.steps += length as u64;
        if let Some(scaler) = &mut self.scaler {
            (0..length).for_each(|_| scaler.succeeded());
        }
        if let Some(rates) = &steps.rates {
            optimizer.set_lr(rates(first + length - 1));
        }
        Ok(Some(done))
    }

    /// Prepares a run; `None` if nothing can be gained.
    fn prepare_row(
        &mut self,
        optimizer: &Optimizer,
        batches: &[Result<(Values, Values), Error>],
        loss: &SharedLoss,
        (first, steps): (usize, &StepsInARow<'_>),
    ) -> Result<Option<Prepared>, Error> {
        // An invalid limit is left to the step with a barrier.
        let is_limit = steps.max_norm.is_none_or(|limit| limit >= 0.0);
        if batches.len() < 2 || self.programs.learns() || !is_limit {
            return Ok(None);
        }
        let cut = self.cut(optimizer, batches, (first, steps));
        let Some(micro_batches) = cut.first().map(|own| own.sizes.len()) else {
            return Ok(None);
        };
        let id = optimizer.id();
        let barriers = self
            .engine
            .on_each(move |_, stage| stage.needs_barrier(id))?;
        if cut.len() < 2 || barriers.iter().any(Option::is_some) {
            return Ok(None);
        }
        let made = self.programs.in_a_row(micro_batches, cut.len())?;
        let (program, all) = (made.step, made.all);
        let scales = self.scaler.as_ref().map(|own| own.scales(cut.len()));
        let mut columns = vec![Vec::new(), Vec::new()];
        let (mut shares, mut row_steps) = (Vec::new(), Vec::new());
        for (number, own) in cut.into_iter().enumerate() {
            let [inputs, targets] = own.columns;
            columns[0].extend(inputs);
            columns[1].extend(targets);
            let of_step = self.shares(&program, &own.sizes);
            let loss_scale = scales.as_ref().map(|all| all[number]);
            let mode = Mode::Train {
                loss: Arc::clone(&loss.0),
                shares: of_step.of_micros.clone(),
                input_gradient: false,
                non_finite: self.non_finite,
                loss_scale,
            };
            row_steps.push(RowStep {
                settings: Arc::new(StepSettings {
                    step: self.steps + number as u64,
                    mode,
                    caller_events: None,
                }),
                groups: own.groups,
                factor: loss_scale.map(|scale| 1.0 / scale),
            });
            shares.push(of_step);
        }
        let stages = self.partition.stages();
        let row = Row {
            votes: Votes::new(stages, row_steps.len(), steps.max_norm),
            steps: row_steps,
            optimizer: (id, optimizer.alive()),
            skips: self.skips(),
        };
        Ok(Some(Prepared {
            program,
            all,
            columns,
            shares,
            row: Arc::new(row),
            scales,
        }))
    }

    /// Cuts the batches into micro-batches, up to the first batch that differs.
    fn cut(
        &self,
        optimizer: &Optimizer,
        batches: &[Result<(Values, Values), Error>],
        (first, steps): (usize, &StepsInARow<'_>),
    ) -> Vec<Cut> {
        let one = |number: usize, given: &Result<(Values, Values), Error>| -> Option<Cut> {
            let (input, target) = given.as_ref().ok()?;
            let samples = batch::samples(input, "input", None).ok()?;
            batch::samples(target, "target", Some(samples)).ok()?;
            if input.present().any(tch::Tensor::requires_grad) {
                return None;
            }
            let sizes = batch::sizes(samples, self.programs.micro_batches());
            let rate = steps.rates.as_ref().map(|rates| rates(first + number));
            Some(Cut {
                groups: optimizer.groups_at(rate).ok()?,
                columns: [
                    batch::scatter(input, &sizes).ok()?,
                    batch::scatter(target, &sizes).ok()?,
                ],
                sizes,
            })
        };
        let mut all: Vec<Cut> = Vec::new();
        for (number, given) in batches.iter().enumerate() {
            let Some(own) = one(number, given) else { break };
            let alike = |first: &Cut| first.sizes.len() == own.sizes.len();
            if !all.first().is_none_or(alike) {
                break;
            }
            all.push(own);
        }
        all
    }

    /// Returns whether a non-finite gradient skips its step.
    fn skips(&self) -> bool {
        self.non_finite == NonFinite::Skip || self.scaler.is_some()
    }

    /// Returns the reports of steps that have ended on all stages, if all of them count unchanged.
    fn count_row(
        &self,
        program: &Arc<Program>,
        outcome: StepOutcome<InTransit>,
        row: &Row,
        (shares, scales): (Vec<Shares>, Option<Vec<f64>>),
    ) -> Option<Vec<StepInARow>> {
        let timelines = timelines(&outcome, row.steps.len());
        let mut exits = outcome.exits.into_values().map(|sent| sent.values);
        let mut done = Vec::new();
        for ((number, timeline), shares) in timelines.into_iter().enumerate().zip(&shares) {
            let parts = exits.by_ref().take(program.micro_batches());
            let losses = Losses::new(&self.engine, parts, shares).ok()?;
            let total = losses.total().ok()?;
            let is_skipped = self.non_finite == NonFinite::Skip && !total.is_finite();
            // A loss with weights is computed only when all of them are known.
            if is_skipped || losses.weight_scale().is_some() {
                return None;
            }
            let unread = Unread {
                loss_scale: scales.as_ref().map(|all| all[number]),
                ..Unread::new(losses, timeline)
            };
            done.push(StepInARow {
                report: StepReport::new(program, unread),
                grad_norm: row.votes.norm(number).map(GradNorm::known),
                barrier: false,
            });
        }
        Some(done)
    }
}

/// Returns the timeline of each step; a device has equally many actions in each.
fn timelines(outcome: &StepOutcome<InTransit>, steps: usize) -> Vec<Timeline> {
    let of_step = |step: usize| {
        let spans = (0..).map(gpipe_partitioner::DeviceId).zip(&outcome.events);
        let spans = spans.flat_map(|(device, events)| {
            let each = events.len() / steps;
            let own = events[step * each..(step + 1) * each].iter();
            own.map(move |event| by_host(device, event))
        });
        Timeline::new(outcome.events.len(), spans.collect::<Vec<Span>>())
    };
    (0..steps).map(of_step).collect()
}

/// Returns whether a step with a barrier could not succeed either.
fn ends(error: &Error) -> bool {
    match error {
        Error::Engine(error) => !matches!(error, EngineError::Stage(_)),
        _ => false,
    }
}

impl Scaler {
    /// Returns the scales of the next steps if all of them count.
    fn scales(&self, steps: usize) -> Vec<f64> {
        let mut state = self.state();
        let scale = |_| {
            let scale = state.scale();
            state.succeeded(self.growth_interval());
            scale
        };
        (0..steps).map(scale).collect()
    }
}
