//! What the tests run on: a GPU, or simulated ones (src/simulated_cuda), over and over with
//! other delays.

use crate::apart::VARIABLE;
use crate::harness::{self, Outcome, Test};

/// Simulated devices where no GPU is.
pub(crate) const PLAIN: &str = "4";

/// Entries of streams and copies take long now and then: what depends on an order that
/// nothing guarantees comes out otherwise.
pub(crate) const DELAYS: &str = "delay=300us,latency=20us,bandwidth=1GB/s";

/// One run of the tests.
pub(crate) struct Round {
    /// Of the simulated devices; none on a GPU.
    pub(crate) settings: Option<String>,
    /// Whether it is not the first: the tests that no order disturbs are left out.
    pub(crate) again: bool,
}

/// Whether this process runs a case of a test that has many: without delays all of them, with
/// delays a third, so that three seeds run each of them once.
pub(crate) fn has_turn(case: usize) -> bool {
    let settings = std::env::var(VARIABLE).unwrap_or_default();
    let mut settings = settings.split(',');
    let seed = settings.find_map(|setting| setting.strip_prefix("seed=")?.parse::<usize>().ok());
    seed.is_none_or(|seed| case % 3 == seed % 3)
}

/// Asks in a process of its own whether there are devices.
pub(crate) const PROBE: Test = ("rounds::there_are_devices", probe);

fn probe() {
    match gpipe::device::cuda_available().map_err(|why| why.to_string()) {
        Ok(_) => {}
        Err(why) if why.contains("not built") => harness::skip(&why),
        Err(why) => panic!("{why}"),
    }
}

/// The rounds of this machine, `seeds` of them with delays, or how it has come that there are
/// none: skipped in words, or failed.
pub(crate) fn here(seeds: u64) -> Result<Vec<Round>, Outcome> {
    let first = |settings| Round {
        settings,
        again: false,
    };
    if let Ok(settings) = std::env::var(VARIABLE) {
        let one = vec![first(Some(settings))];
        return gpipe::device::cuda_available()
            .map(|_| one)
            .map_err(|why| Outcome::Failed(why.to_string()));
    }
    let Err(no_gpu) = gpipe::device::cuda_available() else {
        return Ok(vec![first(None)]);
    };
    let delayed = (1..=seeds).map(|seed| Round {
        settings: Some(format!("{PLAIN},{DELAYS},seed={seed}")),
        again: true,
    });
    match harness::apart(PROBE.0, Some(PLAIN)).outcome {
        Outcome::Passed => Ok([first(Some(PLAIN.to_owned()))]
            .into_iter()
            .chain(delayed)
            .collect()),
        Outcome::Skipped(why) => Err(Outcome::Skipped(format!("{no_gpu}; and {why}"))),
        failed @ Outcome::Failed(_) => Err(failed),
    }
}
