//! Checks that a plan fits a model.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{ModelId, Plan};

use super::Chosen;
use super::flags::{Given, flag};
use crate::input;

/// The size that comes from the data unless it was chosen.
const OF_DATA: &str = "vocab";
/// Other sizes that come from the data.
const ALSO_OF_DATA: [&str; 3] = ["classes", "outputs", "inputs"];

/// Replaces all sizes of an exported program.
const CHECKSUM: &str = "checksum";

/// Whether a size comes from the data unless it was chosen.
fn of_data(size: &str) -> bool {
    size == OF_DATA || ALSO_OF_DATA.contains(&size)
}

impl Chosen {
    /// Identity of the model in profiles and plans.
    pub(crate) fn id(&self) -> ModelId {
        let spec = &self.spec;
        match spec.exported() {
            Some(model) => {
                let name = model.path().file_name().unwrap_or_default();
                ModelId::new(name.to_string_lossy(), [(CHECKSUM, f64::from(model.sum()))])
            }
            None => ModelId::new(spec.entry().name(), spec.settings().iter()),
        }
    }

    /// Checks that a plan was made for this model.
    ///
    /// # Errors
    /// The error names the plan's model and says what to do.
    pub(crate) fn check_plan(&self, plan: &Plan) -> Result<(), String> {
        if let Some(model) = &plan.model {
            self.check_planned(model)?;
        }
        let layers = plan.partition.layers();
        if layers == self.layers() {
            return Ok(());
        }
        let sizes = match (self.size_for(|own| own == layers), &plan.model) {
            // The plan may be of any model, such as one described only by its shapes.
            (Some(flag), None) => format!(
                "it does not say which model; if this one, use {flag}, else profile this one, and plan \
                 from that"
            ),
            (Some(flag), Some(_)) => format!("use {flag}, or profile this model"),
            (None, _) => "name the model that was profiled, or profile this one".to_owned(),
        };
        Err(format!(
            "it is for a model of {layers}, but `{}` has {}: {sizes}",
            self.spec.name(),
            self.describe_layers(),
            layers = count(layers, "layer")
        ))
    }

    /// Returns the sizes of a plan's model that were not chosen here, except those from the data.
    pub(crate) fn unsaid_sizes(&self, planned: &ModelId) -> Given {
        let sizes = planned.settings().iter();
        let sizes = sizes.filter(|(size, _)| self.has(size) && !self.chose(size) && !of_data(size));
        sizes
            .map(|(size, value)| (size.clone(), value.to_string()))
            .collect()
    }

    /// Checks that the model is the profiled one.
    fn check_planned(&self, planned: &ModelId) -> Result<(), String> {
        if self.spec.exported().is_some() || planned.setting(CHECKSUM).is_some() {
            return self.check_program(planned);
        }
        let (kind, name) = (self.spec.entry().name(), self.spec.name());
        if planned.name() != kind {
            return Err(format!(
                "it is for the model `{}`, but this is `{name}`: name that one, or profile this one",
                planned.name()
            ));
        }
        let by_data = |size: &str| of_data(size) && !self.chose(size);
        let sizes = self.spec.settings().iter();
        let differ: Vec<(&str, f64, f64)> = sizes
            .filter(|(size, _)| !by_data(size))
            .map(|(size, own)| (size, planned.setting(size).unwrap_or(own), own))
            .filter(|(_, planned, own)| planned.total_cmp(own).is_ne())
            .collect();
        if differ.is_empty() {
            return Ok(());
        }
        let all = |text: &dyn Fn(&(&str, f64, f64)) -> String, between: &str| {
            differ.iter().map(text).collect::<Vec<_>>().join(between)
        };
        Err(format!(
            "it is for `{name}` with {}, not {}: use {}, or profile this one",
            all(&|(size, planned, _)| format!("{size}={planned}"), ", "),
            all(&|(_, _, own)| own.to_string(), ", "),
            all(
                &|(size, planned, _)| format!("{} {planned}", flag(size)),
                " "
            ),
        ))
    }

    /// Checks that the exported program is the profiled one, wherever its file is now.
    fn check_program(&self, planned: &ModelId) -> Result<(), String> {
        let own = self.id();
        if planned.setting(CHECKSUM) == own.setting(CHECKSUM) {
            return Ok(());
        }
        let what = if planned.name() == own.name() {
            "another file of that name".to_owned()
        } else {
            format!("`{}`", self.spec.name())
        };
        Err(format!(
            "it is for the model `{}`, but this is {what}: name that one, or profile this one",
            planned.name()
        ))
    }

    /// Notes about a plan: a vocabulary other than the data's, and doubts about its measurements.
    pub(crate) fn notes_of_plan(&self, plan: &Plan) -> Vec<String> {
        let doubts = input::doubted(&plan.doubts)
            .map(|doubts| format!("note: of the profile that the plan was made from: {doubts}"));
        self.vocabulary_of_plan(plan)
            .into_iter()
            .chain(doubts)
            .collect()
    }

    fn vocabulary_of_plan(&self, plan: &Plan) -> Option<String> {
        let planned = plan.model.as_ref()?.setting(OF_DATA)?;
        let mut sizes = self.spec.settings().iter();
        let (_, own) = sizes.find(|(size, _)| *size == OF_DATA)?;
        (planned.total_cmp(&own).is_ne()).then(|| {
            format!(
                "the plan was made for a vocabulary of {planned}, and the data's is {own}: profile \
                 with the same --data for closer times"
            )
        })
    }
}
