//! A profile and the plan that was made from it, as one self-contained HTML page.

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

/// What [`Profile::measured`](crate::Profile::measured) of costs that nobody measured begins with.
const COMPUTED: &str = "computed";

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
    notes: Vec<String>,
    about: Option<String>,
    cards: Option<String>,
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

    /// The same with a sentence on what limits the plan.
    #[must_use]
    pub fn with_limit(mut self, sentence: impl Into<String>) -> Self {
        self.limit = Some(sentence.into());
        self
    }

    /// The same with more sentences on the plan: what it leaves unused, or what more of something
    /// would bring, say.
    #[must_use]
    pub fn with_notes(mut self, sentences: Vec<String>) -> Self {
        self.notes = sentences;
        self
    }

    /// The same with a line below the title, in place of the model's sizes.
    #[must_use]
    pub fn with_about(mut self, line: impl Into<String>) -> Self {
        self.about = Some(line.into());
        self
    }

    /// The same with what the plan is for, such as `8 cards of rtx-4090`, in place of the devices that
    /// the costs were measured on.
    #[must_use]
    pub fn with_cards(mut self, cards: impl Into<String>) -> Self {
        self.cards = Some(cards.into());
        self
    }

    /// The same with what speaks against the measurements; an empty list says that
    /// nothing does.
    #[must_use]
    pub fn with_doubts(mut self, doubts: Vec<String>) -> Self {
        self.doubts = Some(doubts);
        self
    }

    /// Whether nobody measured the costs.
    fn is_computed(&self) -> bool {
        let how = self.profile.measured();
        how.is_some_and(|how| how.starts_with(COMPUTED))
    }

    /// Whether the schedule runs backwards in halves.
    fn halves(&self) -> bool {
        self.runs(ActionKind::BackwardInput)
    }

    /// Whether it runs backwards whole.
    fn wholes(&self) -> bool {
        self.runs(ActionKind::Backward)
    }

    fn runs(&self, kind: ActionKind) -> bool {
        let mut spans = self.simulation.timeline.spans().iter();
        spans.any(|span| span.action.kind == kind)
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
