//! One clock for all processes: that of rank 0.

use std::time::Instant;

use crate::streams::InTransit;
use crate::world::{Lost, WorldCarrier};

/// Number of times that two processes compare clocks.
const ROUNDS: usize = 5;

/// Offset of this process's clock from that of rank 0.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline) struct Clock {
    own: Instant,
    /// Rank 0's clock at `own`, in seconds.
    ahead: f64,
}

impl Clock {
    /// Compares the clock of each process with that of rank 0 (Cristian 1989): of several answers
    /// the fastest is used; its error is at most half of its round trip. All processes call this.
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

    /// Converts a moment to seconds of rank 0's clock.
    pub(in crate::pipeline) fn seconds(self, at: Instant) -> f64 {
        let since = match at.checked_duration_since(self.own) {
            Some(later) => later.as_secs_f64(),
            None => -self.own.duration_since(at).as_secs_f64(),
        };
        self.ahead + since
    }
}
