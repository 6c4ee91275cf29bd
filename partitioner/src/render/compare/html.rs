//! The comparison as one self-contained HTML page.

use super::{causes, longer, svg::picture};
use crate::explain::{Explanation, StageRow, noun};
use crate::ids::DeviceId;
use crate::plan::Plan;
use crate::render::memory::{self, Curve};
use crate::render::page::{Fact, Page, Table, chart, percent, sentence as words, time};
use crate::simulate::MemoryLevel;
use crate::units::Bytes;
use crate::words::count;
use std::fmt::Write as _;

/// Memory of activations on one device in a measured step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// Over the step: the bytes held at each measured time, computed from the measured bytes per
    /// micro-batch.
    pub levels: Vec<MemoryLevel>,
    /// Measured maximum between two actions.
    pub held: Bytes,
    /// Measured maximum while an action ran.
    pub peak: Bytes,
}

/// HTML page about a measured step.
#[derive(Clone, Debug)]
pub struct ComparePage<'a> {
    explanation: &'a Explanation,
    what: String,
    title: String,
    plan: Option<&'a Plan>,
    memory: Vec<StepMemory>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> ComparePage<'a> {
    /// Creates a page about a step and its prediction; `what` names the step ("Step 3").
    pub fn new(explanation: &'a Explanation, what: &str, title: &str) -> Self {
        Self {
            explanation,
            what: what.to_owned(),
            title: title.to_owned(),
            plan: None,
            memory: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds the plan that the step was run by, with its prediction.
    #[must_use]
    pub fn with_plan(mut self, plan: &'a Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Adds the memory of activations, one entry per device.
    #[must_use]
    pub fn with_memory(mut self, memory: Vec<StepMemory>) -> Self {
        self.memory = memory;
        self
    }

    /// Adds sentences that explain the numbers.
    #[must_use]
    pub fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.notes = notes;
        self
    }

    /// Adds sentences about problems: they stand out.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// Returns the page: the picture of [`compare_svg`](crate::render::compare_svg), a sentence
    /// about the difference, tables of its causes, of the devices' time and of the stages' work,
    /// and memory over time. Loads nothing; readable in light and dark and in black and white, by
    /// keyboard and by screen reader.
    pub fn html(&self) -> String {
        let explanation = self.explanation;
        let mut page = Page::new("a measured step and its prediction", &self.title);
        let sentence = words(&explanation.sentence(&self.what));
        page.facts(&self.facts());
        page.intro(&format!("<p id=\"sentence\">{sentence}</p>\n"));
        page.notes(&self.warnings, &self.notes);
        page.intro(&self.promise());
        page.section("timeline", "Measured and predicted", &self.timelines());
        page.section("causes", "Why they differ", &cause_table(explanation));
        if !self.memory.is_empty() {
            page.section("memory", "Memory over time", &self.memory());
        }
        let times = device_table(explanation) + &stage_table(explanation);
        page.section("devices", "Devices and stages", &times);
        page.finish()
    }

    fn facts(&self) -> Vec<Fact> {
        let (measured, predicted) = (self.explanation.measured(), self.explanation.predicted());
        let mut facts = vec![
            Fact::new(
                "Measured step",
                measured.makespan().to_string(),
                format!("bubble {}", percent(measured.bubble_fraction())),
            ),
            Fact::new(
                "Predicted step",
                predicted.makespan().to_string(),
                format!(
                    "bubble {}, by this step\u{2019}s own times",
                    percent(predicted.bubble_fraction())
                ),
            ),
            Fact::new(
                "Difference",
                self.explanation.difference().to_string(),
                "measured less predicted".to_owned(),
            ),
        ];
        if let Some(plan) = self.plan {
            let times = measured.makespan().get() / plan.step.get().max(f64::MIN_POSITIVE);
            facts.push(Fact::new(
                "The plan said",
                plan.step.to_string(),
                format!(
                    "bubble {}; this step took {times:.2} times as long",
                    percent(plan.bubble_fraction)
                ),
            ));
        }
        let fullest = self
            .memory
            .iter()
            .enumerate()
            .max_by_key(|(_, memory)| memory.peak);
        if let Some((device, memory)) = fullest {
            facts.push(Fact::new(
                "Peak of activations",
                memory.peak.to_string(),
                format!("on device {device}"),
            ));
        }
        facts
    }

    /// Describes the plan's prediction.
    fn promise(&self) -> String {
        let Some(plan) = self.plan else {
            return String::new();
        };
        format!(
            "<p class=\"hint\">The plan predicts from the profile, where layers were measured one by one; the \
             picture\u{2019}s prediction takes the median times of this very step. So a step that is as long as \
             this prediction, but not as the plan\u{2019}s, had other times than the profile. The plan: \
             schedule {}, {} of {}.</p>\n",
            plan.schedule,
            count(plan.micro_batches, "micro-batch"),
            count(plan.micro_batch_size, "sample")
        )
    }

    fn timelines(&self) -> String {
        let label = format!(
            "Timelines of {} devices, measured and predicted",
            self.explanation.measured().devices()
        );
        chart(&label, &picture(self.explanation, &self.what))
    }

    fn memory(&self) -> String {
        let curves: Vec<Curve> = self.memory.iter().enumerate().map(curve).collect();
        let mut table = Table::new(
            "What activations took",
            &[
                "device",
                "held, predicted",
                "held, measured",
                "peak of an action, measured",
            ],
        );
        for (curve, memory) in curves.iter().zip(&self.memory) {
            table.row(
                &curve.device.to_string(),
                &[curve.peak().bytes, memory.held, memory.peak].map(|bytes| bytes.to_string()),
            );
        }
        let mut html = String::from(
            "<p>Activations between forward and backward at the measured times, with the bytes that \
             micro-batches were seen to keep; parameters, gradients and optimizer state are not in \
             it. Lines across are what was measured: held is the most between two actions, peak the \
             most while one ran.</p>\n",
        );
        // Writing to a String cannot fail.
        let _ = write!(
            html,
            "<div class=\"chart\" role=\"group\" tabindex=\"0\" aria-label=\"Memory over time\">\n{}\
             </div>\n{}",
            memory::picture(&curves, super::end(self.explanation)),
            table.finish()
        );
        html
    }
}

fn curve((device, memory): (usize, &StepMemory)) -> Curve {
    Curve {
        device: DeviceId(device),
        standing: [Bytes::ZERO; 2],
        base: Vec::new(),
        levels: memory.levels.clone(),
        held: memory.levels.clone(),
        limit: None,
        peak_name: "predicted",
        marks: vec![
            ("measured held", memory.held),
            ("measured peak", memory.peak),
        ],
    }
}

/// Returns the page of a [`ComparePage`] without plan and memory; `what` names the step ("Step 3").
pub fn compare_html(explanation: &Explanation, what: &str, title: &str) -> String {
    ComparePage::new(explanation, what, title).html()
}

fn cause_table(explanation: &Explanation) -> String {
    let columns = ["cause", "longer by", "of the prediction", "*meaning"];
    let mut table = Table::new("Causes of the difference", &columns);
    for cause in causes(explanation) {
        let meaning = format!("*{}", cause.meaning);
        table.row(cause.name, &[cause.delta, cause.share, meaning]);
    }
    table.finish()
}

fn device_table(explanation: &Explanation) -> String {
    let columns = [
        "device",
        "busy",
        "waiting for work",
        "waiting for hand-over",
        "overhead",
        "predicted busy",
        "predicted idle",
    ];
    let mut table = Table::new("Each device\u{2019}s time", &columns);
    for device in explanation.devices() {
        let cells = [
            device.busy,
            device.waiting,
            device.link,
            device.overhead,
            device.predicted_busy,
            device.predicted_idle,
        ];
        table.row(&device.device.to_string(), &cells.map(time));
    }
    table.finish()
}

fn stage_table(explanation: &Explanation) -> String {
    // If a step is predicted by its own medians, both columns are equal.
    let apart = |own: &StageRow| own.predicted.to_string() != own.median.to_string();
    let apart = explanation.stages().iter().any(apart);
    let mut columns = vec!["stage and work", "actions"];
    columns.extend(apart.then_some("predicted, each"));
    columns.extend([
        "median",
        "longer, together",
        "warm-up",
        "this alone makes the step longer by",
    ]);
    let mut table = Table::new("Each stage\u{2019}s work", &columns);
    for stage in explanation.stages() {
        let effect = stage.effect.map(|effect| effect.to_string());
        let mut cells = vec![stage.count.to_string()];
        cells.extend(apart.then(|| stage.predicted.to_string()));
        cells.extend([
            stage.median.to_string(),
            longer(stage.extra),
            longer(stage.warm_up),
            effect.unwrap_or_else(|| "\u{2013}".to_owned()),
        ]);
        table.row(&format!("{} {}", stage.stage, noun(stage.kind)), &cells);
    }
    table.finish()
}
