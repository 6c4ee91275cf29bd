//! Comparison of the last step with its prediction.

use std::path::{Path, PathBuf};

use gpipe_partitioner::render::{ComparePage, StepMemory};
use gpipe_partitioner::simulate::memory_over;
use gpipe_partitioner::words::count;
use gpipe_partitioner::{
    CheckedSchedule, Costs, DeviceId, Explanation, Plan, StageId, Timeline, explain, render,
    simulate,
};

use super::error::TrainError;
use super::folder::{self, RunFolder};
use gpipe_data::{Diagnosis, Limit};
use gpipe_torch::profile::other_programs::Others;
use gpipe_torch::{MemoryReport, MemoryUse, Recompute, StepReport};

/// File format of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// An HTML page.
    Html,
    /// An SVG picture.
    Svg,
}

impl ReportFormat {
    /// Returns the format of a file name.
    ///
    /// # Errors
    /// It ends in neither `.html` nor `.svg`.
    pub fn of(path: &Path) -> Result<Self, String> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension.map(str::to_lowercase).as_deref() {
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            _ => Err("the name must end in .html (a page) or .svg (a picture)".to_owned()),
        }
    }
}

/// Comparison of a measured step with the prediction by its own median times for its schedule, with the
/// causes of the difference.
#[derive(Debug)]
pub struct Comparison {
    explanation: Explanation,
    /// Name of the step: `Step 3`.
    what: String,
    title: String,
    plan: Option<Plan>,
    /// By device; empty if not measured.
    memory: Vec<StepMemory>,
    /// Effect of the input, if measured, and whether it limits training.
    input: Option<(String, bool)>,
}

impl Comparison {
    pub(super) fn new(
        step: usize,
        report: &StepReport,
        schedule: &CheckedSchedule,
        (name, recompute): (&str, &Recompute),
    ) -> Result<Self, TrainError> {
        let own = schedule.schedule();
        let numbers = report.read()?;
        // The schedule is that of the first replica.
        let timeline = &report.of_first_replica(&numbers.timeline);
        let costs = timeline.stage_costs(own.stages());
        let prediction = simulate(schedule, &costs);
        let chunks = match own.stages() / own.devices().max(1) {
            1 => String::new(),
            chunks => format!(" x {chunks} chunks"),
        };
        Ok(Self {
            explanation: explain(&prediction, timeline)?,
            what: format!("Step {step}"),
            title: format!(
                "{name}: {}{chunks}, {}, recompute {recompute}",
                count(own.devices(), "device"),
                count(own.micro_batches(), "micro-batch"),
            ),
            plan: None,
            memory: memory(report.memory.as_ref(), timeline, schedule, costs),
            input: None,
        })
    }

    /// Adds the model's name.
    pub(super) fn of_model(mut self, name: Option<&str>) -> Self {
        if let Some(name) = name {
            self.title = format!("{name}, {}", self.title);
        }
        self
    }

    /// Adds the plan of the run.
    pub(super) fn with_plan(mut self, plan: Option<&Plan>) -> Self {
        self.plan = plan.cloned();
        self
    }

    /// Adds the cores used by other programs: these look like a slow engine, a slow stage or slow
    /// transfers.
    pub(super) fn with_others(mut self, others: Option<Others>) -> Self {
        if let Some(others) = others.filter(Others::are_in_the_way) {
            self.explanation = self.explanation.with_others(in_the_way(&others));
        }
        self
    }

    /// Adds the diagnosis of the run's input.
    pub(super) fn with_input(mut self, input: Option<&Diagnosis>) -> Self {
        self.input = input.map(|own| {
            let sentence = format!("Input of the run: {own}. A batch takes: {}.", own.phases());
            (sentence, own.limit != Limit::Compute)
        });
        self
    }

    /// Returns the prediction by the step's own median times.
    pub fn predicted(&self) -> &Timeline {
        self.explanation.predicted()
    }

    /// Formats the comparison as text of at most `width` columns.
    pub fn text(&self, width: usize) -> String {
        render::compare_text(&self.explanation, &self.what, width)
    }

    /// Formats a sentence: the duration of the step, the predicted duration, and the causes.
    pub fn sentence(&self) -> String {
        self.explanation.sentence(&self.what)
    }

    /// Formats a line: the duration of the step, the predicted duration, and the largest cause.
    pub fn brief(&self) -> String {
        self.explanation.brief()
    }

    /// Renders the comparison as a page or a picture.
    pub fn render(&self, format: ReportFormat) -> String {
        match format {
            ReportFormat::Html => self.page(),
            ReportFormat::Svg => render::compare_svg(&self.explanation, &self.what),
        }
    }

    fn page(&self) -> String {
        let page = ComparePage::new(&self.explanation, &self.what, &self.title)
            .with_memory(self.memory.clone());
        let page = match &self.input {
            Some((sentence, true)) => page.with_warnings(vec![sentence.clone()]),
            Some((sentence, false)) => page.with_notes(vec![sentence.clone()]),
            None => page,
        };
        match &self.plan {
            Some(plan) => page.with_plan(plan).html(),
            None => page.html(),
        }
    }
}

/// Requested files about the last step, outside the run folder.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The timeline, in Chrome's trace format.
    pub(super) trace: Option<PathBuf>,
    /// The comparison.
    pub(super) report: Option<(PathBuf, ReportFormat)>,
}

impl Files {
    pub(super) fn write(
        &self,
        report: &StepReport,
        comparison: &Comparison,
        run: &RunFolder,
    ) -> Result<(), TrainError> {
        let trace = render::chrome_trace(&report.read()?.timeline);
        run.write_trace(&trace)?;
        if let Some(path) = &self.trace {
            folder::write(path, trace.as_bytes())?;
        }
        if let Some((path, format)) = &self.report {
            folder::write(path, comparison.render(*format).as_bytes())?;
        }
        Ok(())
    }
}

/// Describes the use of cores by other programs.
fn in_the_way(others: &Others) -> String {
    format!(
        "Other programs held {:.1} of {}: times of this run say little.",
        others.used,
        count(others.cores, "core"),
    )
}

/// Returns the memory of activations on each device, over the measured timeline.
fn memory(
    measured: Option<&MemoryReport>,
    timeline: &Timeline,
    schedule: &CheckedSchedule,
    costs: Costs,
) -> Vec<StepMemory> {
    let Some(measured) = measured else {
        return Vec::new();
    };
    let seen = measured.micro_batches.iter().enumerate();
    let costs = seen.fold(costs, |costs, (stage, memory)| {
        costs.with_memory(StageId(stage), *memory)
    });
    let device = |(device, used): (usize, &MemoryUse)| {
        let levels = memory_over(schedule, &costs, timeline, DeviceId(device));
        StepMemory {
            levels,
            held: used.held,
            peak: used.peak,
        }
    };
    measured.devices.iter().enumerate().map(device).collect()
}
