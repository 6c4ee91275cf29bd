//! What was measured and planned, as a page.

use std::path::Path;

use gpipe_partitioner::render::ProfilePage;
use gpipe_partitioner::{Plan, PlanOptions};

use crate::Profiled;
use crate::cli::{Failure, output};

/// Writes the page about the model called `name`.
pub(super) fn write(
    path: &Path,
    name: &str,
    measured: &Profiled,
    plan: &Plan,
    options: &PlanOptions,
    limit: &str,
) -> Result<(), Failure> {
    let spread = measured.spread.iter();
    let doubts = measured.doubts.iter();
    let page = ProfilePage::new(name, &measured.profile, plan, options)?
        .with_limit(limit)
        .with_spread(
            spread
                .map(|layer| layer.forward.max(layer.backward))
                .collect(),
        )
        .with_doubts(doubts.map(ToString::to_string).collect());
    output::write(Some(path), &page.html())
}
