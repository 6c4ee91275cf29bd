//! The result of a run.

use std::fmt;
use std::path::PathBuf;

use gpipe_partitioner::words::{decimals, long_time};
use gpipe_partitioner::{Micros, Plan};

use super::cut::Uneven;
use super::error::TrainError;
use super::evaluation::Evaluation;
use super::report::Comparison;
use crate::metrics::{StepMetrics, speed};
use gpipe_data::{Diagnosis, waiting};
use gpipe_torch::profile::other_programs::Others;
use gpipe_torch::{MemoryReport, MemoryUse, Pipeline, Recompute};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All steps are done, or the data is at its end.
    AllDone,
    /// A stop was requested: by a [`Stop`](super::Stop) or a signal. The run can be resumed if it is
    /// saved.
    Stopped {
        /// The last step.
        step: usize,
    },
    /// Too many consecutive evaluations were not better than the best one
    /// ([`TrainerBuilder::early_stopping`](super::TrainerBuilder::early_stopping)).
    EarlyStopped {
        /// The last step.
        step: usize,
    },
    /// A stop was requested after the last step, before the held-out evaluation was done.
    Unmeasured,
}

/// The result of a run.
///
/// It displays as lines of text, without the [comparison](Outcome::comparison).
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// Metrics of all steps, including those of a resumed run.
    pub records: Vec<StepMetrics>,
    /// The run folder.
    pub folder: PathBuf,
    /// Mean held-out loss after the last step, if there is held-out data.
    pub held_out_loss: Option<f64>,
    /// Share of held-out targets that equal the class of the largest output, if measured
    /// ([`TrainerBuilder::accuracy`](super::TrainerBuilder::accuracy)).
    pub held_out_accuracy: Option<f64>,
    /// The evaluation with the lowest loss, if there were evaluations during training.
    pub best: Option<Evaluation>,
    /// Comparison of the last step with its prediction; `None` if the last step was not reached.
    pub comparison: Option<Comparison>,
    /// Memory of the last step, if the pipeline measures it.
    pub memory: Option<MemoryReport>,
    /// Diagnosis of what limited the run as far as its input is concerned, if the [feed](super::Feed)
    /// measures it.
    pub input: Option<Diagnosis>,
    /// Whether all files could be written: the last checkpoint, the metrics and the files about the
    /// last step. The other results are valid even if not.
    pub files: Result<(), TrainError>,
    /// By the times of the last step.
    pub(super) uneven_cut: Option<Uneven>,
    pub(super) others: Option<Others>,
    pub(super) rates: Rates,
    /// Steps done before this call, perhaps on other devices.
    pub(super) before: usize,
    pub(super) schedule: String,
    /// Stages per device.
    pub(super) chunks: usize,
    pub(super) recompute: Recompute,
    /// The plan's prediction of a step in milliseconds.
    pub(super) planned_ms: Option<f64>,
    /// The plan's prediction of the devices' idle share.
    pub(super) planned_bubble: Option<f64>,
}

/// Constants for deriving rates from samples.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    /// Tokens per sample, if samples are token sequences.
    pub(super) tokens: Option<usize>,
    /// Samples per epoch.
    pub(super) epoch: Option<usize>,
    /// Operations per sample, and peak operations per second of all devices.
    pub(super) flops: Option<(f64, f64)>,
}

impl Rates {
    pub(super) fn tokens_per_s(&self, samples_per_s: f64) -> Option<f64> {
        self.tokens.map(|tokens| tokens as f64 * samples_per_s)
    }

    pub(super) fn mfu(&self, samples_per_s: f64) -> Option<f64> {
        let (of_sample, peak) = self.flops?;
        Some(of_sample * samples_per_s / peak)
    }
}

/// Relative increase from the first loss to the last that exceeds the noise of batches.
const RISEN: f64 = 0.1;

impl Outcome {
    /// Starts with the steps that the run did before.
    pub(super) fn new(folder: PathBuf, records: Vec<StepMetrics>) -> Self {
        let records_before = records.len();
        Self {
            ended: Ended::AllDone,
            records,
            folder,
            held_out_loss: None,
            held_out_accuracy: None,
            best: None,
            comparison: None,
            memory: None,
            input: None,
            files: Ok(()),
            uneven_cut: None,
            others: None,
            rates: Rates::default(),
            before: records_before,
            schedule: String::new(),
            chunks: 1,
            recompute: Recompute::Never,
            planned_ms: None,
            planned_bubble: None,
        }
    }

    /// Records how the run is executed.
    pub(super) fn run_by(
        &mut self,
        pipe: &mut Pipeline,
        plan: Option<&Plan>,
    ) -> Result<(), TrainError> {
        // A computed schedule is named as in the plan.
        let name = plan.map_or_else(|| pipe.schedule_name(), |plan| plan.schedule.name());
        name.clone_into(&mut self.schedule);
        let schedule = pipe.schedule()?;
        let schedule = schedule.schedule();
        self.chunks = schedule.stages() / schedule.devices().max(1);
        self.recompute.clone_from(pipe.recompute());
        self.planned_ms = plan.map(|plan| plan.step.get() / 1e3);
        self.planned_bubble = plan.map(|plan| plan.bubble_fraction);
        Ok(())
    }

    /// Returns the steps of this call; if it did none, all steps.
    pub(super) fn measured(&self) -> &[StepMetrics] {
        match self.records.get(self.before..) {
            Some(own) if !own.is_empty() => own,
            _ => &self.records,
        }
    }

    /// Describes the steps that medians cover.
    fn which_steps(&self) -> String {
        match self.measured() {
            own if own.len() == self.records.len() => "all steps".to_owned(),
            [only] => format!("step {}", only.step),
            [first, .., last] => format!("steps {} to {}", first.step, last.step),
            [] => String::new(),
        }
    }

    /// Returns the number of the last step with a line of metrics.
    pub fn steps(&self) -> u64 {
        // Lines of earlier steps may be lost.
        self.records.last().map_or(0, |record| record.step)
    }

    /// Whether the training or held-out loss ended far above its beginning.
    pub fn has_diverged(&self) -> bool {
        let own = self.summary();
        let held_out = own.held_out_loss.unwrap_or(own.loss_last);
        self.records.len() > 1 && is_worse(own.loss_first, held_out.max(own.loss_last))
    }

    /// Explains why this call has learned nothing, if so: all its updates were skipped, or had
    /// gradients of 0. A loss of 0 leaves nothing to learn.
    pub fn nothing_learnt(&self) -> Option<String> {
        let own = self.records.get(self.before..).unwrap_or_default();
        let skipped = own.iter().filter(|step| step.skipped).count();
        let flat = own.iter().filter(|step| has_no_gradient(step)).count();
        if own.is_empty() || skipped + flat < own.len() {
            return None;
        }
        let reasons = [(skipped, "were skipped"), (flat, "had gradients of 0")];
        let there = reasons.iter().filter(|(steps, _)| *steps > 0);
        let said = there.map(|(steps, why)| format!("{steps} of {} updates {why}", own.len()));
        Some(said.collect::<Vec<_>>().join(", "))
    }

    /// Describes updates that were skipped, or had a learning rate of 0.
    fn updates(&self) -> Option<String> {
        let own = self.measured();
        let skipped = own.iter().filter(|step| step.skipped).count();
        if skipped == 0 && !own.is_empty() && own.iter().all(|step| step.lr <= 0.0) {
            let all = own.len();
            return Some(format!(
                "{all} of {all} had the learning rate 0: nothing was learnt"
            ));
        }
        let scale = own.last().and_then(|step| step.loss_scale);
        let scale = scale.map_or_else(String::new, |scale| {
            format!("; the loss scale is down to {scale}")
        });
        (skipped > 0).then(|| {
            format!(
                "{skipped} of {} skipped, as the loss or gradients were not finite{scale}",
                own.len()
            )
        })
    }

    /// Describes the whole run: titles and texts.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let own = self.summary();
        let begin = self.records.first().map_or(0, |record| record.step);
        let (first, last, steps) = (own.loss_first, own.loss_last, own.steps);
        let mut loss = format!("{} at step {begin}", decimals(first, 4));
        if steps > begin {
            loss = format!("{loss}, {} at step {steps}", decimals(last, 4));
            if last - first > RISEN * first.abs() && !self.has_diverged() {
                loss += "; it rose: a smaller learning rate, or clipped gradients, may keep it from that";
            }
        }
        let mut lines = Vec::new();
        if self.has_diverged() {
            let said = "the loss ended far above where it began: a smaller learning rate may keep it \
                        from that";
            lines.push(("diverged", said.to_owned()));
        }
        lines.push(("loss", loss));
        lines.extend(self.updates().map(|said| ("updates", said)));
        if let Some(loss) = own.held_out_loss {
            lines.push(("held-out loss", decimals(loss, 4)));
        }
        if let Some(accuracy) = own.held_out_accuracy {
            let percent = 100.0 * accuracy;
            lines.push(("accuracy", format!("{percent:.2} % held out")));
        }
        if let Some(best) = self.best {
            let Evaluation { step, loss, .. } = best;
            let loss = decimals(loss, 4);
            lines.push(("lowest", format!("{loss} held out, after step {step}")));
        }
        let rate = speed(own.samples_per_s, own.tokens_per_s);
        let step = time(own.step_ms_median);
        let all = long_time(time(1e3 * own.elapsed_s));
        lines.push(("speed", format!("{rate} over {all}; median step {step}")));
        match &self.input {
            None => lines.push(("input", waiting(own.input_wait))),
            Some(input) => {
                lines.push(("input", input.to_string()));
                lines.push(("loading", format!("a batch takes {}", input.phases())));
            }
        }
        if let Some(share) = own.mfu {
            let share = 100.0 * share;
            lines.push(("utilisation", format!("{share:.2} % of the devices' peak")));
        }
        if let Some(share) = own.host_share {
            let share = 100.0 * share;
            let said = format!("busy submitting work for {share:.1} % of the devices' time");
            lines.push(("host", said));
        }
        let planned = (self.planned_bubble).map_or_else(String::new, |share| {
            format!("; the plan said {:.1} %", 100.0 * share)
        });
        let bubble = (own.bubble_measured, own.bubble_predicted);
        lines.push((
            "bubble",
            format!(
                "devices idle {:.1} % of the time, {:.1} % as simulated (medians of {}){planned}{}",
                100.0 * bubble.0,
                100.0 * bubble.1,
                self.which_steps(),
                short(bubble, own.step_ms_median)
            ),
        ));
        let cut = self.uneven_cut.as_ref();
        let cut = cut.and_then(|cut| cut.words(bubble.1));
        lines.extend(cut.map(|words| ("cut", words)));
        lines.extend(memory(self.memory.as_ref()));
        if let Some(planned) = own.planned_ms {
            lines.push(("plan", beside(planned, own.makespan_ms_median)));
        }
        lines.push(("run folder", self.folder.display().to_string()));
        lines
    }
}

/// Whether all gradients of an update were 0, although the loss was not.
fn has_no_gradient(step: &StepMetrics) -> bool {
    !step.skipped && step.grad_norm == Some(0.0) && step.loss != 0.0
}

/// Whether a loss is so far above the first one that neither noise nor unseen data explains it.
fn is_worse(first: f64, last: f64) -> bool {
    first > 0.0 && last > 2.0 * first && last > first + 1.0
}

/// Converts milliseconds.
fn time(ms: f64) -> Micros {
    Micros::new(1e3 * ms).unwrap_or(Micros::ZERO)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, text) in self.lines() {
            writeln!(f, "{title:<15}{text}")?;
        }
        match self.ended {
            Ended::AllDone => Ok(()),
            Ended::EarlyStopped { step } => {
                writeln!(
                    f,
                    "{:<15}early after step {step}: no evaluation was better",
                    "ended"
                )
            }
            Ended::Stopped { step } => writeln!(
                f,
                "{:<15}stopped after step {step}; it can be resumed from its newest checkpoint",
                "ended"
            ),
            Ended::Unmeasured => writeln!(
                f,
                "{:<15}stopped after its last step, before the held-out loss was measured",
                "ended"
            ),
        }
    }
}

/// Whether steps are so short that devices idle for much longer than the schedule predicts.
pub(super) fn is_short((measured, simulated): (f64, f64), step_ms: f64) -> bool {
    const FAR: f64 = 0.1;
    const SHORT_MS: f64 = 10.0;
    measured - simulated >= FAR && step_ms <= SHORT_MS
}

/// Explains steps so short that devices idle for much longer than the schedule predicts.
fn short((measured, simulated): (f64, f64), step_ms: f64) -> String {
    if !is_short((measured, simulated), step_ms) {
        return String::new();
    }
    format!(
        "; a step of {} is so short that the time between its passes counts: larger micro-batches or \
         fewer devices make better use of them",
        time(step_ms)
    )
}

/// Describes the memory of activations in the last step, a line per device.
fn memory(report: Option<&MemoryReport>) -> Vec<(&'static str, String)> {
    let devices = report.iter().flat_map(|report| &report.devices);
    let line = |(device, used): (usize, &MemoryUse)| {
        let title = if device == 0 { "activations" } else { "" };
        let said = format!(
            "device {device}: {} kept for backwards ({} predicted), {} at most",
            used.held, used.predicted, used.peak
        );
        (title, said)
    };
    devices.enumerate().map(line).collect()
}

/// Compares the plan's time of a step's forward and backward with the measured one, in milliseconds.
fn beside(planned: f64, measured: f64) -> String {
    let times = measured / planned;
    format!(
        "{} planned, {} measured for forward and backward (median of all steps), {times:.2} times as \
         long",
        time(planned),
        time(measured)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A held-out loss that rose from 3.5 to 146 was once reported without a remark.
    #[test]
    fn a_run_that_ends_far_above_its_beginning_is_told_so() {
        let told = |[first, last]: [f64; 2], held_out: Option<f64>| {
            let record = |(step, loss)| StepMetrics {
                step,
                loss,
                ..StepMetrics::default()
            };
            let records = [(1, first), (2, last)].map(record).to_vec();
            let mut outcome = Outcome::new("run".into(), records);
            outcome.held_out_loss = held_out;
            outcome
                .lines()
                .iter()
                .any(|(title, _)| *title == "diverged")
        };
        assert!(told([3.5, 146.0], None) && told([3.5, 1.0], Some(146.0)));
        assert!(!told([2.0, 2.5], Some(2.5)) && !told([2.0, 1.0], None));
        // A trained model with a higher loss on new text has not diverged.
        assert!(!told([0.1055, 0.1143], Some(0.1706)));
    }

    /// A run with all updates skipped once ended like a successful one.
    #[test]
    fn a_run_that_has_learnt_nothing_says_why() {
        let step = |skipped: bool, lr: f64, norm: f64, loss: f64| StepMetrics {
            loss,
            lr,
            skipped,
            grad_norm: (!skipped).then_some(norm),
            loss_scale: Some(256.0),
            ..StepMetrics::default()
        };
        let [skipped, still, flat, good, solved] = [
            step(true, 0.1, 0.0, 2.0),
            step(false, 0.0, 1.0, 2.0),
            step(false, 0.1, 0.0, 2.0),
            step(false, 0.1, 1.0, 2.0),
            step(false, 0.1, 0.0, 0.0),
        ];
        let of = |steps: &[&StepMetrics], before: usize| {
            let records = steps.iter().map(|&own| own.clone()).collect();
            let mut outcome = Outcome::new("run".into(), records);
            outcome.before = before;
            (outcome.nothing_learnt(), outcome.updates())
        };
        let (why, said) = of(&[&skipped, &skipped], 0);
        assert_eq!(why.unwrap(), "2 of 2 updates were skipped");
        assert_eq!(
            said.unwrap(),
            "2 of 2 skipped, as the loss or gradients were not finite; the loss scale is down to 256"
        );
        // Learning in an earlier run does not count for this call.
        let (why, said) = of(&[&good, &flat, &skipped], 1);
        let both = "1 of 2 updates were skipped, 1 of 2 updates had gradients of 0";
        assert_eq!(why.unwrap(), both);
        assert!(said.unwrap().starts_with("1 of 2 skipped"));
        assert_eq!(of(&[&skipped, &good], 0).0, None);
        assert_eq!(of(&[&solved, &solved], 0), (None, None));
        assert_eq!(of(&[&good], 1).0, None);
        // It was reported before the first step, and is reported again.
        let (why, said) = of(&[&good, &still, &still], 1);
        assert_eq!(why, None);
        let still = "2 of 2 had the learning rate 0: nothing was learnt";
        assert_eq!(said.unwrap(), still);
    }

    /// It said `loss 4.1 at step 1, 4.1 at step 1`.
    #[test]
    fn the_loss_of_a_single_step_is_told_once() {
        let told = |steps: u64| {
            let record = |step| StepMetrics {
                step,
                loss: 5.0 - step as f64,
                ..StepMetrics::default()
            };
            let records = (1..=steps).map(record).collect();
            Outcome::new("run".into(), records).lines()[0].1.clone()
        };
        assert_eq!(told(1), "4.0000 at step 1");
        assert_eq!(told(2), "4.0000 at step 1, 3.0000 at step 2");
    }

    /// Half of the time was idle where a quarter was simulated, without an explanation.
    #[test]
    fn a_bubble_of_short_steps_is_explained() {
        let said = short((0.53, 0.26), 1.25);
        assert!(
            said.starts_with("; a step of 1.25 ms is so short"),
            "{said}"
        );
        for other in [short((0.3, 0.26), 1.25), short((0.53, 0.26), 300.0)] {
            assert_eq!(other, "");
        }
    }

    #[test]
    fn a_plan_stands_beside_what_was_measured() {
        assert_eq!(
            beside(2.0, 3.0).split_once("steps), ").unwrap().1,
            "1.50 times as long"
        );
    }
}
