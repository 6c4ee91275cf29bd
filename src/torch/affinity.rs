//! A separate core for each stage that takes turns.
//!
//! A thread that is woken while every core is busy is queued on one of them, and stays there when
//! another core becomes free a moment later: two stages then share a core for milliseconds beside
//! an idle one. Stages that take turns have a core each instead.

use std::sync::Arc;

use gpipe_engine::Affinity;

/// Binds each device that holds a core slot to its own core; call it on a thread that may use all
/// cores.
#[cfg(target_os = "linux")]
pub(crate) fn core_each() -> Arc<dyn Affinity> {
    Arc::new(linux::CoreEach::new())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn core_each() -> Arc<dyn Affinity> {
    Arc::new(gpipe_engine::Unpinned)
}

/// Returns the numbers of the cores that this process may use; empty if the system does not tell.
pub(crate) fn allowed_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    return linux::allowed_cores();
    #[cfg(not(target_os = "linux"))]
    Vec::new()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::OnceLock;

    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

    use gpipe_engine::Affinity;

    #[derive(Debug)]
    pub(super) struct CoreEach {
        /// `None` if the system does not tell.
        all: Option<CpuSet>,
    }

    impl CoreEach {
        pub(super) fn new() -> Self {
            // The cores that the process had when first asked.
            static ALL: OnceLock<Option<CpuSet>> = OnceLock::new();
            Self {
                all: *ALL.get_or_init(|| sched_getaffinity(None).ok()),
            }
        }
    }

    pub(super) fn allowed_cores() -> Vec<usize> {
        let all = sched_getaffinity(None);
        let of = |all: CpuSet| (0..CpuSet::MAX_CPU).filter(move |core| all.is_set(*core));
        all.map(|all| of(all).collect()).unwrap_or_default()
    }

    impl Affinity for CoreEach {
        fn current(&self) -> u64 {
            u64::from(gettid().as_raw_nonzero().get().unsigned_abs())
        }

        fn pin(&self, thread: u64, slot: Option<usize>) {
            let (Some(all), Ok(thread)) = (self.all, i32::try_from(thread)) else {
                return;
            };
            let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
            let own = slot.and_then(|slot| cores.nth(slot));
            let set = own.map_or(all, |core| {
                let mut set = CpuSet::new();
                set.set(core);
                set
            });
            // Only speed depends on this: if it is not permitted, the system places the thread.
            let _ = sched_setaffinity(Pid::from_raw(thread), &set);
        }
    }
}
