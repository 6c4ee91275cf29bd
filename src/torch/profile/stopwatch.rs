//! Time that a CUDA device computes, independent of the host's time to submit, and CPU time of a thread.
//!
//! A device that waits for its host would appear to take as long as the host. So the device is kept
//! busy first: the measured work is submitted meanwhile, and then runs without gaps, between two
//! events.

use tch::{Device, Kind, Tensor};

use crate::error::Error;
use crate::{RawEvent, current_stream};

/// Elements that the device processes to be kept busy: 64 MiB.
const NUMBERS: i64 = 1 << 24;
/// Most passes over them.
const MOST: f64 = 4096.0;
/// Passes used to calibrate.
const TRIES: usize = 16;

/// Stopwatch on the calling thread's current stream.
#[derive(Debug)]
pub(super) struct Stopwatch {
    device: usize,
    busy: Tensor,
    /// Microseconds per pass over `busy`.
    each: f64,
}

impl Stopwatch {
    pub(super) fn new(device: usize) -> Result<Self, Error> {
        let mut watch = Self {
            device,
            busy: Tensor::f_zeros([NUMBERS], (Kind::Float, Device::Cuda(device)))?,
            each: 1.0,
        };
        watch.occupy(1)?;
        let begin = watch.event()?;
        watch.occupy(TRIES)?;
        watch.each = (watch.stop(&begin)? / TRIES as f64).max(1.0);
        Ok(watch)
    }

    /// Keeps the device busy for at least `micros` microseconds, and begins after that.
    pub(super) fn start(&mut self, micros: f64) -> Result<RawEvent, Error> {
        self.occupy((micros / self.each).ceil().clamp(1.0, MOST) as usize)?;
        self.event()
    }

    /// Waits for the device; returns the microseconds since `begin`.
    pub(super) fn stop(&self, begin: &RawEvent) -> Result<f64, Error> {
        let end = self.event()?;
        end.synchronize()?;
        Ok(begin.milliseconds_to(&end)? * 1e3)
    }

    fn occupy(&mut self, times: usize) -> Result<(), Error> {
        for _ in 0..times {
            let _ = self.busy.f_neg_()?;
        }
        Ok(())
    }

    fn event(&self) -> Result<RawEvent, Error> {
        Ok(RawEvent::record(self.device, current_stream(self.device)?)?)
    }
}

/// Returns the seconds that the calling thread has run on a core; `None` if the system does not
/// tell.
#[doc(alias = "CLOCK_THREAD_CPUTIME_ID")]
#[cfg(target_os = "linux")]
#[expect(
    clippy::unnecessary_wraps,
    reason = "other systems do not tell, and callers have to deal with that"
)]
pub(super) fn thread_time() -> Option<f64> {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

/// Returns the seconds that the calling thread has run on a core; `None` if the system does not
/// tell.
#[cfg(not(target_os = "linux"))]
pub(super) fn thread_time() -> Option<f64> {
    None
}
