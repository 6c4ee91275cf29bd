//! Fail points: places where crash tests kill this process.
//!
//! In debug builds `GPIPE_FAIL_POINT` selects the place: `vote:1:7` kills rank 1 when it passes
//! `vote` for the eighth time, counted over all its threads. Of several entries separated by
//! blanks, the first applies to a launcher's first start, the second to its first restart, and so
//! on. Release builds contain no fail points.
//!
//! | name | where |
//! |---|---|
//! | `head` | a step was called and has not begun yet |
//! | `forward`, `backward` | an action begins, and has ended |
//! | `exchange` | a round between replicas begins, and has ended |
//! | `vote` | a vote begins, and has ended |
//! | `update` | an update that all have agreed on begins, and has ended |
//! | `copy` | the state to checkpoint is copied |
//! | `shard` | a shard is about to be written, and is written |
//! | `seal` | the manifest is about to be written |
//! | `sealed` | the manifest is written; the checkpoint waits for the next step to approve it |
//! | `published` | the checkpoint is the newest; older ones are removed next |
//! | `leave` | the work is done, and the process leaves the others |

#[cfg(debug_assertions)]
mod switch {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    const VARIABLE: &str = "GPIPE_FAIL_POINT";

    struct Armed {
        name: String,
        passage: u64,
        passed: AtomicU64,
    }

    /// Returns the fail point of this process, or `None` if it is not to be killed.
    fn armed() -> Option<&'static Armed> {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        ARMED.get_or_init(read).as_ref()
    }

    fn read() -> Option<Armed> {
        let all = std::env::var(VARIABLE).ok()?;
        let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
        let start = number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0);
        let mut parts = all.split_whitespace().nth(start)?.split(':');
        let (name, rank) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
        let passage = parts.next()?.parse().ok()?;
        (number("RANK") == Some(rank)).then(|| Armed {
            name,
            passage,
            passed: AtomicU64::new(0),
        })
    }

    /// Kills the process if this is the selected fail point; then it does not return.
    pub fn fail_point(name: &str) {
        let Some(armed) = armed().filter(|armed| armed.name == name) else {
            return;
        };
        if armed.passed.fetch_add(1, Ordering::SeqCst) == armed.passage {
            // A closed stderr is no reason to stop.
            let _ = writeln!(std::io::stderr(), "fail point {name}");
            // A process may always kill itself, so the result is ignored.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}

#[cfg(debug_assertions)]
pub use switch::fail_point;

/// Does nothing in release builds.
#[cfg(not(debug_assertions))]
pub const fn fail_point(_: &str) {}
