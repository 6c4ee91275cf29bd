//! The limit of a run's speed, in one sentence.

use gpipe_train::metrics::is_host_bound;

/// Returns the verdict if asynchronous devices wait for the host threads that launch their work, which
/// were busy for this share of their time.
pub(super) fn host_bound(host_share: Option<f64>) -> Option<String> {
    let share = host_share.filter(|share| is_host_bound(*share))?;
    Some(format!(
        "host-bound: telling the devices what to do takes {:.0} % of the time that they take to do \
         it; give them more at once: larger micro-batches, or fewer of them",
        100.0 * share
    ))
}
