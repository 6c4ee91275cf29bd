//! Saved description of a run's data, needed to evaluate and resume the run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::scaling::Scaling;
use super::table::forms::Forms;
use crate::DataError;

/// Upper bound of the number of classes.
pub(super) const MOST_CLASSES: usize = 1 << 24;

/// Properties of the data that results depend on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// Identity of the training samples.
    pub(super) data: String,
    /// Scaling of inputs.
    pub(super) scaling: Scaling,
    /// Scaling of numeric targets.
    #[serde(default, skip_serializing_if = "Scaling::is_none")]
    pub(super) target_scaling: Scaling,
    /// Number of classes, if targets are classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) classes: Option<usize>,
    /// Class names in order of their numbers, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) names: Vec<String>,
    /// Input columns of a table, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) columns: Vec<String>,
    /// Input columns of words or dates, or with missing cells.
    #[serde(default, skip_serializing_if = "Forms::is_empty")]
    pub(super) forms: Forms,
    /// Target column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
}

impl Kept {
    /// Checks that the description matches the identity of the data.
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
