//! Names of schedules.

use super::{ScheduleError, ScheduleKind};
use crate::words::meant;
use std::fmt;
use std::str::FromStr;

/// Longest name that an error repeats.
const LONGEST: usize = 40;

impl ScheduleKind {
    /// Joins the names of `kinds` as in a help text: `gpipe, 1f1b or auto`.
    ///
    /// # Examples
    /// ```
    /// use gpipe_partitioner::ScheduleKind;
    ///
    /// let training = ScheduleKind::ALL.into_iter().filter(|kind| kind.trains());
    /// assert!(ScheduleKind::choice(training).ends_with("dualpipe-v or auto"));
    /// ```
    pub fn choice(kinds: impl IntoIterator<Item = Self>) -> String {
        let names: Vec<_> = kinds.into_iter().map(Self::name).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => {
                format!("{} or {last}", others.join(", "))
            }
            _ => names.concat(),
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// PyTorch's names for schedules, where they differ in more than spelling.
const OF_PYTORCH: [(&str, ScheduleKind); 2] = [
    ("interleavedzerobubble", ScheduleKind::InterleavedZb),
    ("zbvzerobubble", ScheduleKind::Zbv),
];

/// Other names for schedules, each with the most likely meaning.
const OF_OTHERS: [(&[&str], ScheduleKind); 7] = [
    (&["zerobubble", "zb", "zb1p", "zbh"], ScheduleKind::ZbH1),
    (&["zb2p"], ScheduleKind::ZbH2),
    (
        // DAPPLE (Fan et al. 2021) calls it early backward scheduling.
        &["pipedream", "pipedreamflush", "dapple", "earlybackward"],
        ScheduleKind::OneFOneB,
    ),
    (
        &["interleaved", "vpp", "virtual", "virtualpipeline"],
        ScheduleKind::Interleaved1F1B,
    ),
    (&["filldrain", "afab"], ScheduleKind::GPipe),
    (&["bfs", "breadthfirst"], ScheduleKind::LoopedBfs),
    (&["inference", "eval"], ScheduleKind::ForwardOnly),
];

/// Normalizes the spelling of a name: `ScheduleInterleaved1F1B` and `interleaved-1f1b` are equal.
fn plain(name: &str) -> String {
    let name: String = name.chars().take(LONGEST).collect();
    let name = name.to_lowercase().replace(['-', '_', ' '], "");
    name.strip_prefix("schedule").unwrap_or(&name).to_owned()
}

impl FromStr for ScheduleKind {
    type Err = ScheduleError;

    /// Parses a schedule's name, or that of PyTorch's class for it, in any case.
    fn from_str(name: &str) -> Result<Self, ScheduleError> {
        let asked = plain(name);
        let own = Self::ALL
            .into_iter()
            .find(|kind| plain(kind.name()) == asked);
        let of_pytorch = OF_PYTORCH.iter().find(|(name, _)| *name == asked);
        own.or(of_pytorch.map(|(_, kind)| *kind))
            .ok_or_else(|| ScheduleError::UnknownName {
                suggestion: near(name),
                name: name.chars().take(LONGEST).collect(),
            })
    }
}

/// Returns the kind with another or a similar name.
fn near(name: &str) -> Option<ScheduleKind> {
    let asked = plain(name);
    let of_others = OF_OTHERS
        .iter()
        .find(|(names, _)| names.contains(&asked.as_str()));
    if let Some((_, kind)) = of_others {
        return Some(*kind);
    }
    let near = meant(name, ScheduleKind::ALL.map(ScheduleKind::name))?;
    let mut kinds = ScheduleKind::ALL.into_iter();
    kinds.find(|kind| kind.name() == near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.name().parse::<ScheduleKind>().unwrap(), kind);
        }
    }

    /// Regression: the error for `zero-bubble` was a list of names that did not help.
    #[test]
    fn what_others_call_a_schedule_suggests_it() {
        for (name, suggestion) in [
            ("zero-bubble", "did you mean `zb-h1`?"),
            ("ZeroBubble", "did you mean `zb-h1`?"),
            ("pipedream-flush", "did you mean `1f1b`?"),
            ("dapple", "did you mean `1f1b`?"),
            ("vpp", "did you mean `interleaved-1f1b`?"),
            ("interleaved", "did you mean `interleaved-1f1b`?"),
            ("dualpipe", "did you mean `dualpipe-v`?"),
        ] {
            let error = name.parse::<ScheduleKind>().unwrap_err().to_string();
            assert!(error.contains(suggestion), "{error}");
        }
    }

    #[test]
    fn so_are_those_of_pytorch() {
        for (name, kind) in [
            ("1F1B", ScheduleKind::OneFOneB),
            ("Schedule1F1B", ScheduleKind::OneFOneB),
            ("GPipe", ScheduleKind::GPipe),
            ("Interleaved1F1B", ScheduleKind::Interleaved1F1B),
            ("LoopedBFS", ScheduleKind::LoopedBfs),
            ("ScheduleInterleavedZeroBubble", ScheduleKind::InterleavedZb),
            ("ZBVZeroBubble", ScheduleKind::Zbv),
            ("DualPipeV", ScheduleKind::DualPipeV),
            ("zb_h1", ScheduleKind::ZbH1),
        ] {
            assert_eq!(name.parse::<ScheduleKind>().unwrap(), kind, "{name}");
        }
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let error = "1fb1".parse::<ScheduleKind>().unwrap_err();
        assert!(
            error.to_string().contains("did you mean `1f1b`?"),
            "{error}"
        );
        let error = "quux".parse::<ScheduleKind>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("there is no schedule `quux`; there are gpipe, "),
            "{error}"
        );
    }

    #[test]
    fn a_choice_reads_as_a_sentence() {
        use ScheduleKind::{Auto, GPipe, Zbv};
        assert_eq!(ScheduleKind::choice([]), "");
        assert_eq!(ScheduleKind::choice([Zbv]), "zbv");
        assert_eq!(
            ScheduleKind::choice([GPipe, Zbv, Auto]),
            "gpipe, zbv or auto"
        );
    }
}
