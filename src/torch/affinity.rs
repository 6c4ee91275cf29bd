//! Cores as places to work at.
//!
//! A thread that is woken while every core is busy is put behind one of them, and stays
//! there when another core becomes free a moment later: two stages then share a core for
//! milliseconds beside an idle one. Stages that take turns have a core each instead.

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::OnceLock;

    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

    /// The cores that the process had when first asked.
    fn all() -> Option<&'static CpuSet> {
        static ALL: OnceLock<Option<CpuSet>> = OnceLock::new();
        ALL.get_or_init(|| sched_getaffinity(None).ok()).as_ref()
    }

    pub(crate) fn prepare() {
        all();
    }

    pub(crate) fn current_thread() -> u64 {
        u64::from(gettid().as_raw_nonzero().get().unsigned_abs())
    }

    pub(crate) fn pin(thread: u64, core: Option<usize>) {
        let (Some(all), Ok(thread)) = (all(), i32::try_from(thread)) else {
            return;
        };
        let cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let own = core.and_then(|core| cores.clone().nth(core));
        let set = own.map_or(*all, |core| {
            let mut set = CpuSet::new();
            set.set(core);
            set
        });
        // Only speed depends on it: where it is not allowed, the system decides as ever.
        let _ = sched_setaffinity(Pid::from_raw(thread), &set);
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{current_thread, pin, prepare};

/// Notes which cores there are; to be called on a thread that may use all of them.
#[cfg(not(target_os = "linux"))]
pub(crate) fn prepare() {}

/// The number by which [`pin`] knows this thread.
#[cfg(not(target_os = "linux"))]
pub(crate) fn current_thread() -> u64 {
    0
}

/// Binds a thread to a core of its own, or to none in particular.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_: u64, _: Option<usize>) {}
