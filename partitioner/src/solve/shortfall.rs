//! Least increase of memory with which a cut fits.

use super::chain::{Chain, Cut};
use super::probe::Answer;
use super::search::ask;
use super::{Shortfall, SolveError};
use crate::ids::{DeviceId, StageId};
use crate::partition::PartitionError;
use crate::units::Bytes;

/// Checks that the cut fits all limits.
pub(super) fn check_fit(chain: &Chain, cut: &Cut) -> Result<(), SolveError> {
    shortfall(chain, cut, true).map_or(Ok(()), |s| Err(SolveError::Full(s)))
}

/// Returns the least addition to all limits with which some cut fits.
pub(super) fn explain(chain: &Chain) -> SolveError {
    let limit = chain.longest();
    let mut proved = true;
    let mut fits = |slack| match ask(chain, limit, slack) {
        Answer::Yes(cut) => Some(cut),
        Answer::No(_) => None,
        Answer::Unknown => {
            proved = false;
            None
        }
    };
    let mut high = 1024_u64;
    let mut best = loop {
        match fits(high) {
            Some(cut) => break cut,
            // With all of u64 added any cut fits: there are no more stages than layers.
            None => high = high.saturating_mul(2),
        }
    };
    // Without an addition no cut was found.
    let mut low = 1;
    while low < high {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            Some(cut) => {
                high = middle;
                best = cut;
            }
            None => low = middle + 1,
        }
    }
    match shortfall(chain, &best, proved) {
        Some(shortfall) => SolveError::Infeasible(shortfall),
        // Impossible: the search without addition would have found this cut, or another.
        None => SolveError::Partition(PartitionError::NoStage),
    }
}

/// Returns the excess of the cut over the limits, if any.
fn shortfall(chain: &Chain, cut: &Cut, proved: bool) -> Option<Shortfall> {
    let bytes = chain.device_bytes(cut);
    let excess = |device: usize| {
        let over = bytes[device].saturating_sub(chain.caps[device]?);
        (over > 0).then_some((DeviceId(device), Bytes(over)))
    };
    let mut raise: Vec<(DeviceId, Bytes)> = (0..bytes.len()).filter_map(excess).collect();
    raise.sort_by_key(|&(device, bytes)| (std::cmp::Reverse(bytes), device));
    let &(device, missing) = raise.first()?;
    let on = (0..chain.stages).filter(|&stage| chain.device[stage] == device.0);
    let range = |stage: usize| cut.parts[stage].start..cut.end(stage, chain);
    Some(Shortfall {
        device,
        stages: on.map(|stage| (StageId(stage), range(stage))).collect(),
        cap: Bytes(bytes[device.0]) - missing,
        needs: Bytes(bytes[device.0]),
        raise,
        proved,
    })
}
