//! What a run keeps of its data, so that what it learned can be judged and gone on with.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::scaling::Scaling;
use super::table::forms::Forms;
use crate::DataError;

/// More classes than any model tells.
pub(super) const MOST_CLASSES: usize = 1 << 24;

/// What of the data a run's numbers depend on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The samples that were trained on.
    pub(super) data: String,
    /// How inputs are scaled.
    pub(super) scaling: Scaling,
    /// How targets are scaled, where they are numbers.
    #[serde(default, skip_serializing_if = "Scaling::is_none")]
    pub(super) target_scaling: Scaling,
    /// How many classes there are, where targets are classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) classes: Option<usize>,
    /// The names of the classes, in the order of their numbers, where they have any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) names: Vec<String>,
    /// The columns of a table that inputs are from, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) columns: Vec<String>,
    /// Those of them that are words or dates, or have cells without a value.
    #[serde(default, skip_serializing_if = "Forms::is_empty")]
    pub(super) forms: Forms,
    /// The column of its targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
}

impl Kept {
    /// That this is of the data of that identity.
    pub(super) fn check_same(self, here: &str) -> Result<(), DataError> {
        if self.data == here {
            return Ok(());
        }
        let (saved, here) = (self.data, here.to_owned());
        Err(DataError::OtherData { saved, here })
    }

    pub(super) fn read(value: &Value) -> Result<Self, DataError> {
        let kept = Self::deserialize(value).map_err(DataError::State)?;
        let names = kept.names.len();
        let named = names == 0 || kept.classes == Some(names);
        let scales = [&kept.scaling, &kept.target_scaling];
        let scaled = scales.into_iter().all(Scaling::can_be);
        if named && kept.classes.is_none_or(|own| own <= MOST_CLASSES) && scaled {
            return Ok(kept);
        }
        let what = "what the run has kept of its data is damaged: use another checkpoint";
        Err(DataError::Settings(what.to_owned()))
    }
}
