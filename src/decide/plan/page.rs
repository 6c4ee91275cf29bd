//! The HTML report of a profile and its plan.

use std::path::Path;

use gpipe_partitioner::render::{PageError, ProfilePage};
use gpipe_partitioner::words::count;
use gpipe_partitioner::{ClusterOptions, ModelId, Plan, PlanOptions, Profile};

use super::{Args, notes};
use crate::{Failure, output};

/// Returns the report of a plan; `asked` is the cluster, if any, `said` are further sentences.
pub(super) fn of<'a>(
    args: &Args,
    (profile, plan, options): (&'a Profile, &'a Plan, &'a PlanOptions),
    asked: Option<&ClusterOptions>,
    said: impl Iterator<Item = String>,
) -> Result<ProfilePage<'a>, PageError> {
    let file = args.profile.as_deref().and_then(Path::file_stem);
    let file = file.map(|name| name.to_string_lossy().into_owned());
    let file = file.unwrap_or_else(|| args.shape.name());
    let name = profile.model().map_or(file.as_str(), ModelId::name);
    let page = ProfilePage::new(name, profile, plan, options)?;
    // Costs from a shape are computed for its cards.
    let Some(asked) = asked.filter(|_| !args.shape.is_given()) else {
        return Ok(page.with_notes(said.collect()));
    };
    let note = notes::as_fast_as_measured(args, &asked.cluster, profile);
    let said = note.map(str::to_owned).into_iter().chain(said);
    let page = page.with_notes(said.collect());
    Ok(page.with_cards(cards(args, plan)))
}

/// Returns the machine, such as `8 cards of rtx-4090`.
fn cards(args: &Args, plan: &Plan) -> String {
    let cards = count(plan.devices() * plan.replicas, "card");
    let name = args.cluster.cluster.as_deref().map(Path::new);
    match name.and_then(Path::file_name) {
        Some(name) => format!("{cards} of {}", name.display()),
        None => cards,
    }
}

/// Checks, before any work, that a report can be written to `path`, which must not be one of the
/// other files, each with its flag.
pub fn check(path: &Path, others: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
    let wrong = |why: &str| {
        Err(Failure::Usage(format!(
            "--report {}: {why}",
            path.display()
        )))
    };
    let extension = path.extension().and_then(|extension| extension.to_str());
    let extension = extension.map(str::to_lowercase);
    if !matches!(extension.as_deref(), Some("html" | "htm")) {
        return wrong("the name must end in .html: the report is a page for a browser");
    }
    if let Err(why) = output::writable(path) {
        return wrong(&why);
    }
    let same = |other: &Path| std::path::absolute(other).ok() == std::path::absolute(path).ok();
    for (flag, other) in others {
        if other.is_some_and(same) {
            return wrong(&format!("this is the file of {flag}: choose another"));
        }
    }
    Ok(())
}
