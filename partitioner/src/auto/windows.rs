//! A lower bound on the makespan where memory is tight: what a device loses before its first gradient,
//! and after its last forward.
//!
//! Lost is all of the step but m·Σ (F+A) over the device's stages: waits and recomputes, and what
//! backwards take more than the least, A.
//!
//! - *Before* the first gradient can be there for its highest stage, a device does nothing but forwards,
//!   of as many micro-batches as its memory holds. One whose activations are dropped counts F−R only: the
//!   recompute is still to come.
//! - *After* its last forward, which is one of its highest stage, that micro-batch has the whole way
//!   ahead of it, to the end of the model and back. Meanwhile the device has the backwards of what it
//!   holds, and the recomputes of what it has dropped, which are lost: with y of those at least the
//!   larger one of y·R and of what is left of the way.
//!
//! Both are lost unless a device could do all its forwards before the first gradient; and unless
//! one recompute counts in both: then a stage holds its last micro-batches from the first one of
//! those on, and drops as many of them as do not fit.
//!
//! All that a device may hold counts as of its cheapest stage in memory, and of its longest one in time.
//! Devices do not wait for each other in between, and links are never busy.

use super::pipeline::{Device, Pipeline, Stage};

/// The bound in microseconds.
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

/// By stage: the earliest that a micro-batch can be there, that a gradient can be, and the
/// least from the end of a forward to the end of the step.
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
        // The last micro-batch's way back, to the end of the first stage's backward.
        let all = gradient[0] + stages[0].backward;
        let rest = (forward.iter().zip(stages)).map(|(at, own)| all - at - own.forward);
        Self {
            rest: rest.collect(),
            forward,
            gradient,
        }
    }
}

/// What a device may hold.
struct Held<'a> {
    own: Vec<(usize, &'a Stage)>,
    micro_batches: usize,
    /// Beside what is there all the time.
    room: u64,
    /// The least that a micro-batch of a stage holds from its forward to its gradient, and that one
    /// holds whose activations are dropped, with the time of its recompute.
    kept: u64,
    dropped: Option<(u64, f64)>,
    /// The longest forward and backward.
    forward: f64,
    backward: f64,
    /// By how much the time that is left of backwards grows with a byte where they are in
    /// halves, of which the second one holds less.
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

    /// What the device loses, in microseconds.
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
        // Where no forward of the highest stage begins before the first gradient can be there, that
        // comes later by so much.
        let late = gradient - ways.forward[highest];
        (before + after.min(late)).min(self.counted_twice(ways, gradient).max(head))
    }

    /// How many micro-batches of stages fit into so many bytes.
    fn fit(&self, bytes: u64) -> usize {
        let all = self.micro_batches * self.own.len();
        bytes
            .checked_div(self.kept)
            .map_or(all, |count| (count as usize).min(all))
    }

    /// Each number of dropped ones that fits, with the bytes that are left and the time of a recompute.
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

    /// For each number of dropped ones, how many forwards fit before the first gradient, and what is
    /// lost then.
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

    /// What is lost in all where one recompute counts before and after: with `begun` forwards of its
    /// stage before, all micro-batches behind those are held after the last forward.
    fn counted_twice(&self, ways: &Ways, gradient: f64) -> f64 {
        // By the number of forwards, for at least so many.
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
            // (Where a forward takes no time, as many as there are.)
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
