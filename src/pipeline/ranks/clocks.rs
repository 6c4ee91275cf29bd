//! One clock for all processes: that of rank 0.

use std::time::Instant;

use crate::torch::streams::InTransit;
use crate::world::{Lost, WorldCarrier};

/// How often two processes tell each other the time.
const ROUNDS: usize = 5;

/// What this process's clock shows when that of rank 0 begins.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline) struct Clock {
    own: Instant,
    /// Seconds of rank 0's clock at that moment.
    ahead: f64,
}

impl Clock {
    /// Compares the clocks of all processes, each with that of rank 0 (Cristian 1989): of several
    /// answers the fastest one's error is half of the time that it took, at most. All call this.
    ///
    /// # Errors
    /// A process is lost.
    pub(super) fn compare(
        carrier: &WorldCarrier<InTransit>,
        rank: usize,
        size: usize,
    ) -> Result<Self, Lost> {
        let own = Instant::now();
        if rank > 0 {
            for _ in 0..ROUNDS {
                carrier.take_number(0)?;
                carrier.hand_number(own.elapsed().as_secs_f64(), 0)?;
            }
            let ahead = carrier.take_number(0)?;
            return Ok(Self { own, ahead });
        }
        for other in 1..size {
            let mut best = (f64::INFINITY, 0.0);
            for _ in 0..ROUNDS {
                let asked = own.elapsed().as_secs_f64();
                carrier.hand_number(0.0, other)?;
                let there = carrier.take_number(other)?;
                let answered = own.elapsed().as_secs_f64();
                let took = answered - asked;
                if took < best.0 {
                    best = (took, f64::midpoint(asked, answered) - there);
                }
            }
            carrier.hand_number(best.1, other)?;
        }
        Ok(Self { own, ahead: 0.0 })
    }

    /// A moment in seconds of rank 0's clock.
    pub(in crate::pipeline) fn seconds(self, at: Instant) -> f64 {
        let since = match at.checked_duration_since(self.own) {
            Some(later) => later.as_secs_f64(),
            None => -self.own.duration_since(at).as_secs_f64(),
        };
        self.ahead + since
    }
}
