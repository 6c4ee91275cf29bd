//! How long the calling thread has run.

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{c_int, c_long};

    #[repr(C)]
    struct Timespec {
        seconds: c_long,
        nanoseconds: c_long,
    }

    /// Of the calling thread alone.
    const CLOCK_THREAD_CPUTIME_ID: c_int = 3;

    unsafe extern "C" {
        fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    }

    pub(super) fn seconds() -> Option<f64> {
        let mut time = Timespec {
            seconds: 0,
            nanoseconds: 0,
        };
        // SAFETY: the structure is the system's own, and lives through the call.
        let done = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        (done == 0).then_some(time.seconds as f64 + time.nanoseconds as f64 * 1e-9)
    }
}

/// Seconds that the calling thread has been on a core; `None` where the system does
/// not tell.
pub(crate) fn thread_time() -> Option<f64> {
    #[cfg(target_os = "linux")]
    return linux::seconds();
    #[cfg(not(target_os = "linux"))]
    None
}
