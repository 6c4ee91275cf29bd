//! Ends a run early: by a handle, or by Ctrl-C, SIGTERM and SIGHUP. The first signal ends the run after
//! the step, a later one ends the process at once.

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

/// Exit code of a process ended by a signal, minus the signal's number.
const ENDED_BY: i32 = 128;

/// Signals this soon after the first count as the same request: `timeout` signals its command and the
/// command's group, and a closing terminal sends several.
const AT_A_TIME: Duration = Duration::from_millis(200);

/// A handle that ends a run after its current step. Clones are the same handle, for other threads and
/// for [hooks](super::Hook).
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
    /// Connection between the processes of a pipeline, if there are several.
    line: Option<Arc<StopLine>>,
}

impl Stop {
    /// Makes a handle, without a request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a handle that signals trigger too, as long as a clone of it exists: Ctrl-C (SIGINT),
    /// SIGTERM and SIGHUP, the last not under `nohup`. From a fifth of a second after the first signal,
    /// or once no handle is left, a signal ends the process at once.
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

    /// Adds the other processes of a run: a request in any ends all after the same step.
    pub(super) fn and_others(mut self, line: Option<&Arc<StopLine>>) -> Self {
        self.line = line.map(Arc::clone);
        self.line.iter().for_each(|line| line.clear());
        self
    }

    /// Requests the end.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Whether the end was requested; in a run over several processes, whether all know of it.
    pub fn is_asked(&self) -> bool {
        let here = self.is_asked_here();
        self.line.as_ref().map_or(here, |line| line.ask(here))
    }

    /// Returns the signal received by this process, if any.
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

/// The process's signals; all listeners share their flags, as signals are for the process.
#[derive(Debug)]
struct Listening {
    signalled: Arc<[Arc<AtomicBool>]>,
}

/// The handled signals, in the order of their flags.
const SIGNALS_HEARD: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The system's handlers cannot be restored, so handlers are set once.
static SIGNALS: Mutex<Option<Signals>> = Mutex::new(None);

struct Signals {
    /// One flag per signal.
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
                // Without listeners, the next signal acts like a second one.
                own.set_all(true);
            }
        }
    }
}

/// Installs handlers: each signal sets its flag, and ends the process if one came some time before.
fn handled() -> io::Result<Signals> {
    // Under `nohup`, a run outlives its terminal.
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
        // The order matters: handlers run in the order of registration.
        let (last, code) = (Arc::clone(&own.last), ENDED_BY + signal);
        flag::register_conditional_shutdown(signal, code, last)?;
        flag::register(signal, Arc::clone(flag))?;
        low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    Ok(own)
}

/// Makes signals end the process from some time after the first one.
fn after_the_first(mut heard: UnixStream, last: &AtomicBool) {
    while heard.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
        thread::sleep(AT_A_TIME);
        // The run that was signalled may be over by now.
        let signals = SIGNALS.lock();
        if signals.as_ref().is_some_and(Signals::is_asked) {
            last.store(true, Ordering::SeqCst);
        }
    }
}

/// Whether this process was started with a signal ignored, if Linux reports it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = (status.lines()).find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags are per process: a finished run must not stop the next one.
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
