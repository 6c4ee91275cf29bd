//! Progress display while layers are measured.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::words::count;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::say;
use gpipe_torch::ProfileProgress;

/// Number of progress lines of a layer-by-layer profile without a terminal.
const LINES: usize = 20;

/// Phases of fewer seconds get no line.
const WORTH_A_LINE: f64 = 2.0;

/// A status line, redrawn with each event: a timer would need a thread, and panic if none can be
/// created. Without a terminal, one line per phase.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    names: Arc<[String]>,
    what: Arc<Mutex<What>>,
}

/// The current phase.
#[derive(Debug, Default)]
struct What {
    name: String,
    /// Whether layers are measured one by one.
    one_by_one: bool,
    begun: bool,
    /// Start of the first run.
    since: Option<Instant>,
}

impl Progress {
    /// Makes the display for layers of these names.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self {
            bar: std::io::stderr().is_terminal().then(bar),
            names: names.map(str::to_owned).collect(),
            what: Arc::default(),
        }
    }

    pub(super) fn tell(&self, at: ProfileProgress) {
        let words = self.words(at);
        match &self.bar {
            Some(bar) => bar.set_message(words),
            None if begins_phase(at, self.what.lock().one_by_one) => say(&words),
            None => {}
        }
    }

    fn words(&self, at: ProfileProgress) -> String {
        let mut what = self.what.lock();
        if let ProfileProgress::Layers { from, to, of } = at {
            what.one_by_one = to == from + 1 && of > 1;
            what.name = if what.one_by_one {
                format!("layer {to} of {of}, `{}`", self.names[from])
            } else {
                count(of, "layer")
            };
            what.since = Some(Instant::now());
            // Before, they were measured on all cores, as a single stage may be the best plan.
            if from == 0 && std::mem::replace(&mut what.begun, true) {
                what.name += " again, with a device's share of the cores";
            }
        }
        let name = &what.name;
        match at {
            ProfileProgress::Layers { .. } => format!("{name}: first run"),
            ProfileProgress::FirstRuns { left } => {
                format!("{name}: first run, about {left:.0} s more")
            }
            ProfileProgress::WarmedUp => match what.since {
                Some(since) => format!(
                    "{name}: the first run took {:.1} s; measuring",
                    since.elapsed().as_secs_f64()
                ),
                None => format!("{name}: measuring"),
            },
            ProfileProgress::Round { rounds, sure_to } if sure_to < 1.0 => {
                format!("{name}: round {rounds}, ±{:.1} %", 100.0 * sure_to)
            }
            ProfileProgress::Round { rounds, .. } => format!("{name}: round {rounds}"),
        }
    }

    /// Removes the status line.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Whether an event begins a phase with its own line; of layers measured one by one, only some do, as
/// their first runs.
fn begins_phase(at: ProfileProgress, one_by_one: bool) -> bool {
    match at {
        ProfileProgress::Layers { from, of, .. } => {
            !one_by_one || from.is_multiple_of(of.div_ceil(LINES))
        }
        ProfileProgress::FirstRuns { left } => !one_by_one && left >= WORTH_A_LINE,
        ProfileProgress::WarmedUp => !one_by_one,
        ProfileProgress::Round { .. } => false,
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed} {wide_msg}");
    let bar = ProgressBar::new_spinner();
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_where_they_are_measured_one_by_one() {
        let progress = Progress::new(["embed", "block.0"].into_iter());
        let (from, to, of) = (1, 2, 2);
        let words = progress.words(ProfileProgress::Layers { from, to, of });
        assert_eq!(words, "layer 2 of 2, `block.0`: first run");
        let (rounds, sure_to) = (3, 0.0412);
        let words = progress.words(ProfileProgress::Round { rounds, sure_to });
        assert_eq!(words, "layer 2 of 2, `block.0`: round 3, ±4.1 %");
        let words = progress.words(ProfileProgress::Layers { from: 0, to, of });
        assert_eq!(words, "2 layers: first run");
    }

    #[test]
    fn of_many_layers_one_by_one_a_few_have_a_line() {
        let layer = |from| ProfileProgress::Layers {
            from,
            to: from + 1,
            of: 100,
        };
        let lines = (0..100).filter(|&from| begins_phase(layer(from), true));
        assert_eq!(lines.count(), LINES);
        assert!(!begins_phase(ProfileProgress::WarmedUp, true));
        assert!(begins_phase(ProfileProgress::WarmedUp, false));
    }
}
