//! Formats a diagnosis.

use std::fmt;

use super::{Change, Diagnosis, Limit, Phase, Remedy};

/// `I/O-bound in read: 40.0 % of the time is waiting for batches, ...; with 2 workers ...`
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Limit::Compute => write!(f, "keeps up ({})", self.because())?,
            limit => write!(f, "{limit}: {}", self.because())?,
        }
        if let Some(best) = self.remedies.first() {
            write!(f, "; {best}")?;
        }
        Ok(())
    }
}

/// Formats the share of waiting: `40.0 % of the time is waiting for batches`.
pub fn waiting(share: f64) -> String {
    format!("{:.1} % of the time is waiting for batches", 100.0 * share)
}

impl Diagnosis {
    /// Returns the reason in one clause.
    pub fn because(&self) -> String {
        let own = &self.measures;
        let waited = waiting(own.wait_share());
        let at = |phase: Phase| {
            let time = own.of(phase);
            let (wall, cpu) = (time.wall_ms, time.cpu_ms);
            format!(
                "{} takes {wall:.1} ms of a batch, {cpu:.1} of them computing",
                plainly(phase)
            )
        };
        let cores = || {
            let (loader, all) = (own.loader_cores(), own.cores);
            format!("{loader:.1} of {all} cores")
        };
        match self.limit {
            Limit::Io(phase) => format!(
                "{waited}, in which the loader waits for a disk, a network or a lock; {}",
                at(phase)
            ),
            Limit::Cpu(phase) => format!("{waited}, in which the loader computes; {}", at(phase)),
            Limit::Contended(phase) => format!(
                "{waited}, and the loader takes {} from training, mostly for {}: on average a step takes \
                 {:.1} ms, and would take {:.1} ms without the loader",
                cores(),
                plainly(phase),
                own.step_ms(),
                own.alone_ms()
            ),
            Limit::Uneven => format!("some batches load slowly, and {waited}"),
            Limit::Compute => waited,
        }
    }

    /// Formats the time of each phase of a batch: `read 1.20 ms (CPU 0.30), map 4.00 ms (CPU 4.00)`.
    pub fn phases(&self) -> String {
        let there = Phase::ALL.into_iter().filter_map(|phase| {
            let time = self.measures.of(phase);
            let worth = time.wall_ms >= 0.005;
            worth.then(|| format!("{phase} {:.2} ms (CPU {:.2})", time.wall_ms, time.cpu_ms))
        });
        let all: Vec<String> = there.collect();
        if all.is_empty() {
            return "hardly any time".to_owned();
        }
        all.join(", ")
    }
}

/// Describes a phase for readers who do not know the phases.
fn plainly(phase: Phase) -> &'static str {
    match phase {
        Phase::Read => "reading (`read`)",
        Phase::Decode => "decoding (`decode`)",
        Phase::Map => "changing samples (`map`)",
        Phase::Stack => "making batches of samples (`stack`)",
        Phase::Copy => "copying to the device (`copy`)",
    }
}

/// Formats as `with 2 workers about 2.00 times as fast`, in samples per elapsed time, like a run's
/// speed.
impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} about {:.2} times as fast", self.change, self.speedup)
    }
}

/// `with 2 workers`, `with a cache behind the functions of items`
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers(workers) => write!(f, "with {workers} workers"),
            Self::Prefetch(batches) => write!(f, "with {batches} batches loaded ahead"),
            Self::Cache => write!(
                f,
                "with the samples kept in memory once they are made (a cache)"
            ),
            Self::IntraOp(threads) => match threads {
                1 => write!(f, "with 1 thread for each stage of the training"),
                _ => write!(f, "with {threads} threads for each stage of the training"),
            },
            Self::NarrowTypes => write!(
                f,
                "with samples in bytes, which become floats in the first stage,"
            ),
            Self::Cheaper(phase) => write!(f, "with {} in half the time", plainly(*phase)),
            Self::Faster(phase) => write!(
                f,
                "with half of the waiting in {}, by a faster disk or network,",
                phase.name()
            ),
        }
    }
}
