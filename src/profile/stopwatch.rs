//! How long a CUDA device computes, whatever its host takes to submit the work.
//!
//! A device that waits for its host would be measured to take as long as the host. So it is
//! occupied first: what is measured is submitted meanwhile, and then runs at once, between two
//! events.

use tch::{Device, Kind, Tensor};

use crate::error::Error;
use crate::torch::{RawEvent, current_stream};

/// Numbers that the device goes through to be occupied: 64 MiB.
const NUMBERS: i64 = 1 << 24;
/// How often it does so at most.
const MOST: f64 = 4096.0;
/// How often it does so to find out how long it takes.
const TRIES: usize = 16;

/// Measures on the calling thread's current stream.
#[derive(Debug)]
pub(super) struct Stopwatch {
    device: usize,
    busy: Tensor,
    /// Microseconds that going through `busy` takes.
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

    /// Occupies the device for at least so many microseconds, and begins behind that.
    pub(super) fn start(&mut self, micros: f64) -> Result<RawEvent, Error> {
        self.occupy((micros / self.each).ceil().clamp(1.0, MOST) as usize)?;
        self.event()
    }

    /// Waits for the device; the microseconds that it took since then.
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
