//! A lower bound on the makespan where memory is tight: time that a device loses before its first
//! gradient, and after its last forward.
//!
//! Lost time is the step without m·Σ (F+A) over the device's stages: waits, recomputes, and the excess of
//! backwards over their least time, A.
//!
//! - *Before* the first gradient can reach its highest stage, a device runs only forwards, of as many
//!   micro-batches as its memory holds. A forward whose activations are dropped counts F−R only: the
//!   recompute is still to come.
//! - *After* its last forward, which is on its highest stage, that micro-batch has the whole way to the
//!   end of the model and back. Meanwhile the device runs the backwards of the micro-batches that it
//!   holds, and the recomputes of those it has dropped, which are lost: with y dropped ones at least the
//!   larger of y·R and the rest of the way.
//!
//! Both are lost unless a device could do all its forwards before the first gradient, or one recompute
//! counts in both: then a stage holds its last micro-batches from the first of those on, and drops as
//! many of them as do not fit.
//!
//! All held micro-batches count as those of the stage with the least memory, and of the one with the
//! longest time. The bound ignores waits of devices in between and busy links.

use super::pipeline::{Device, Pipeline, Stage};

/// Returns the bound in microseconds.
///
/// # Complexity
/// O(stages · micro-batches).
pub(super) fn makespan(pipeline: &Pipeline) -> f64 {
    let ways = Ways::new(pipeline);
    let capped = pipeline.devices.iter().filter(|own| own.cap.is_some());
    let bounds = capped.map(|device| {
        let work = pipeline.micro_batches as f64 * (device.forward + device.backward);
        work + Held::new(pipeline, device).lost(&ways)
    });
    bounds.fold(0.0, f64::max)
}

/// By stage: the earliest arrival of a micro-batch and of a gradient, and the least time from the end of
/// a forward to the end of the step.
struct Ways {
    forward: Vec<f64>,
    gradient: Vec<f64>,
    rest: Vec<f64>,
}

impl Ways {
    fn new(pipeline: &Pipeline) -> Self {
        let stages = &pipeline.stages;
        let mut forward = vec![0.0; stages.len()];
        for at in 1..stages.len() {
            forward[at] = forward[at - 1] + stages[at - 1].forward + pipeline.onward(at - 1);
        }
        let last = stages.len() - 1;
        let through = forward[last] + stages[last].forward;
        let mut gradient = vec![through; stages.len()];
        for at in (0..last).rev() {
            gradient[at] = gradient[at + 1] + stages[at + 1].gradient + pipeline.onward(at);
        }
        // Way of the last micro-batch back, to the end of the first stage's backward.
        let all = gradient[0] + stages[0].backward;
        let rest = (forward.iter().zip(stages)).map(|(at, own)| all - at - own.forward);
        Self {
            rest: rest.collect(),
            forward,
            gradient,
        }
    }
}

/// Capacity of a device.
struct Held<'a> {
    own: Vec<(usize, &'a Stage)>,
    micro_batches: usize,
    /// Bytes beyond the fixed memory.
    room: u64,
    /// Least bytes that a micro-batch of a stage holds from forward to gradient; and with dropped
    /// activations, with the time of its recompute.
    kept: u64,
    dropped: Option<(u64, f64)>,
    /// The longest forward and backward.
    forward: f64,
    backward: f64,
    /// Backward time left per byte, if backwards are in halves, of which the second holds less.
    per_byte: Option<f64>,
}

impl<'a> Held<'a> {
    fn new(pipeline: &'a Pipeline, device: &Device) -> Self {
        let stage = |&stage: &usize| (stage, &pipeline.stages[stage]);
        let own: Vec<(usize, &Stage)> = device.stages.iter().map(stage).collect();
        let longest = |of: fn(&Stage) -> f64| own.iter().map(|(_, s)| of(s)).fold(0.0, f64::max);
        let least = |of: fn(&Stage) -> u64| own.iter().map(|(_, s)| of(s)).min().unwrap_or(0);
        let (kept, backward) = (least(|s| s.bytes.least_kept()), longest(|s| s.backward));
        let after = least(|s| s.bytes.after_input());
        let weight = longest(|s| s.halves.map_or(0.0, |[_, weight]| weight));
        let mut droppers = own.iter().filter(|(_, s)| s.bytes.may_drop());
        let first = droppers
            .next()
            .map(|(_, s)| (s.bytes.dropped(), s.recompute));
        let dropped = first.map(|first| {
            droppers.fold(first, |(bytes, time), (_, s)| {
                (bytes.min(s.bytes.dropped()), time.min(s.recompute))
            })
        });
        Self {
            room: device
                .cap
                .unwrap_or(u64::MAX)
                .saturating_sub(device.at_first),
            micro_batches: pipeline.micro_batches,
            forward: longest(|s| s.forward),
            per_byte: (after < kept).then(|| {
                let of = |time: f64, bytes: u64| if time > 0.0 { time / bytes as f64 } else { 0.0 };
                of(backward, kept).max(of(weight, after))
            }),
            kept,
            dropped,
            backward,
            own,
        }
    }

    /// Returns the time that the device loses, in microseconds.
    fn lost(&self, ways: &Ways) -> f64 {
        let (Some(&(lowest, _)), Some(&(highest, _))) = (self.own.first(), self.own.last()) else {
            return 0.0;
        };
        let (head, gradient) = (ways.forward[lowest], ways.gradient[highest]);
        let before = self.before(gradient).map(|(_, lost)| lost);
        let before = before.fold(f64::INFINITY, f64::min).max(head);
        let all: f64 = self.own.iter().map(|(_, s)| s.forward).sum();
        if self.micro_batches as f64 * all <= gradient - head {
            return before;
        }
        let after = self.after(ways.rest[highest]);
        // If no forward of the highest stage begins before the first gradient can arrive, the gradient
        // arrives later by this.
        let late = gradient - ways.forward[highest];
        (before + after.min(late)).min(self.counted_twice(ways, gradient).max(head))
    }

    /// Number of micro-batches of stages that fit into `bytes`.
    fn fit(&self, bytes: u64) -> usize {
        let all = self.micro_batches * self.own.len();
        bytes
            .checked_div(self.kept)
            .map_or(all, |count| (count as usize).min(all))
    }

    /// Returns each possible number of dropped ones, with the bytes left and the time of a recompute.
    fn drops(&self) -> impl Iterator<Item = (usize, u64, f64)> {
        let all = self.micro_batches * self.own.len();
        let (each, time) = self.dropped.unwrap_or((u64::MAX, 0.0));
        let most = self.dropped.map_or(0, |_| all);
        (0..=most).map_while(move |count| {
            let bytes = each.saturating_mul(count as u64);
            let left = self.room.checked_sub(if count == 0 { 0 } else { bytes })?;
            Some((count, left, time))
        })
    }

    /// Returns, for each number of dropped micro-batches, how many forwards fit before the first
    /// gradient, and the time lost then.
    fn before(&self, gradient: f64) -> impl Iterator<Item = (usize, f64)> {
        self.drops().map(move |(dropped, left, again)| {
            let fit = self.fit(left);
            let useful = fit as f64 * self.forward;
            let lost = gradient - useful - dropped as f64 * (self.forward - again).max(0.0);
            (fit + dropped, lost)
        })
    }

    fn after(&self, rest: f64) -> f64 {
        let lost = self.drops().map(|(dropped, left, again)| {
            let useful = match self.per_byte {
                Some(per_byte) => left as f64 * per_byte,
                None => self.fit(left) as f64 * self.backward,
            };
            let waits = rest - useful - dropped as f64 * self.backward;
            waits.max(dropped as f64 * again)
        });
        lost.fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// Returns the total loss if one recompute counts both before and after: with `begun` forwards of its
    /// stage before, all later micro-batches are held after the last forward.
    fn counted_twice(&self, ways: &Ways, gradient: f64) -> f64 {
        // Losses for at least each number of forwards.
        let mut before: Vec<(usize, f64)> = self.before(gradient).skip(1).collect();
        before.sort_unstable_by_key(|(count, _)| *count);
        for at in (1..before.len()).rev() {
            before[at - 1].1 = before[at - 1].1.min(before[at].1);
        }
        let mut least = f64::INFINITY;
        for &(stage, own) in self.own.iter().filter(|(_, s)| s.bytes.may_drop()) {
            let higher = self.own.iter().filter(|(other, _)| *other > stage);
            // Forwards of higher stages that begin before, one each.
            let (mut others, mut time) = (0, gradient - ways.forward[stage]);
            for (_, other) in higher {
                others += 1;
                time -= other.forward.min(own.forward);
            }
            // If a forward takes no time, all of them.
            let most = ((time / own.forward).ceil() as usize).min(self.micro_batches);
            let fit = self.room.checked_div(own.bytes.least_kept());
            for begun in 1..=most {
                let enough = before.partition_point(|(count, _)| *count < begun + others);
                let Some((_, lost)) = before.get(enough) else {
                    break;
                };
                let behind = (self.micro_batches - begun) as u64;
                let dropped = behind.saturating_sub(fit.unwrap_or(u64::MAX));
                least = least.min(lost + dropped as f64 * own.recompute);
            }
        }
        least
    }
}
