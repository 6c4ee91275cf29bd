//! Places at which tests of what survives have this process killed (fail points).
//!
//! A debug build is told by `GPIPE_FAIL_POINT` at which: `vote:1:7` has rank 1 killed when it
//! passes `vote` for the eighth time, in whatever way its threads do. Of several, with blanks
//! between, the first is for the first start of a launcher, the next for the restart after it, and
//! so on. A release build has none of this.
//!
//! | name | where |
//! |---|---|
//! | `head` | a step has not begun yet, but its call has |
//! | `forward`, `backward` | an action begins, and has ended |
//! | `exchange` | a round between replicas begins, and has ended |
//! | `vote` | a vote begins, and has ended |
//! | `update` | an update that all have agreed on begins, and has ended |
//! | `copy` | what a checkpoint is of is copied |
//! | `shard` | a shard is about to be written, and is written |
//! | `seal` | the manifest is about to be written |
//! | `sealed` | the manifest is written; the checkpoint waits for the next step to approve it |
//! | `published` | the checkpoint is the newest; older ones are removed next |
//! | `leave` | all is done, and the process leaves the others |

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

    /// None where this process is not to be killed.
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

    /// Does not return where this is the place.
    pub(crate) fn fail_point(name: &str) {
        let Some(armed) = armed().filter(|armed| armed.name == name) else {
            return;
        };
        if armed.passed.fetch_add(1, Ordering::SeqCst) == armed.passage {
            // Where nobody reads it, it is not told.
            let _ = writeln!(std::io::stderr(), "fail point {name}");
            // Nobody can refuse this one.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
}

#[cfg(debug_assertions)]
pub(crate) use switch::fail_point;

/// Nothing.
#[cfg(not(debug_assertions))]
pub(crate) const fn fail_point(_: &str) {}
