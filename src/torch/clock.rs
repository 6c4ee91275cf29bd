//! The CPU time of the calling thread.

/// Returns the seconds that the calling thread has run on a core; `None` if the system does not
/// tell.
#[doc(alias = "CLOCK_THREAD_CPUTIME_ID")]
#[cfg(target_os = "linux")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "other systems do not tell, and callers have to deal with that"
)]
pub(crate) fn thread_time() -> Option<f64> {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

/// Returns the seconds that the calling thread has run on a core; `None` if the system does not
/// tell.
#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_time() -> Option<f64> {
    None
}
