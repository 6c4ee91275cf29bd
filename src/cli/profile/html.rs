//! The HTML report of a profile and its plan.

use gpipe_partitioner::render::{PageError, ProfilePage};
use gpipe_partitioner::{Plan, PlanOptions};

use crate::titled_lines::Said;
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::Profiled;

/// Makes the page about a model, its plan, what limits the plan, and the reasons.
pub(super) fn page(
    spec: &ModelSpec,
    measured: &Profiled,
    plan: &Plan,
    options: &PlanOptions,
    (limit, choices): (&str, &[Said]),
) -> Result<String, PageError> {
    let doubts = measured.doubts.iter().map(ToString::to_string);
    let page = ProfilePage::new(spec.name(), &measured.profile, plan, options)?
        .with_about(spec.settings().to_string())
        .with_limit(limit)
        .with_notes(choices.iter().map(Said::sentence).collect())
        .with_doubts(doubts.collect());
    Ok(page.html())
}
