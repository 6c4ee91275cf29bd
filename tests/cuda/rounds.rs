//! Devices that the tests run on: a GPU, or simulated ones (src/simulated_cuda), repeated with various
//! delays.

use crate::apart::VARIABLE;
use crate::harness::{self, Outcome, Test};

/// Settings of simulated devices, used without a GPU.
pub(crate) const PLAIN: &str = "4";

/// Delays some stream operations and copies, so that results that depend on an unguaranteed order change.
pub(crate) const DELAYS: &str = "delay=300us,latency=20us,bandwidth=1GB/s";

/// One run of the tests.
pub(crate) struct Round {
    /// Settings of the simulated devices; `None` on a GPU.
    pub(crate) settings: Option<String>,
    /// Whether this is a repetition, which leaves out tests that no order affects.
    pub(crate) again: bool,
}

/// Whether this process runs a case of a test with many: all of them without delays, a third with delays, so
/// that three seeds run each of them once.
pub(crate) fn has_turn(case: usize) -> bool {
    let settings = std::env::var(VARIABLE).unwrap_or_default();
    let mut settings = settings.split(',');
    let seed = settings.find_map(|setting| setting.strip_prefix("seed=")?.parse::<usize>().ok());
    seed.is_none_or(|seed| case % 3 == seed % 3)
}

/// Checks for devices in a separate process.
pub(crate) const PROBE: Test = ("rounds::there_are_devices", probe);

fn probe() {
    match gpipe::device::cuda_available().map_err(|why| why.to_string()) {
        Ok(_) => {}
        Err(why) if why.contains("not built") => harness::skip(&why),
        Err(why) => panic!("{why}"),
    }
}

/// The rounds of this machine, `seeds` of them with delays, or the reason for having none: skipped or failed.
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
