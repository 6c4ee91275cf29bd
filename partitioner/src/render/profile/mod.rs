//! A profile and the plan made from it, as one self-contained HTML page.

mod header;
mod layers;
mod rows;
mod schedules;
mod sections;
mod skyline;

use crate::builtin::ScheduleError;
use crate::ids::DeviceId;
use crate::model::ModelId;
use crate::plan::{Plan, PlanOptions};
use crate::profile::{LayerCost, Profile};
use crate::schedule::ActionKind;
use crate::simulate::{Simulation, simulate};
use crate::units::Bytes;

/// Beginning of [`Profile::measured`](crate::Profile::measured) for costs that were not measured.
const COMPUTED: &str = "computed";

/// Why the page is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The plan is for another model or machine.
    #[error("the plan is for {planned} {what}, not {given}: it was made from another profile")]
    Other {
        /// `layers` or `devices`.
        what: &'static str,
        /// Number in the plan.
        planned: usize,
        /// Number in the profile, or in the options' machine.
        given: usize,
    },
    /// The plan's schedule does not exist for its numbers.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// HTML page about a profile and a plan.
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
    /// Costs for micro-batches of the plan's size.
    costs: Vec<LayerCost>,
    limit: Option<String>,
    notes: Vec<String>,
    about: Option<String>,
    cards: Option<String>,
    doubts: Option<Vec<String>>,
}

impl<'a> ProfilePage<'a> {
    /// Creates a page about `plan`, which was made from `profile` with `options`; `title` names the
    /// model.
    ///
    /// # Errors
    /// If the plan is for other numbers of layers or devices, or its schedule does not exist.
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
        let costs = plan.costs(profile, options, &schedule);
        Ok(Self {
            title: title.to_owned(),
            profile,
            plan,
            options,
            simulation: simulate(&schedule, &costs),
            costs: profile.costs(plan.micro_batch_size),
            limit: None,
            notes: Vec::new(),
            about: profile.model().and_then(ModelId::sizes),
            cards: None,
            doubts: profile.doubts().map(<[String]>::to_vec),
        })
    }

    /// Adds a sentence about the limit of the plan.
    #[must_use]
    pub fn with_limit(mut self, sentence: impl Into<String>) -> Self {
        self.limit = Some(sentence.into());
        self
    }

    /// Adds more sentences about the plan, such as unused resources, or the gain from more.
    #[must_use]
    pub fn with_notes(mut self, sentences: Vec<String>) -> Self {
        self.notes = sentences;
        self
    }

    /// Sets the line below the title, instead of the model's sizes.
    #[must_use]
    pub fn with_about(mut self, line: impl Into<String>) -> Self {
        self.about = Some(line.into());
        self
    }

    /// Sets the target of the plan, such as `8 cards of rtx-4090`, instead of the measured devices.
    #[must_use]
    pub fn with_cards(mut self, cards: impl Into<String>) -> Self {
        self.cards = Some(cards.into());
        self
    }

    /// Adds doubts about the measurements; an empty list says that there are none.
    #[must_use]
    pub fn with_doubts(mut self, doubts: Vec<String>) -> Self {
        self.doubts = Some(doubts);
        self
    }

    /// Whether the costs were computed instead of measured.
    fn is_computed(&self) -> bool {
        let how = self.profile.measured();
        how.is_some_and(|how| how.starts_with(COMPUTED))
    }

    /// Whether the schedule splits backwards into halves.
    fn halves(&self) -> bool {
        self.runs(ActionKind::BackwardInput)
    }

    /// Whether the schedule has joint backwards.
    fn wholes(&self) -> bool {
        self.runs(ActionKind::Backward)
    }

    fn runs(&self, kind: ActionKind) -> bool {
        let mut spans = self.simulation.timeline.spans().iter();
        spans.any(|span| span.action.kind == kind)
    }

    /// Returns the device with the highest peak, and that peak.
    fn fullest(&self) -> (DeviceId, Bytes) {
        let peaks = self.plan.peak_bytes.iter().copied().enumerate();
        let fullest = peaks.max_by_key(|&(device, peak)| (peak, std::cmp::Reverse(device)));
        fullest.map_or((DeviceId(0), Bytes::ZERO), |(device, peak)| {
            (DeviceId(device), peak)
        })
    }
}
