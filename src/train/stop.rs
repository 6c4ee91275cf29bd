//! Ending a run early: a handle, and Ctrl-C, SIGTERM and SIGHUP. The first signal ends the run
//! after the step, a later one the process at once.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use gpipe_torch::pipeline::StopLine;

/// What a process that a signal ended leaves as its exit code, less the signal's number.
const ENDED_BY: i32 = 128;

/// Signals that come so soon after the first are the same request: `timeout` sends one to its command
/// and one to the command's group, and a terminal that is closed sends several.
const AT_A_TIME: Duration = Duration::from_millis(200);

/// Whether a run is to end after the step that it is at. Clones are the same handle, for other
/// threads and for [hooks](super::Hook).
///
/// ```
/// use gpipe::train::Stop;
///
/// let stop = Stop::new();
/// let elsewhere = stop.clone();
/// elsewhere.stop();
/// assert!(stop.is_asked());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    signals: Option<Arc<Listening>>,
    /// Where a pipeline is spread over processes, how they hear of each other.
    line: Option<Arc<StopLine>>,
}

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same where a signal asks, too, for as long as there is a clone of this: Ctrl-C
    /// (SIGINT), SIGTERM and SIGHUP, but the last not under `nohup`. From a fifth of a second after
    /// the first signal on, and from when nobody listens any more, a signal ends the process at once.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn on_signals() -> io::Result<Self> {
        Self::new().and_signals()
    }

    pub(super) fn and_signals(mut self) -> io::Result<Self> {
        self.signals = Some(Arc::new(Listening::begin()?));
        Ok(self)
    }

    /// The same for a run over several processes: whoever of them is asked, all end after the same
    /// step.
    pub(super) fn and_others(mut self, line: Option<&Arc<StopLine>>) -> Self {
        self.line = line.map(Arc::clone);
        self.line.iter().for_each(|line| line.clear());
        self
    }

    /// Asks for the end.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Whether somebody has asked; in a run over several processes, whether all have heard of it.
    pub fn is_asked(&self) -> bool {
        let here = self.is_asked_here();
        self.line.as_ref().map_or(here, |line| line.ask(here))
    }

    /// The signal that has asked this process, if one has.
    pub fn signal(&self) -> Option<i32> {
        let flags = self.signals.iter().flat_map(|own| own.signalled.iter());
        let mut asked = flags.zip(SIGNALS_HEARD);
        let set = asked.find(|(flag, _)| flag.load(Ordering::SeqCst));
        set.map(|(_, signal)| signal)
    }

    fn is_asked_here(&self) -> bool {
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::SeqCst);
        let signalled = |own: &Arc<Listening>| own.signalled.iter().any(is_set);
        self.asked.load(Ordering::SeqCst) || self.signals.as_ref().is_some_and(signalled)
    }
}

/// The process's signals; their flags are the same for all who listen, as a signal is for the
/// process.
#[derive(Debug)]
struct Listening {
    signalled: Arc<[Arc<AtomicBool>]>,
}

/// The signals that are heard, in the order of their flags.
const SIGNALS_HEARD: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Handlers cannot be taken back to what the system had: they are set once.
static SIGNALS: Mutex<Option<Signals>> = Mutex::new(None);

struct Signals {
    /// One a signal.
    signalled: Arc<[Arc<AtomicBool>]>,
    /// Whether the next signal ends the process.
    last: Arc<AtomicBool>,
    listening: usize,
}

impl Signals {
    fn set_all(&self, to: bool) {
        for flag in self.signalled.iter().chain([&self.last]) {
            flag.store(to, Ordering::SeqCst);
        }
    }

    fn is_asked(&self) -> bool {
        let mut flags = self.signalled.iter();
        flags.any(|flag| flag.load(Ordering::SeqCst))
    }
}

impl Listening {
    fn begin() -> io::Result<Self> {
        let mut signals = SIGNALS.lock();
        let own = match &mut *signals {
            Some(own) => own,
            None => signals.insert(handled()?),
        };
        if own.listening == 0 {
            own.set_all(false);
        }
        own.listening += 1;
        Ok(Self {
            signalled: Arc::clone(&own.signalled),
        })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut signals = SIGNALS.lock();
        if let Some(own) = &mut *signals {
            own.listening -= 1;
            if own.listening == 0 {
                // The next one is as a second one: nobody would hear of it.
                own.set_all(true);
            }
        }
    }
}

/// Has each signal set its flag, and end the process where one has come some time before.
fn handled() -> io::Result<Signals> {
    // Under `nohup` a run is to outlive its terminal.
    let is_heard = |signal: &i32| *signal != SIGHUP || !is_ignored(SIGHUP);
    let signals: Vec<_> = SIGNALS_HEARD.into_iter().filter(is_heard).collect();
    let own = Signals {
        signalled: signals.iter().map(|_| Arc::default()).collect(),
        last: Arc::default(),
        listening: 0,
    };
    let (heard, signalled) = UnixStream::pair()?;
    let last = Arc::clone(&own.last);
    let watch = thread::Builder::new().name("signals".to_owned());
    watch.spawn(move || after_the_first(heard, &last))?;
    for (flag, &signal) in own.signalled.iter().zip(&signals) {
        // In this order: handlers run in the order in which they are registered.
        let (last, code) = (Arc::clone(&own.last), ENDED_BY + signal);
        flag::register_conditional_shutdown(signal, code, last)?;
        flag::register(signal, Arc::clone(flag))?;
        low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    Ok(own)
}

/// Has a signal be the last from some time after the first one on.
fn after_the_first(mut heard: UnixStream, last: &AtomicBool) {
    while heard.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
        thread::sleep(AT_A_TIME);
        // The run that it asked may be over by now.
        let signals = SIGNALS.lock();
        if signals.as_ref().is_some_and(Signals::is_asked) {
            last.store(true, Ordering::SeqCst);
        }
    }
}

/// Whether this process was started so that a signal does nothing, where Linux says so.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = (status.lines()).find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One flag for the process: a run that is over must not stop the next one.
    #[test]
    fn a_signal_is_for_those_who_listen_when_it_comes() {
        let (first, second) = (Stop::on_signals().unwrap(), Stop::on_signals().unwrap());
        assert!(!first.is_asked());
        first.signals.as_ref().unwrap().signalled[1].store(true, Ordering::SeqCst);
        assert!(first.is_asked() && second.is_asked());
        drop((first, second));
        assert!(!Stop::on_signals().unwrap().is_asked());
    }
}
