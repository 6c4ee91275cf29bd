//! Fields of a run that can be drawn, and their names.

use std::collections::BTreeSet;

use gpipe_partitioner::words::{instead, meant};

use super::history::History;

/// Throughput: the first of these that every run has.
const THROUGHPUT: [&str; 2] = ["tokens_per_s", "samples_per_s"];

/// Keys, titles and units of known fields.
const KNOWN: [(&str, &str, &str); 16] = [
    ("loss", "loss", "mean of the mini-batch"),
    ("held_out_loss", "held-out loss", "mean of what is held out"),
    (
        "held_out_accuracy",
        "held-out accuracy",
        "% of what is held out",
    ),
    ("lr", "learning rate", "of the step"),
    ("grad_norm", "gradient norm", "before clipping"),
    ("tokens_per_s", "throughput", "tokens/s"),
    ("samples_per_s", "throughput", "samples/s"),
    ("step_ms", "time of a step", "ms"),
    ("makespan_ms", "forward and backward", "ms"),
    ("input_wait", "waiting for input", "% of the step"),
    ("bubble_measured", "bubble, measured", "% of device time"),
    ("bubble_predicted", "bubble, simulated", "% of device time"),
    ("mfu", "model FLOP/s utilisation", "% of the peak"),
    ("host_share", "host's share", "% of the device's time"),
    ("loss_scale", "loss scale", "factor"),
    ("skipped", "skipped steps", "count"),
];

/// Fields drawn in the chart of another field.
const BESIDE: [(&str, &str); 1] = [("loss", "held_out_loss")];
/// Fields drawn by default, if present, before the throughput.
const USUAL: [&str; 2] = ["loss", "held_out_accuracy"];

/// A number of every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    /// Key in the file.
    pub(super) key: String,
    /// Title in words.
    pub(super) title: String,
    /// None for an unknown field.
    pub(super) unit: Option<&'static str>,
}

impl Field {
    /// Returns the fields asked for, or the loss, the accuracy and the throughput.
    ///
    /// # Errors
    /// No run has such a field; the message lists the fields there are.
    pub(super) fn choose(runs: &[History], wanted: &[String]) -> Result<Vec<Self>, String> {
        if wanted.is_empty() {
            let rate = THROUGHPUT.into_iter().find(|key| in_all(runs, key));
            let rate = rate.or_else(|| THROUGHPUT.into_iter().find(|key| in_any(runs, key)));
            let fields = USUAL.into_iter().filter(|key| in_any(runs, key));
            let fields: Vec<Self> = fields.chain(rate).map(Self::new).collect();
            if fields.is_empty() {
                return Err(format!("there is no loss to draw: {}", named(runs)));
            }
            return Ok(fields);
        }
        let wanted = wanted.iter().map(|key| key.trim());
        let missing = wanted.clone().find(|key| !in_any(runs, key));
        match missing {
            Some(key) => {
                let fields = runs.iter().flat_map(History::fields);
                let instead = instead(meant(key, fields), &named(runs));
                Err(format!("--metrics: there is no number `{key}`{instead}"))
            }
            None => Ok(wanted.map(Self::new).collect()),
        }
    }

    fn new(key: &str) -> Self {
        let known = KNOWN.iter().find(|(own, ..)| *own == key);
        Self {
            key: key.to_owned(),
            title: known.map_or(key, |(_, title, _)| title).to_owned(),
            unit: known.map(|(.., unit)| *unit),
        }
    }

    /// Returns the field that is drawn with it.
    pub(super) fn beside(&self) -> Option<&'static str> {
        let beside = BESIDE.iter().find(|(own, _)| *own == self.key);
        beside.map(|(_, other)| *other)
    }

    /// Returns the label, such as `throughput (tokens/s)`.
    pub(super) fn label(&self) -> String {
        match self.unit {
            Some(unit) => format!("{} ({unit})", self.title),
            None => self.title.clone(),
        }
    }
}

/// Whether a field is a share, drawn in percent.
pub(super) fn is_share(field: &Field) -> bool {
    field.unit.is_some_and(|unit| unit.starts_with('%'))
}

/// Whether a field counts bytes.
pub(super) fn is_bytes(key: &str) -> bool {
    key.split(['[', '.', ' ']).next() == Some("peak_bytes")
}

/// Whether a field is measured on held-out data.
pub(super) fn is_held_out(key: &str) -> bool {
    key.starts_with("held_out_")
}

fn in_all(runs: &[History], key: &str) -> bool {
    runs.iter().all(|run| run.points(key).is_some())
}

fn in_any(runs: &[History], key: &str) -> bool {
    runs.iter().any(|run| run.points(key).is_some())
}

/// Lists the fields that could be drawn.
fn named(runs: &[History]) -> String {
    let fields: BTreeSet<&str> = runs.iter().flat_map(History::fields).collect();
    let fields: Vec<&str> = fields.into_iter().collect();
    if fields.is_empty() {
        return "the files have no numbers but steps".to_owned();
    }
    format!("the files have {}", fields.join(", "))
}
