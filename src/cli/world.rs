//! This process's rank among the processes that a launcher started.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Failure, ended, say};
use gpipe_engine::EngineError;
use gpipe_torch::Error;
use gpipe_torch::world::{Launcher, RESTART_MAY_HELP, Times, Words, World, gather_once, host_name};

/// Rejects a single-process verb in one of several processes, as each would do all the work.
pub(super) fn check_alone(name: &str) -> Result<(), Failure> {
    let words = words()?;
    if words.size == 1 {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "`{name}` is the work of one process (several can `train`), and this is rank {} of {}{}. Run \
         it once, with the devices of all stages in --devices",
        words.rank,
        words.size,
        launched(words.launcher)
    )))
}

fn words() -> Result<Words, Failure> {
    Words::from_env().map_err(|error| Failure::Usage(error.to_string()))
}

/// Returns this process's local rank on its host, if there are several processes.
pub(super) fn local_rank() -> Option<usize> {
    let words = Words::from_env().ok()?;
    (words.size > 1).then_some(words.local_rank)
}

/// Joins the processes of this run; `None` for a single process.
pub(super) fn join() -> Result<Option<Arc<World>>, Failure> {
    let words = words()?;
    if words.size == 1 {
        return Ok(None);
    }
    let waits = Waits::begin(&words);
    let world = Arc::new(World::join(words)?);
    drop(waits);
    world.exit_with_others(GRACE, |lost| say(&format!("error: {lost}")))?;
    Ok(Some(world))
}

/// Prints a message during a long wait for other processes: one may never come, or the address may be
/// wrong.
struct Waits {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waits {
    /// Shorter waits are silent.
    const SHORT: Duration = Duration::from_secs(3);

    fn begin(words: &Words) -> Self {
        let most = Times::default().meeting.as_secs();
        let others = match words.rank {
            0 => format!("the other processes ({} in all)", words.size),
            _ => format!("rank 0 and all others ({} in all)", words.size),
        };
        let place = words.master.as_ref();
        let place = place.map_or_else(String::new, |(host, port)| {
            format!(" at {host}:{port} (MASTER_ADDR:MASTER_PORT)")
        });
        let line = format!(
            "rank {} waits for {others}{place}, for {most} s at most",
            words.rank
        );
        let (done, is_done) = bounded::<()>(0);
        let wait = move || {
            if is_done.recv_timeout(Self::SHORT) == Err(RecvTimeoutError::Timeout) {
                say(&line);
            }
        };
        // If no thread can be created, no message is printed.
        let thread = std::thread::Builder::new().name("waits".to_owned());
        Self {
            done: Some(done),
            thread: thread.spawn(wait).ok(),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            // The thread only prints, so its result is ignored.
            let _ = thread.join();
        }
    }
}

/// Time that this process may outlive another one that has failed or was lost.
const GRACE: Duration = Duration::from_millis(250);

/// Starts of all processes by a launcher.
#[derive(Debug, Clone, Copy)]
pub(super) struct Starts {
    /// Number of restarts so far.
    pub(super) before: usize,
    /// Maximum number of restarts, if the launcher tells it.
    pub(super) more: usize,
}

pub(super) fn starts() -> Result<Starts, Failure> {
    let more = std::env::var("TORCHELASTIC_MAX_RESTARTS").ok();
    Ok(Starts {
        before: words()?.restarts,
        // Set by torchrun and `launch`.
        more: more.and_then(|more| more.parse().ok()).unwrap_or(0),
    })
}

/// Makes a value on rank 0 and sends it to all processes.
///
/// # Errors
/// A process is lost.
pub(super) fn of_leader<T: Serialize + DeserializeOwned>(
    world: Option<&Arc<World>>,
    make: impl FnOnce() -> T,
) -> Result<T, Failure> {
    let Some(own) = world else {
        return Ok(make());
    };
    let made = leads(world).then(make);
    let told = serde_json::to_vec(&made)?;
    let all = gather_once(own, &told);
    let all = all.map_err(|lost| Failure::Exit(lost.to_string(), lost.exit_code()))?;
    let first = all
        .first()
        .map(|first| serde_json::from_slice::<Option<T>>(first));
    let made = first.transpose()?.flatten();
    made.ok_or_else(|| Failure::Run(anyhow::anyhow!("rank 0 has told the others nothing")))
}

/// Whether this process writes and prints.
pub(super) fn leads(world: Option<&Arc<World>>) -> bool {
    world.is_none_or(|world| world.rank() == 0)
}

/// Ends the processes' common work; no process waits for a failed one.
pub(super) fn leave(world: Option<Arc<World>>, result: Result<(), Failure>) -> Result<(), Failure> {
    let Some(world) = world else {
        return result;
    };
    if let Err(failure) = result {
        let failure = first(&world, failure);
        let code = failure.code();
        // Processes told of a failure end like this one; only a lost process is worth a restart.
        if code == RESTART_MAY_HELP {
            world.lose(&failure.said());
        } else {
            world.abort(&failure.said());
        }
        world.ends(code);
        ended(Err(failure));
        world.exit(code);
    }
    // The pipeline, which holds the other references, is dropped.
    let ending = world.ending();
    let left = Arc::into_inner(world).map_or(Ok(()), World::leave);
    left.map_err(|lost| {
        ending.ends(lost.exit_code());
        Failure::Exit(lost.to_string(), lost.exit_code())
    })
}

/// Returns the failure of another process that caused this one's, if any. A failed process may be gone
/// before this one leaves their common work; it is reported as failed, not as lost.
fn first(world: &World, failure: Failure) -> Failure {
    let is_elsewhere = match &failure {
        Failure::Run(error) => matches!(
            error.downcast_ref(),
            Some(Error::Engine(EngineError::Elsewhere { .. }))
        ),
        failure => failure.code() == RESTART_MAY_HELP,
    };
    match world.lost_first() {
        Some(lost) if is_elsewhere => Failure::Exit(lost.to_string(), lost.exit_code()),
        _ => failure,
    }
}

fn launched(by: Launcher) -> String {
    match by {
        Launcher::Nobody => String::new(),
        Launcher::Variables => " (so RANK and WORLD_SIZE say)".to_owned(),
        by => format!(", launched by {by}"),
    }
}

/// Describes the process: `rank 1 of 4 on node7, launched by torchrun`.
pub(super) fn line() -> String {
    let words = match Words::from_env() {
        Ok(words) => words,
        Err(error) => return format!("none: {error}"),
    };
    if words.launcher == Launcher::Nobody {
        return format!("this process alone, on {}", host_name());
    }
    let again = match words.restarts {
        0 => String::new(),
        1 => ", restarted once".to_owned(),
        restarts => format!(", restarted {restarts} times"),
    };
    let met = words.master.as_ref().map_or(String::new(), |(host, port)| {
        format!("; they meet at {host}:{port}")
    });
    format!(
        "rank {} of {} on {} (local rank {}){}{again}{met}",
        words.rank,
        words.size,
        host_name(),
        words.local_rank,
        launched(words.launcher),
    )
}

/// Describes the process as JSON.
pub(super) fn object() -> Value {
    let words = match Words::from_env() {
        Ok(words) => words,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let launcher = (words.launcher != Launcher::Nobody).then(|| words.launcher.to_string());
    let master = words.master.map(|(host, port)| format!("{host}:{port}"));
    json!({
        "rank": words.rank,
        "size": words.size,
        "local_rank": words.local_rank,
        "local_size": words.local_size,
        "host": host_name(),
        "launcher": launcher,
        "restarts": words.restarts,
        "master": master,
    })
}
