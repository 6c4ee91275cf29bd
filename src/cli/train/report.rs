//! The last step beside its prediction.

use std::path::Path;

use gpipe_partitioner::{CheckedSchedule, Explanation, explain, render, simulate};

use super::Failure;
use super::options::Args;
use crate::StepReport;

/// What the comparison is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Html,
    Svg,
}

impl Format {
    /// The format that a file's name asks for.
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension.map(str::to_lowercase).as_deref() {
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            _ => Err("the name must end in .html (a page) or .svg (a picture)".to_owned()),
        }
    }
}

/// A step that was measured, and what there is to say about it.
#[derive(Debug)]
pub(super) struct Comparison {
    explanation: Explanation,
    /// The step in words: `Step 3`.
    what: String,
    title: String,
}

impl Comparison {
    /// Compares `step` with what its own median times predict for `schedule`, the
    /// schedule that it ran.
    pub(super) fn new(
        args: &Args,
        step: usize,
        report: &StepReport,
        schedule: &CheckedSchedule,
    ) -> Result<Self, Failure> {
        let plan = schedule.schedule();
        let costs = report.timeline.stage_costs(plan.stages());
        let prediction = simulate(schedule, &costs);
        let chunks = match args.chunks() {
            1 => String::new(),
            chunks => format!(" x {chunks} chunks"),
        };
        Ok(Self {
            explanation: explain(&prediction, &report.timeline)?,
            what: format!("Step {step}"),
            title: format!(
                "{}: {} devices{chunks}, {} micro-batches, recompute {}",
                args.schedule,
                plan.devices(),
                plan.micro_batches(),
                args.recompute
            ),
        })
    }

    /// The comparison in lines of at most `width` columns.
    pub(super) fn text(&self, width: usize) -> String {
        render::compare_text(&self.explanation, &self.what, width)
    }

    /// The comparison as the file's name asks for it.
    pub(super) fn file(&self, path: &Path) -> Result<String, Failure> {
        match Format::of(path).map_err(Failure::Usage)? {
            Format::Html => Ok(render::compare_html(
                &self.explanation,
                &self.what,
                &self.title,
            )),
            Format::Svg => Ok(render::compare_svg(&self.explanation, &self.what)),
        }
    }
}
