//! The schedules that a program was compiled from: kept, or made again on demand.

use gpipe_partitioner::{CheckedSchedule, DeviceId, StageId};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Makes the schedule of a replica that has micro-batches.
pub(super) type Recipe = Arc<dyn Fn(usize) -> CheckedSchedule + Send + Sync>;

/// The schedules of all replicas.
#[derive(Debug)]
pub(super) struct Schedules {
    /// Name of the first schedule.
    pub(super) name: String,
    /// Device of each stage, within a replica.
    pub(super) placement: Vec<DeviceId>,
    pub(super) trains: bool,
    /// The first replica that has micro-batches, and its schedule.
    first: (usize, Kept),
    /// By replica; none for the first one, and for those without micro-batches.
    others: Vec<Option<Kept>>,
}

enum Kept {
    Here(CheckedSchedule),
    /// Made on first use.
    Again(Recipe, OnceLock<CheckedSchedule>),
}

impl Schedules {
    /// `first` is the first schedule among `replicas`.
    pub(super) fn new(first: CheckedSchedule, mut replicas: Vec<Option<CheckedSchedule>>) -> Self {
        let place = replicas.iter().position(Option::is_some).unwrap_or(0);
        if let Some(own) = replicas.get_mut(place) {
            *own = None;
        }
        let others = replicas.into_iter().map(|own| own.map(Kept::Here));
        Self {
            name: first.schedule().name().to_owned(),
            placement: (0..first.schedule().stages())
                .map(|stage| first.device_of(StageId(stage)))
                .collect(),
            trains: first.is_training(),
            first: (place, Kept::Here(first)),
            others: others.collect(),
        }
    }

    /// Drops all of them.
    pub(super) fn forget(&mut self, recipe: &Recipe) {
        let again = || Kept::Again(Arc::clone(recipe), OnceLock::new());
        self.first.1 = again();
        self.others
            .iter_mut()
            .flatten()
            .for_each(|own| *own = again());
    }

    /// Schedule of the first replica that has micro-batches.
    pub(super) fn first(&self) -> &CheckedSchedule {
        self.first.1.get(self.first.0)
    }

    /// Whether that schedule is kept or already made.
    pub(super) fn keeps_first(&self) -> bool {
        match &self.first.1 {
            Kept::Here(_) => true,
            Kept::Again(_, made) => made.get().is_some(),
        }
    }

    /// Same as `first`; made anew in each call if it is not kept.
    pub(super) fn first_for_now(&self) -> CheckedSchedule {
        self.first.1.for_now(self.first.0)
    }

    pub(super) fn of(&self, replica: usize) -> Option<&CheckedSchedule> {
        if replica == self.first.0 {
            return Some(self.first());
        }
        let own = self.others.get(replica)?.as_ref()?;
        Some(own.get(replica))
    }
}

impl Kept {
    fn get(&self, replica: usize) -> &CheckedSchedule {
        match self {
            Self::Here(schedule) => schedule,
            Self::Again(recipe, made) => made.get_or_init(|| recipe(replica)),
        }
    }

    fn for_now(&self, replica: usize) -> CheckedSchedule {
        match self {
            Self::Here(schedule) => schedule.clone(),
            Self::Again(recipe, made) => made.get().cloned().unwrap_or_else(|| recipe(replica)),
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(schedule) => schedule.fmt(f),
            Self::Again(..) => f.write_str("Again"),
        }
    }
}
