//! A profile and the plan that was made from it, as one self-contained HTML page.

mod header;
mod layers;
mod rows;
mod schedules;
mod skyline;

use super::memory::{self, Curve};
use super::page::{Page, chart, escaped, percent, sentence};
use super::{html, svg};
use crate::builtin::ScheduleError;
use crate::ids::DeviceId;
use crate::machine::Device;
use crate::plan::{Plan, PlanOptions};
use crate::profile::{LayerCost, Profile};
use crate::simulate::{Simulation, simulate};
use crate::solve::Problem;
use crate::units::Bytes;

/// The most actions that are drawn one by one.
const MAX_DRAWN: usize = 30_000;
/// The most devices whose memory is drawn; all are in the table.
const MAX_CURVES: usize = 16;

/// Why there is no page.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The plan is for another model or machine.
    #[error("the plan is for {planned} {what}, not {given}: it was made from another profile")]
    Other {
        /// Layers or devices.
        what: &'static str,
        /// In the plan.
        planned: usize,
        /// In the profile, or in the options' machine.
        given: usize,
    },
    /// The plan's schedule does not exist for its numbers.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// What a page about a profile and a plan shows.
///
/// # Examples
/// ```
/// use gpipe_partitioner::render::ProfilePage;
/// use gpipe_partitioner::{LayerProfile, Machine, Micros, PlanOptions, Profile, LayerTimes, plan};
///
/// let time = Micros::new(100.0)?;
/// let layer = |n| LayerProfile::new(format!("block.{n}"), LayerTimes::new(time, time, time));
/// let profile = Profile::new("cpu", 4, (0..6).map(layer).collect())?;
/// let options = PlanOptions::new(Machine::new(2)?);
/// let plan = plan(&profile, &options)?;
/// let page = ProfilePage::new("a model", &profile, &plan, &options)?.html();
/// assert!(page.contains("<h1>a model</h1>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ProfilePage<'a> {
    title: String,
    profile: &'a Profile,
    plan: &'a Plan,
    options: &'a PlanOptions,
    simulation: Simulation,
    /// For micro-batches as the plan has them.
    costs: Vec<LayerCost>,
    limit: Option<String>,
    about: Option<String>,
    doubts: Option<Vec<String>>,
}

impl<'a> ProfilePage<'a> {
    /// A page about `plan`, which was made from `profile` with `options`; `title` names
    /// the model.
    ///
    /// # Errors
    /// If the plan is for other numbers of layers or devices, or its schedule does not
    /// exist.
    pub fn new(
        title: &str,
        profile: &'a Profile,
        plan: &'a Plan,
        options: &'a PlanOptions,
    ) -> Result<Self, PageError> {
        let same = |what, planned, given| {
            let other = PageError::Other {
                what,
                planned,
                given,
            };
            (planned == given).then_some(()).ok_or(other)
        };
        same("layers", plan.partition.layers(), profile.layers().len())?;
        let devices = options.machine.devices().len();
        same("devices", plan.devices(), devices)?;
        let schedule = plan.generate()?;
        let problem = Problem::new(profile, plan.micro_batch_size, &options.machine, &schedule)
            .with_optimizer_state(options.optimizer_state);
        let costs = problem.stage_costs(&plan.partition, &plan.recompute);
        Ok(Self {
            title: title.to_owned(),
            profile,
            plan,
            options,
            simulation: simulate(&schedule, &costs),
            costs: profile.costs(plan.micro_batch_size),
            limit: None,
            about: None,
            doubts: profile.doubts().map(<[String]>::to_vec),
        })
    }

    /// The same with a sentence on what limits the plan.
    #[must_use]
    pub fn with_limit(mut self, sentence: impl Into<String>) -> Self {
        self.limit = Some(sentence.into());
        self
    }

    /// The same with a line below the title, such as the model's sizes.
    #[must_use]
    pub fn with_about(mut self, line: impl Into<String>) -> Self {
        self.about = Some(line.into());
        self
    }

    /// The same with what speaks against the measurements; an empty list says that
    /// nothing does.
    #[must_use]
    pub fn with_doubts(mut self, doubts: Vec<String>) -> Self {
        self.doubts = Some(doubts);
        self
    }

    /// The page: what was chosen, the layers with the cuts between them, the predicted
    /// timeline, memory over time, the schedules compared, and doubts. Loads nothing;
    /// readable in light and dark and in black and white, by keyboard and by screen
    /// reader, and without its script.
    pub fn html(&self) -> String {
        let mut page = Page::new("profile and plan", &self.title);
        if let Some(about) = &self.about {
            page.intro(&format!("<p class=\"hint\">{}</p>\n", escaped(about)));
        }
        page.facts(&header::facts(self));
        page.intro(&header::words(self));
        page.section("layers", "Layers and cuts", &layers::section(self));
        page.section("timeline", "Predicted timeline", &self.timeline());
        page.section("memory", "Memory over time", &self.memory());
        page.section("schedules", "Schedules compared", &schedules::section(self));
        page.section("doubts", "Doubts", &self.doubts());
        page.finish()
    }

    fn timeline(&self) -> String {
        let timeline = &self.simulation.timeline;
        let actions = timeline.spans().len();
        let mut html = if actions <= MAX_DRAWN {
            let label = "Predicted timeline of the devices";
            chart(label, &svg::svg(timeline))
        } else {
            format!(
                "{}<p>{actions} actions are too many for a picture: <code>gpipe-rs simulate --format \
                 trace</code> writes them for a viewer that zooms.</p>\n",
                svg::canvas::shared()
            )
        };
        html.push_str(&html::devices(timeline));
        html
    }

    /// What each device holds over the step.
    fn curves(&self) -> Vec<Curve> {
        let devices = self.options.machine.devices().iter().enumerate();
        let curve = |(device, machine): (usize, &Device)| Curve {
            limit: machine.memory,
            ..Curve::new(&self.simulation, DeviceId(device))
        };
        devices.map(curve).collect()
    }

    fn memory(&self) -> String {
        let mut curves = self.curves();
        let table = memory::table(&curves);
        let all = curves.len();
        curves.sort_by_key(|curve| std::cmp::Reverse(curve.peak().bytes));
        curves.truncate(MAX_CURVES);
        curves.sort_by_key(|curve| curve.device);
        let which = if curves.len() < all {
            format!(" The {MAX_CURVES} fullest of {all} devices are drawn.")
        } else {
            String::new()
        };
        format!(
            "<p>Parameters and the optimizer\u{2019}s state are there all the time, gradients of parameters \
             from the first that is made until the optimizer\u{2019}s step. On top of them are \
             the activations of micro-batches between their forward and their backward, and what an \
             action needs while it runs. All devices have one scale.{which}</p>\n<div class=\"chart\" role=\"group\" \
             tabindex=\"0\" aria-label=\"Memory over time\">\n{}</div>\n{table}",
            memory::picture(&curves, self.simulation.makespan())
        )
    }

    fn doubts(&self) -> String {
        match self.doubts.as_deref() {
            None => {
                "<p>The file with the profile does not tell how far its measurements are apart: \
                     <code>gpipe-rs profile</code> does.</p>\n"
                    .to_owned()
            }
            Some([]) => {
                "<p>Nothing was seen that speaks against the measurements.</p>\n".to_owned()
            }
            Some(doubts) => {
                let items = doubts
                    .iter()
                    .map(|doubt| format!("<li>{}</li>\n", sentence(doubt)));
                format!(
                    "<ul class=\"doubts\">\n{}</ul>\n",
                    items.collect::<String>()
                )
            }
        }
    }

    /// Whether the schedule runs backwards in halves.
    fn halves(&self) -> bool {
        use crate::schedule::ActionKind;
        let spans = self.simulation.timeline.spans();
        let half = |kind: ActionKind| kind == ActionKind::BackwardInput;
        spans.iter().any(|span| half(span.action.kind))
    }

    /// The device with the highest peak, and that peak.
    fn fullest(&self) -> (DeviceId, Bytes) {
        let peaks = self.plan.peak_bytes.iter().copied().enumerate();
        let fullest = peaks.max_by_key(|&(device, peak)| (peak, std::cmp::Reverse(device)));
        fullest.map_or((DeviceId(0), Bytes::ZERO), |(device, peak)| {
            (DeviceId(device), peak)
        })
    }
}

/// `part` of `whole` in percent; nothing of nothing.
fn share(part: Bytes, whole: Bytes) -> String {
    percent(part.get() as f64 / whole.get().max(1) as f64)
}
