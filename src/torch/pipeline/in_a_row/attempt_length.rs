//! Number of steps to try without a barrier.

/// Most steps with a barrier after steps that were undone.
const LONGEST_PAUSE: usize = 64;

/// Length of attempts without barriers: all remaining steps, until an attempt is undone. Then steps
/// have barriers for a while, longer each time that the next attempt is undone as well, and
/// attempts begin with two steps. So a run that always clips loses almost nothing.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline) struct Pace {
    /// Steps of the next attempt.
    length: usize,
    /// Steps with a barrier until then.
    waits: usize,
    /// Steps with a barrier after the next undone attempt.
    pause: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            length: usize::MAX,
            waits: 0,
            pause: 1,
        }
    }
}

impl Pace {
    /// Returns how many of the `left` steps to try without a barrier; fewer than two are not worth
    /// it.
    pub(super) fn next(&self, left: usize) -> usize {
        if self.waits > 0 {
            0
        } else {
            self.length.min(left)
        }
    }

    /// Counts a step with a barrier.
    pub(super) fn step(&mut self) {
        self.waits = self.waits.saturating_sub(1);
    }

    pub(super) fn succeeded(&mut self) {
        self.length = self.length.saturating_mul(2);
        self.pause = 1;
    }

    /// Counts an undone attempt; one of the next `suspects` steps, which all have barriers, does
    /// not count unchanged.
    pub(super) fn undone(&mut self, suspects: usize) {
        self.waits = suspects.max(self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.length = 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_are_undone_become_rare() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(20), 20);
        let (mut tried, mut steps) = (0, 0);
        while steps < 1000 {
            if pace.next(1000 - steps) >= 2 {
                tried += 1;
                pace.undone(1);
            }
            pace.step();
            steps += 1;
        }
        assert!(tried < 25, "{tried}");
        while pace.next(9) == 0 {
            pace.step();
        }
        let mut lengths = Vec::new();
        for _ in 0..4 {
            lengths.push(pace.next(9));
            pace.succeeded();
        }
        assert_eq!(lengths, [2, 4, 8, 9]);
        pace.undone(5);
        let waits = (0..).take_while(|_| {
            pace.step();
            pace.next(9) == 0
        });
        assert_eq!(
            waits.count(),
            4,
            "of five suspects the first is one as well"
        );
    }
}
