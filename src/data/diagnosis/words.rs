//! The diagnosis in words.

use std::fmt;

use super::measures::share;
use super::{Change, Diagnosis, Limit, Phase, Remedy};

/// `I/O-bound in read: 40 % of the time batches were waited for, ...; 2 workers would bring ...`
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.limit, self.because())?;
        if let Some(best) = self.remedies.first() {
            write!(f, "; {best}")?;
        }
        Ok(())
    }
}

impl Diagnosis {
    /// What was seen, in one clause.
    pub fn because(&self) -> String {
        let own = &self.measures;
        let waited = format!(
            "batches were waited for {:.1} % of the time",
            100.0 * own.wait_share()
        );
        let at = |phase: Phase| {
            let time = own.of(phase);
            let (wall, cpu) = (time.wall_ms, time.cpu_ms);
            format!("{phase} takes a batch {wall:.1} ms, {cpu:.1} of them on a core")
        };
        match self.limit {
            Limit::Io(phase) | Limit::Cpu(phase) => format!("{waited}; {}", at(phase)),
            Limit::Contended(_) => format!(
                "{waited}, but a step takes {:.1} ms, and {:.1} without the loader, which takes {:.1} \
                 of {} cores",
                own.step_ms(),
                own.alone_ms(),
                own.loader_cores(),
                own.cores
            ),
            Limit::Uneven => format!(
                "{waited}, though the loader is at work for {:.0} % of it only",
                100.0 * share(own.busy_workers(), own.workers as f64)
            ),
            Limit::Compute => format!(
                "{waited}, and the loader takes {:.1} of {} cores",
                own.loader_cores(),
                own.cores
            ),
        }
    }

    /// What each phase takes of a batch: `read 1.2 ms (0.3 on a core), map 4.0 ms (4.0)`.
    pub fn phases(&self) -> String {
        let there = Phase::ALL.into_iter().filter_map(|phase| {
            let time = self.measures.of(phase);
            let worth = time.wall_ms >= 0.005;
            worth.then(|| format!("{phase} {:.2} ms ({:.2})", time.wall_ms, time.cpu_ms))
        });
        let all: Vec<String> = there.collect();
        if all.is_empty() {
            return "nothing worth a word".to_owned();
        }
        all.join(", ")
    }
}

/// `with 2 workers a batch would take about 20.0 ms (2.00 times as fast)`
impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} a batch would take about {:.1} ms ({:.2} times as fast)",
            self.change, self.period_ms, self.speedup
        )
    }
}

/// `with 2 workers`, `with a cache behind the functions of items`
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers(workers) => write!(f, "with {workers} workers"),
            Self::Prefetch(batches) => write!(f, "with {batches} batches ahead"),
            Self::Cache => write!(f, "with a cache behind what is done with items"),
            Self::IntraOp(threads) => match threads {
                1 => write!(f, "with 1 intra-op thread for the training"),
                _ => write!(f, "with {threads} intra-op threads for the training"),
            },
            Self::NarrowTypes => write!(
                f,
                "with bytes up to the batch, which become floats in the first stage,"
            ),
            Self::Cheaper(phase) => write!(f, "with half of the work of {phase}"),
            Self::Faster(phase) => write!(f, "with half of what {phase} waits for"),
        }
    }
}
