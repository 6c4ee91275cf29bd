//! Memory limits shared by several stages of a device.
//!
//! Whether a cut exists under shared limits is NP-hard, so this tries in turn: an equal part of the
//! limit for each stage, which the probe decides exactly; then a depth-first search over the cuts
//! that the probe has reached, evenest first, with memory of failures. The search is exhaustive up
//! to a number of steps, and reports if it gave up.

use std::collections::HashMap;
use std::rc::Rc;

use super::chain::{Chain, Cut, Part};
use super::probe::{Answer, Reach, TooLow, probe};

/// Steps after which the search gives up.
const STEPS: usize = 4_000;
/// Greatest depth of a search.
const DEPTH: usize = 4096;
/// Failures remembered for each cut of each stage.
const FAILURES: usize = 16;

/// Whether the stages of each device together fit its limit.
pub(super) fn fits(chain: &Chain, cut: &Cut, slack: u64) -> bool {
    let within = |(bytes, cap): (u64, &Option<u64>)| {
        cap.is_none_or(|cap| bytes <= cap.saturating_add(slack))
    };
    chain
        .device_bytes(cut)
        .into_iter()
        .zip(&chain.caps)
        .all(within)
}

/// Returns whether a cut stays within `limit` and the shared limits; `reach` has all cuts within
/// `limit` whose stages fit the memory limits separately.
pub(super) fn ask(chain: &Chain, reach: &Reach<'_>, limit: i64, slack: u64) -> Answer {
    if let Some(cut) = equal_parts(chain, limit, slack) {
        return Answer::Yes(cut);
    }
    if chain.stages > DEPTH {
        return Answer::Unknown;
    }
    let mut search = DepthFirst {
        chain,
        reach,
        slack,
        first: first_stages(chain),
        used: vec![0; chain.caps.len()],
        parts: Vec::new(),
        nodes: HashMap::new(),
        steps: 0,
    };
    if search.descend(chain.stages, chain.layers) {
        let mut parts = search.parts;
        parts.reverse();
        Answer::Yes(Cut { parts })
    } else if search.steps > STEPS || !reach.complete {
        Answer::Unknown
    } else {
        let next = Some(limit + 1);
        Answer::No(TooLow { next })
    }
}

/// Returns a cut in which each stage fits an equal part of its device's limit.
fn equal_parts(chain: &Chain, limit: i64, slack: u64) -> Option<Cut> {
    probe(chain, limit, &equal_caps(chain, slack)).ok()?.cut()
}

/// Returns, for each stage, an equal part of its device's limit.
pub(super) fn equal_caps(chain: &Chain, slack: u64) -> Vec<Option<u64>> {
    let mut stages_on = vec![0_u64; chain.caps.len()];
    for &device in &chain.device {
        stages_on[device] += 1;
    }
    let part = |stage| {
        let cap: Option<u64> = chain.cap(stage, slack);
        cap.map(|cap| cap / stages_on[chain.device[stage]])
    };
    (0..chain.stages).map(part).collect()
}

/// Returns the first stage of each device.
fn first_stages(chain: &Chain) -> Vec<usize> {
    let mut first = vec![usize::MAX; chain.caps.len()];
    for (stage, &device) in chain.device.iter().enumerate().rev() {
        first[device] = stage;
    }
    first
}

struct DepthFirst<'a> {
    chain: &'a Chain,
    reach: &'a Reach<'a>,
    slack: u64,
    first: Vec<usize>,
    /// Bytes per device of the stages placed so far: the last ones.
    used: Vec<u64>,
    parts: Vec<Part>,
    /// Per stage count and cut.
    nodes: HashMap<(usize, usize), Node>,
    steps: usize,
}

/// The first stages on the layers before a cut: most are visited often.
struct Node {
    /// Parts of the last of these stages that the probe has reached, with their bytes, evenest first.
    candidates: Rc<[(Part, u64)]>,
    /// The `used` from which no way led on.
    failed: Vec<Vec<u64>>,
}

impl DepthFirst<'_> {
    /// Places the first `stages` stages on the layers before `end`.
    fn descend(&mut self, stages: usize, end: usize) -> bool {
        if stages == 0 {
            return true;
        }
        self.steps += 1;
        if self.steps > STEPS {
            return false;
        }
        let (used, first) = (&self.used, &self.first);
        let (chain, reach) = (self.chain, self.reach);
        let node = (self.nodes.entry((stages, end)))
            .or_insert_with(|| Node::new(chain, reach, (stages, end)));
        if node.knows_to_fail(&relevant(used, first, stages)) {
            return false;
        }
        let candidates = Rc::clone(&node.candidates);
        let stage = stages - 1;
        let device = chain.device[stage];
        let room = chain.cap(stage, self.slack);
        let room = room.map_or(u64::MAX, |cap| cap - self.used[device].min(cap));
        for &(part, bytes) in candidates.iter().filter(|&&(_, bytes)| bytes <= room) {
            self.used[device] += bytes;
            self.parts.push(part);
            if self.descend(stage, part.start) {
                return true;
            }
            self.parts.pop();
            self.used[device] -= bytes;
        }
        // A failure for lack of steps proves nothing.
        if self.steps <= STEPS
            && let Some(node) = self.nodes.get_mut(&(stages, end))
            && node.failed.len() < FAILURES
        {
            (node.failed).push(relevant(&self.used, &self.first, stages).collect());
        }
        false
    }
}

/// Bytes used per device that has one of the first `stages` stages, and 0 for others.
fn relevant(used: &[u64], first: &[usize], stages: usize) -> impl Iterator<Item = u64> + Clone {
    let devices = used.iter().zip(first);
    devices.map(move |(&used, &first)| if first < stages { used } else { 0 })
}

impl Node {
    fn new(chain: &Chain, reach: &Reach<'_>, (stages, end): (usize, usize)) -> Self {
        let stage = stages - 1;
        let parts = reach.parts(stage, end);
        let mut candidates: Vec<(Part, u64)> = parts
            .map(|part| (part, chain.bytes(stage, part, end)))
            .collect();
        candidates.sort_by_cached_key(|&(part, _)| reach.unevenness(stage, end, part));
        Self {
            candidates: candidates.into(),
            failed: Vec::new(),
        }
    }

    /// Whether a search with no more than `used` on each device has failed before.
    fn knows_to_fail(&self, used: &(impl Iterator<Item = u64> + Clone)) -> bool {
        let worse = |old: &Vec<u64>| old.iter().zip(used.clone()).all(|(&old, new)| old <= new);
        self.failed.iter().any(worse)
    }
}
