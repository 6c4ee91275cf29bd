//! What was measured and planned, as a page.

use gpipe_partitioner::render::ProfilePage;
use gpipe_partitioner::{Plan, PlanOptions};

use super::options::Args;
use crate::Profiled;
use crate::cli::{Failure, output};

/// Writes the page where one is asked for.
pub(super) fn write(
    args: &Args,
    measured: &Profiled,
    plan: &Plan,
    options: &PlanOptions,
    limit: &str,
) -> Result<(), Failure> {
    let Some(path) = &args.report else {
        return Ok(());
    };
    let spread = measured.spread.iter();
    let doubts = measured.doubts.iter();
    let page = ProfilePage::new(args.model.name(), &measured.profile, plan, options)?
        .with_limit(limit)
        .with_spread(
            spread
                .map(|layer| layer.forward.max(layer.backward))
                .collect(),
        )
        .with_doubts(doubts.map(ToString::to_string).collect());
    output::write(Some(path), &page.html())
}
