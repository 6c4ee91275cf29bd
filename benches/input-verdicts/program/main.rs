//! Deliberate input bottlenecks, the loader's diagnosis of each, and the gain from its advice: `make
//! input-verdicts`.
//!
//! Each bottleneck is trained for a while, diagnosed, changed as the first remedy says, and trained again. A
//! verdict is right if it names the bottleneck that was built in; its advice holds if it brings at least half
//! of the predicted gain. Exits with 1 if any check fails.

mod bottlenecks;
mod run;

use std::process::ExitCode;

use gpipe::data::{Change, Diagnosis, Remedy};

use bottlenecks::{Bottleneck, all};
use run::measured;

/// Batches taken from each bottleneck, before and after the change.
const BATCHES: usize = 80;

/// Result of one bottleneck.
struct Found {
    name: &'static str,
    wanted: String,
    before: Diagnosis,
    after: Option<(Remedy, f64)>,
}

impl Found {
    fn is_right(&self) -> bool {
        self.before.limit.to_string() == self.wanted
    }

    /// The share of the predicted gain that was reached; `None` if none is predicted because training is the
    /// limit.
    fn kept(&self) -> Option<f64> {
        let (remedy, after) = self.after.as_ref()?;
        let period = self.before.measures.period_ms;
        Some((period - after) / (period - remedy.period_ms))
    }
}

fn tried(bottleneck: &Bottleneck, batches: usize) -> anyhow::Result<Found> {
    let before = Diagnosis::of(&measured(bottleneck, batches)?);
    let best = before.remedies.first().copied();
    let after = best.map(|remedy| {
        let changed = bottleneck.changed(remedy.change);
        anyhow::Ok((remedy, measured(&changed, batches)?.period_ms))
    });
    Ok(Found {
        name: bottleneck.name,
        wanted: bottleneck.limit.to_string(),
        after: after.transpose()?,
        before,
    })
}

fn row(found: &Found) -> String {
    let measures = &found.before.measures;
    let verdict = if found.is_right() {
        found.before.limit.to_string()
    } else {
        format!("**{}** (is {})", found.before.limit, found.wanted)
    };
    let advice = match &found.after {
        None => " | | ".to_owned(),
        Some((remedy, after)) => format!(
            "{} | {:.1} | {after:.1} ({:.0} %)",
            word(remedy.change),
            remedy.period_ms,
            100.0 * found.kept().unwrap_or(0.0)
        ),
    };
    format!(
        "| {} | {:.1} % | {} | {:.1} | {verdict} | {advice} |",
        found.name,
        100.0 * measures.wait_share(),
        measures
            .step_alone_ms
            .map_or_else(String::new, |alone| format!("{alone:.1}")),
        measures.period_ms,
    )
}

fn word(change: Change) -> String {
    let text = change.to_string();
    text.strip_prefix("with ").unwrap_or(&text).to_owned()
}

fn main() -> anyhow::Result<ExitCode> {
    let only = std::env::args().nth(1);
    println!(
        "| bottleneck | waited | step alone, ms | batch, ms | verdict | advice | predicted, ms | \
         measured, ms (of the gain) |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut right, mut kept, mut count) = (0, 0, 0);
    for bottleneck in all() {
        let named = |only: &String| bottleneck.name.contains(only.as_str());
        if only.as_ref().is_some_and(|only| !named(only)) {
            continue;
        }
        let found = tried(&bottleneck, BATCHES)?;
        println!("{}", row(&found));
        count += 1;
        right += usize::from(found.is_right());
        kept += usize::from(found.kept().is_none_or(|share| share >= 0.5));
    }
    println!("\n{right} of {count} verdicts are right, the advice of {kept} of {count} is kept");
    Ok(if right == count && kept == count {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
