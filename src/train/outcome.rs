//! What a run came to.

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
    /// Somebody asked for the end: a [`Stop`](super::Stop) or a signal. The run can be resumed
    /// where it is saved at all.
    Stopped {
        /// The last step.
        step: usize,
    },
    /// So many evaluations in a row were not better than the best one
    /// ([`TrainerBuilder::early_stopping`](super::TrainerBuilder::early_stopping)).
    EarlyStopped {
        /// The last step.
        step: usize,
    },
    /// Somebody asked for the end after the last step, before the held-out loss was measured.
    Unmeasured,
}

/// What a run came to.
///
/// It displays as lines for people, without the [comparison](Outcome::comparison).
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// What each step came to, those of the run that was resumed with them.
    pub records: Vec<StepMetrics>,
    /// The run folder.
    pub folder: PathBuf,
    /// The mean loss on held-out data after the last step, where there was any.
    pub held_out_loss: Option<f64>,
    /// The share of held-out targets that are the class of the largest output, where that is
    /// measured ([`TrainerBuilder::accuracy`](super::TrainerBuilder::accuracy)).
    pub held_out_accuracy: Option<f64>,
    /// The evaluation with the lowest loss, where the run was evaluated while it trained.
    pub best: Option<Evaluation>,
    /// The last step beside its prediction; none before the last step.
    pub comparison: Option<Comparison>,
    /// Memory of the last step, where the pipeline measures it.
    pub memory: Option<MemoryReport>,
    /// What held the run back as far as its input is concerned, and what would help; where the
    /// [feed](super::Feed) measures.
    pub input: Option<Diagnosis>,
    /// Whether all files could be written: the last checkpoint, the metrics and what is about
    /// the last step. What training came to is not lost where they could not.
    pub files: Result<(), TrainError>,
    /// By the times of the last step.
    pub(super) uneven_cut: Option<Uneven>,
    pub(super) others: Option<Others>,
    pub(super) rates: Rates,
    /// Steps that were done before this call, perhaps on other devices.
    pub(super) before: usize,
    pub(super) schedule: String,
    /// Stages of each device.
    pub(super) chunks: usize,
    pub(super) recompute: Recompute,
    /// The step that the plan predicts, in milliseconds.
    pub(super) planned_ms: Option<f64>,
    /// The share of the devices' time in which they are idle, as the plan predicts it.
    pub(super) planned_bubble: Option<f64>,
}

/// What follows from how fast samples are trained on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    /// Tokens of a sample, where it is a sequence of them.
    pub(super) tokens: Option<usize>,
    /// Samples of an epoch.
    pub(super) epoch: Option<usize>,
    /// Operations of a sample, and those per second of all devices together.
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

/// The share by which a last loss is above the first one where more than the draw of the batch differs.
const RISEN: f64 = 0.1;

impl Outcome {
    /// With the steps that the run had done before.
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

    /// Notes how the run is run.
    pub(super) fn run_by(
        &mut self,
        pipe: &mut Pipeline,
        plan: Option<&Plan>,
    ) -> Result<(), TrainError> {
        // What a plan has computed is called that.
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

    /// The steps of this call; where it did none, all there are.
    pub(super) fn measured(&self) -> &[StepMetrics] {
        match self.records.get(self.before..) {
            Some(own) if !own.is_empty() => own,
            _ => &self.records,
        }
    }

    /// Which steps medians are of.
    fn which_steps(&self) -> String {
        match self.measured() {
            own if own.len() == self.records.len() => "all steps".to_owned(),
            [only] => format!("step {}", only.step),
            [first, .., last] => format!("steps {} to {}", first.step, last.step),
            [] => String::new(),
        }
    }

    /// The number of the last step of which there is a line.
    pub fn steps(&self) -> u64 {
        // Lines of earlier steps may be lost.
        self.records.last().map_or(0, |record| record.step)
    }

    /// Whether the loss, or that on held-out data, ended far above where it began.
    pub fn has_diverged(&self) -> bool {
        let own = self.summary();
        let held_out = own.held_out_loss.unwrap_or(own.loss_last);
        self.records.len() > 1 && is_worse(own.loss_first, held_out.max(own.loss_last))
    }

    /// Says why this call has learnt nothing, where that is so: all its updates were skipped, or had
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

    /// What is said of updates that were skipped, or had no learning rate.
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

    /// Describes the whole run: titles, and what they are about.
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

/// Whether an update was made by gradients of which none said anything, while there was a loss.
fn has_no_gradient(step: &StepMetrics) -> bool {
    !step.skipped && step.grad_norm == Some(0.0) && step.loss != 0.0
}

/// Whether a loss is so far above the first one that it is neither noise nor what a trained model loses
/// on data that it has not seen.
fn is_worse(first: f64, last: f64) -> bool {
    first > 0.0 && last > 2.0 * first && last > first + 1.0
}

/// Of milliseconds.
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

/// Whether steps are so short that devices wait for much longer than the schedule has them wait.
pub(super) fn is_short((measured, simulated): (f64, f64), step_ms: f64) -> bool {
    const FAR: f64 = 0.1;
    const SHORT_MS: f64 = 10.0;
    measured - simulated >= FAR && step_ms <= SHORT_MS
}

/// What is said where steps are so short that devices wait for much longer than the schedule has them
/// wait.
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

/// What activations took in the last step: a line for each device, with its title.
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

/// What the plan promised for a step's forward and backward and what they took, in
/// milliseconds.
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

    /// Held out 3.5 at the beginning and 146 at the end was told without a word.
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
        // A trained model that a text is new to has not diverged.
        assert!(!told([0.1055, 0.1143], Some(0.1706)));
    }

    /// A run all of whose updates were skipped ended as one that had learnt.
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
        // What the run learnt before is not what this call has learnt.
        let (why, said) = of(&[&good, &flat, &skipped], 1);
        let both = "1 of 2 updates were skipped, 1 of 2 updates had gradients of 0";
        assert_eq!(why.unwrap(), both);
        assert!(said.unwrap().starts_with("1 of 2 skipped"));
        assert_eq!(of(&[&skipped, &good], 0).0, None);
        assert_eq!(of(&[&solved, &solved], 0), (None, None));
        assert_eq!(of(&[&good], 1).0, None);
        // It was told before the first step, and is told again.
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

    /// Half of the time was idle where a quarter was simulated, and nobody said why.
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
